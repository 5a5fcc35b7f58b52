"""`ffn_concepts`: the principal directions of a model's MLP output weights, and the words along them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import scipy
import torch
from numpy.typing import NDArray
from torch import Tensor

from interp_widgets.analysis._core.arrays import Floats, Ints
from interp_widgets.analysis._core.checks import check_choice, check_finite, check_range, index, layer_indices, row_of
from interp_widgets.analysis._core.chunks import ChunkLog, run_chunks
from interp_widgets.analysis._core.result import Result, provenance, record, with_axes
from interp_widgets.analysis._core.run import RunOptions
from interp_widgets.analysis._core.tables import DataFrame, table
from interp_widgets.analysis._core.tensors import as_array, to_numpy
from interp_widgets.analysis._core.top_k import TopK
from interp_widgets.analysis._core.word_embeddings import Words, word_table
from interp_widgets.arguments import checked
from interp_widgets.models import Model
from interp_widgets.models.devices import device_kind, has_float64

Sign = Literal["both", "+", "-"]
"""Which words of a direction: those of largest absolute projection, or those on one side."""

_FLOPS = {"cpu": 1e10, "accelerator": 1e13}
_NUMBERS = {"cpu": 2**22, "accelerator": 2**27}
"""Projections in memory at once."""


@record
class FFNConceptResult(Result):
    """The principal directions of each layer's output weights, and the words with the largest projections.

    A component is one direction; component 0 explains most variance. Its sign is arbitrary and chosen so that the word
    with the largest absolute projection is on the positive side.
    Source: From Language Modeling to Instruction Following (Wu et al. 2024), section 5.2.

    Example:
        >>> concepts = ffn_concepts(model, rank=20, top=4)
        >>> concepts.words(5, 6), concepts.explained_variance.shape
        (('sad', 'lonely', 'tired', 'lost'), (6, 20))
        >>> concepts.components_with("sad")[0][:2]  # layer and component
        (5, 6)
    """

    vocabulary: Sequence[str] = with_axes("words")
    """The words; lists hold their indices."""

    layers: Sequence[int] = with_axes("layers")
    """Layers of the model, rising."""

    explained_variance: Floats = with_axes("layers", "rank")
    """Share of the layer's variance that a component explains, 0..1, falling."""

    plus: Ints = with_axes("layers", "rank", "top")
    """Words on the positive side, largest projection first; -1 where there are fewer."""

    plus_scores: Floats = with_axes("layers", "rank", "top")
    """Their projections, above 0; NaN where there are fewer."""

    minus: Ints = with_axes("layers", "rank", "top")
    """Words on the negative side, most negative projection first; -1 where there are fewer."""

    minus_scores: Floats = with_axes("layers", "rank", "top")
    """Their projections, below 0; NaN where there are fewer."""

    directions: Floats | None = with_axes("layers", "rank", "d_model", default=None)
    """The components, each of length 1; None where they were not kept."""

    unknown: Sequence[str] = with_axes("unknown", default=())
    """Words that the model's tokenizer cannot write, which are ignored."""

    # ---- sizes and checks

    @property
    def rank(self) -> int:
        """Components per layer."""
        return int(self.plus.shape[1])

    @property
    def top(self) -> int:
        """Most words per list."""
        return int(self.plus.shape[2])

    def row(self, layer: int) -> int:
        """The row of a layer of the model; negative numbers count from the last row. ValueError without the layer."""
        return row_of(layer, self.layers, "layer")

    def _cell(self, layer: int, component: int) -> tuple[int, int]:
        return self.row(layer), index(component, self.rank, "component", f"result of rank {self.rank}")

    # ---- the components

    @property
    def cumulative(self) -> Floats:
        """(layers, rank) share of the variance that a component and all before it explain."""
        return np.asarray(np.cumsum(self.explained_variance, axis=1))

    def scores(self, layer: int, component: int, *, sign: Sign = "both") -> list[tuple[str, float]]:
        """The words of one component with their projections (cosines: both have length 1), largest first.

        With ``sign="both"`` by absolute value; else one side only. Raises ValueError for a layer, component or sign
        that is not there.
        """
        check_choice("sign", sign, Sign)
        words, values = self._ordered(sign, self._cell(layer, component))
        return [(self.vocabulary[word], float(value)) for word, value in zip(words, values, strict=True) if word >= 0]

    def _ordered(self, sign: Sign, cells: Any) -> tuple[Any, Any]:
        """(..., top) indices of the words of some cells in falling order of absolute projection, padded with -1, and
        their projections."""
        sides = {"+": (self.plus, self.plus_scores), "-": (self.minus, self.minus_scores)}
        chosen = [arrays for side, arrays in sides.items() if sign in ("both", side)]
        words = np.concatenate([numbers[cells] for numbers, _ in chosen], axis=-1)
        values = np.concatenate([projections[cells] for _, projections in chosen], axis=-1)
        # ties: words in the order of the list
        order = np.lexsort((words, -np.abs(values), words < 0), axis=-1)[..., : self.top]
        return np.take_along_axis(words, order, axis=-1), np.take_along_axis(values, order, axis=-1)

    def words(self, layer: int, component: int, *, sign: Sign = "both") -> tuple[str, ...]:
        """The words of one component, largest projection first: `scores` without the projections."""
        return tuple(word for word, _ in self.scores(layer, component, sign=sign))

    def components_with(self, word: str) -> list[tuple[int, int, float]]:
        """Layer, component and projection of every component with a word among its words of either sign, largest first.

        Raises ValueError for a word that is not in the vocabulary.
        """
        if word not in self.vocabulary:
            raise ValueError(f"the word {word!r} is not in the list of {len(self.vocabulary)} words of this result")
        number = list(self.vocabulary).index(word)
        cells = [
            (self.layers[row], int(component), float(scores[row, component, rank]))
            for side, scores in ((self.plus, self.plus_scores), (self.minus, self.minus_scores))
            for row, component, rank in np.argwhere(side == number)
        ]
        return sorted(cells, key=lambda cell: (-abs(cell[2]), cell[0], cell[1]))

    def to_frame(self) -> DataFrame:
        """One row per component: layer, component, its variance, the cumulative one, and its words of each sign."""
        components = range(self.rank)
        signs: dict[str, Sign] = {"words": "both", "plus": "+", "minus": "-"}
        columns: dict[str, Any] = {"explained_variance": self.explained_variance, "cumulative": self.cumulative}
        for name, sign in signs.items():
            words = self._ordered(sign, ...)[0].tolist()
            columns[name] = [[", ".join(self.vocabulary[i] for i in cell if i >= 0) for cell in row] for row in words]
        return table({"layer": self.layers, "component": components}, columns)


@checked
@torch.no_grad()
def ffn_concepts(
    model: Model,
    *,
    words: Words = None,
    rank: int = 300,
    top: int = 15,
    layers: Sequence[int] | None = None,
    keep_directions: bool = True,
    progress: Callable[[int, int], None] | None = None,
    check: Callable[[], None] | None = None,
    on_partial: Callable[[FFNConceptResult], None] | None = None,
) -> FFNConceptResult:
    """The principal directions of each MLP's output weights, and the words whose output embeddings lie along them.

    The rows of a layer's output weights (one per neuron, d_model numbers), their columns centred, are decomposed into
    principal components in float64; a word's projection on a component is its cosine with the word's *output*
    embedding (the mean of its tokens' columns of the unembedding, made length 1). The final norm's scale is left out,
    as in the paper; a model loaded with ``processed=True`` has it in its unembedding.

    Args:
        model: what `load_model` returns, with a tokenizer.
        words: a word list; default: the demo's.
        rank: components per layer, reduced to min(d_mlp - 1, d_model) for narrower models.
        top: words per component.
        layers: of the model, negative ones from the end; default: all.
        keep_directions: whether the result holds the components themselves, rank times d_model numbers a layer;
            `compare_concepts` needs them.
        progress: called with (done, total) layers.
        check: called between tiles; raises to cancel.
        on_partial: receives, after every layer but the last, a partial result with the layers done so far.

    Raises:
        ValueError: an empty or repeated word, an option out of range, an unknown layer, a model whose MLP has no single
            output matrix (a mixture of experts).

    Source: From Language Modeling to Instruction Following (Wu et al. 2024), section 5.2, Eq. 3; the cumulative
    variance is its Figure 8.

    Example:
        >>> concepts = ffn_concepts(model, rank=100)
        >>> concepts.words(5, 6)[:4], round(float(concepts.cumulative[5, 99]), 2)
        (('sad', 'lonely', 'tired', 'lost'), 0.81)
    """
    model.capabilities.require("mlp_neurons", "ffn_concepts")
    model.capabilities.require("unembedding", "ffn_concepts")
    check_range("rank", rank)
    check_range("top", top)
    numbers = sorted(layer_indices(model, layers))
    rank = min(rank, model.d_mlp - 1, model.d_model)  # in more directions centred output weights cannot vary
    origin, run = model.provenance(), RunOptions(progress, check)
    table = word_table(model, words, side="output", check=check)
    check_finite(table.embeddings, lambda word, _: f"the output embedding of {table.words[word]!r}")
    units = torch.nn.functional.normalize(table.embeddings, dim=-1)
    log = ChunkLog()
    rows: dict[str, list[Any]] = {}

    def result(*, partial: bool = False) -> FFNConceptResult:
        options = {"words": len(table.words), "rank": rank, "top": top, "chunk_halvings": log.halvings}
        return FFNConceptResult(
            vocabulary=table.words,
            layers=tuple(numbers[: len(rows["plus"])]),
            unknown=table.unknown,
            partial=partial,
            provenance=provenance(origin, **options),
            **{name: np.stack(values) for name, values in rows.items()},
        )

    for done, layer in enumerate(numbers, start=1):
        run.stop_if_cancelled()
        with model.lock:
            directions, shares = principal_directions(model.weight("W_out", layer), rank, run)
        arrays, sign = nearest_words(directions, units, min(top, len(table.words)), run, log=log)
        arrays["explained_variance"] = shares
        if keep_directions:
            arrays["directions"] = (as_array(directions) * sign[:, None]).astype(np.float32)
        for name, value in arrays.items():
            rows.setdefault(name, []).append(value)
        run.report(done, len(numbers))
        if on_partial is not None and done < len(numbers):
            on_partial(result(partial=True))
    return result()


@torch.no_grad()
def principal_directions(weights: Tensor, rank: int, run: RunOptions) -> tuple[Tensor, NDArray[np.float64]]:
    """The principal directions (rank, d_model) of rows (n, d_model), and the share (rank,) of the variance that each
    explains; float64.

    They are eigenvectors of the rows' covariance. Computed on the CPU where the device has no float64: in float32 the
    covariance would lose the directions of small variance.
    """
    weights = weights if has_float64(weights.device) else weights.cpu()
    kind = device_kind(weights.device)
    mean = weights.mean(0, dtype=torch.float64)
    width = weights.shape[1]
    covariance = torch.zeros(width, width, dtype=torch.float64, device=weights.device)

    def work(start: int, stop: int) -> None:
        rows = weights[start:stop].double() - mean
        covariance.addmm_(rows.T, rows)

    size = int(_FLOPS[kind] / (2 * width**2))
    run_chunks(len(weights), max(size, 64), work, what="neuron", check=run.check)
    run.stop_if_cancelled()
    total = float(covariance.trace())
    if not 0 < total < np.inf:
        problem = "all the same: they have no direction to read" if total == 0 else "not all finite numbers"
        raise ValueError(f"the MLP output weights of a layer are {problem}")
    if kind == "accelerator":
        values, vectors = torch.linalg.eigh(covariance)
        values, vectors = values[-rank:], vectors[:, -rank:]
    else:  # SciPy solves for the wanted ones only: twice as fast
        solved = scipy.linalg.eigh(as_array(covariance), subset_by_index=(width - rank, width - 1))
        values, vectors = (torch.from_numpy(part) for part in solved)
    shares = np.maximum(as_array(values.flip(0)), 0) / total
    return vectors.flip(1).T.contiguous(), shares


@torch.no_grad()
def nearest_words(
    directions: Tensor, words: Tensor, top: int, run: RunOptions, *, log: ChunkLog | None = None
) -> tuple[dict[str, NDArray[Any]], NDArray[np.int64]]:
    """The ``top`` words on either side of directions (rank, width), by projection of word vectors (words, width).

    Returns a layer's arrays (rank, top) of an `FFNConceptResult` by name, and (rank,) the sign by which each direction
    is multiplied so that the word with the largest absolute projection is on the positive side. Words come in tiles.
    """
    sides = TopK(top), TopK(top)
    directions = directions.to(words.dtype).to(words.device)  # the type first: the device may have no float64
    numbers, flops = _NUMBERS[device_kind(words.device)], _FLOPS[device_kind(words.device)]
    most = min(numbers / len(directions), flops / (2 * directions.numel()))

    def work(start: int, stop: int) -> None:
        scores = directions @ words[start:stop].T
        for sign, tile in zip(sides, (scores, -scores), strict=True):
            sign.add(tile, start)

    run_chunks(len(words), max(int(most), top), work, what="word", check=run.check, log=log)
    plus, minus = as_array(torch.stack([sign.indices for sign in sides]))
    high, low = to_numpy(torch.stack([sign.values for sign in sides]))
    turned = low[:, 0] > high[:, 0]
    plus, minus = np.where(turned[:, None], minus, plus), np.where(turned[:, None], plus, minus)
    high, low = np.where(turned[:, None], low, high), np.where(turned[:, None], high, low)
    arrays = {
        "plus": np.where(high > 0, plus, -1).astype(np.int32),
        "plus_scores": np.where(high > 0, high, np.nan),
        "minus": np.where(low > 0, minus, -1).astype(np.int32),
        "minus_scores": np.where(low > 0, -low, np.nan),
    }
    return arrays, np.where(turned, -1, 1)
