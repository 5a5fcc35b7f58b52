"""`head_scores`: which heads are induction, previous-token, duplicate-token or first-token heads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor

from interp_widgets.analysis._core.arrays import Floats
from interp_widgets.analysis._core.checks import check_choice, check_finite, check_range
from interp_widgets.analysis._core.chunks import Runner
from interp_widgets.analysis._core.cost import Cost, chunk_bytes, pass_flops
from interp_widgets.analysis._core.result import Result, provenance, record, with_axes
from interp_widgets.analysis._core.tables import DataFrame, table
from interp_widgets.analysis._core.tensors import to_numpy, wide, wide_type
from interp_widgets.analysis.attention.random_tokens import ordinary_tokens
from interp_widgets.arguments import checked
from interp_widgets.models import Model
from interp_widgets.models.engine import read_values

Score = Literal["induction", "previous_token", "duplicate_token", "first_token"]
"""What a head is scored for."""

SCORES: tuple[Score, ...] = get_args(Score)


@record
class HeadScores(Result):
    """Scores of all heads on repeated random tokens, each a mean attention, 0..1.

    Example:
        >>> result = head_scores(model, length=20, sequences=4)
        >>> result.induction.shape, result.interval("induction").shape, result.control("induction").shape
        ((6, 6), (2, 6, 6), (6, 6))
        >>> result.to_frame().nlargest(1, "value").columns.tolist()
        ['score', 'layer', 'head', 'value', 'low', 'high', 'control', 'uniform']
    """

    scores: Floats = with_axes(4, "sequences", "layers", "heads")
    """Mean attention of each sequence, in the order induction, previous_token, duplicate_token, first_token."""

    controls: Floats = with_axes(4, "sequences", "layers", "heads")
    """The controls of the same: see `control`."""

    uniform: Floats = with_axes(4)
    """The scores of a head that attends equally to all tokens up to its own."""

    length: int
    """Random tokens that each sequence repeats once."""

    bos: bool = False
    """Whether a BOS stands in front, which is then the first token."""

    @property
    def induction(self) -> NDArray[np.float64]:
        """(layers, heads) mean attention, in the second half, to the token after the earlier occurrence."""
        return self._mean("induction")

    @property
    def previous_token(self) -> NDArray[np.float64]:
        """(layers, heads) mean attention to the token before."""
        return self._mean("previous_token")

    @property
    def duplicate_token(self) -> NDArray[np.float64]:
        """(layers, heads) mean attention, in the second half, to the earlier occurrence of the same token."""
        return self._mean("duplicate_token")

    @property
    def first_token(self) -> NDArray[np.float64]:
        """(layers, heads) mean attention to the first token that the model reads (the BOS if it gets one)."""
        return self._mean("first_token")

    def _mean(self, score: Score) -> NDArray[np.float64]:
        mean: NDArray[np.float64] = self.scores[_number(score)].mean(0, dtype=np.float64)
        return mean

    def control(self, score: Score) -> NDArray[np.float64]:
        """(layers, heads) what the score would be of a head that does something else.

        ``induction`` and ``duplicate_token``: attention over the same distance where the second half holds other random
        tokens, so that nothing repeats. ``previous_token``: attention to the token two before. ``first_token``:
        attention to the second token. `uniform` has the scores of uniform attention.
        """
        mean: NDArray[np.float64] = self.controls[_number(score)].mean(0, dtype=np.float64)
        return mean

    def beyond_chance(self, score: Score) -> NDArray[np.float64]:
        """(layers, heads) by how much a score exceeds the larger of its control and what uniform attention scores."""
        chance = np.maximum(self.control(score), self.uniform[_number(score)])
        beyond: NDArray[np.float64] = self._mean(score) - chance
        return beyond

    def strongest(self) -> Score:
        """The score of which a head is furthest beyond chance; ``first_token``, the sink, only if of no other any is.

        Example:
            >>> head_scores(model, length=20, sequences=4).strongest()
            'previous_token'
        """
        most = {score: float(self.beyond_chance(score).max()) for score in SCORES if score != "first_token"}
        best = max(most, key=lambda score: most[score])
        return best if most[best] > 0 else "first_token"

    def interval(self, score: Score) -> NDArray[np.float64]:
        """(2, layers, heads) low and high end of the 95% interval of the mean over sequences, by Student's t.

        NaN for a single sequence.
        """
        values = self.scores[_number(score)].astype(np.float64)
        n = len(values)
        if n < 2:
            return np.full((2, *values.shape[1:]), np.nan)
        half = stats.t.ppf(0.975, n - 1) * values.std(0, ddof=1) / np.sqrt(n)
        ends: NDArray[np.float64] = np.clip(np.stack([values.mean(0) - half, values.mean(0) + half]), 0, 1)
        return ends

    def top(self, score: Score, count: int = 5) -> tuple[tuple[int, int], ...]:
        """The (layer, head) of the highest scores, highest first.

        Example:
            >>> result = head_scores(model, length=20, sequences=2)
            >>> layer, head = result.top("previous_token", 1)[0]
            >>> bool(result.previous_token[layer, head] == result.previous_token.max())
            True
        """
        means = self._mean(score)
        check_range("count", count, 1, means.size, "this model's heads")
        order = np.argsort(-means, axis=None, kind="stable")[:count]
        return tuple((int(i) // means.shape[1], int(i) % means.shape[1]) for i in order)

    def measures(self) -> dict[str, float | int | str | bool | None]:
        """For every score its highest value and the head that has it, as ``layer.head``."""
        measured: dict[str, float | int | str | bool | None] = {}
        for score in SCORES:
            layer, head = self.top(score, 1)[0]
            measured |= {score: float(self._mean(score)[layer, head]), f"{score}_head": f"{layer}.{head}"}
        return measured

    def to_frame(self) -> DataFrame:
        """One row per score, layer and head: the score, its interval and its control."""
        layers, heads = self.scores.shape[2:]
        low, high = np.stack([self.interval(score) for score in SCORES], axis=1)
        columns = {
            "value": np.stack([self._mean(score) for score in SCORES]),
            "low": low,
            "high": high,
            "control": np.stack([self.control(score) for score in SCORES]),
            "uniform": np.asarray(self.uniform)[:, None, None],
        }
        return table({"score": SCORES, "layer": range(layers), "head": range(heads)}, columns)


def _number(score: str) -> int:
    check_choice("score", score, Score)
    return SCORES.index(score)


@checked
@torch.no_grad()
def head_scores(
    model: Model,
    *,
    length: int = 40,
    sequences: int = 8,
    seed: int = 0,
    batch_size: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    check: Callable[[], None] | None = None,
) -> HeadScores:
    """Which attention heads are induction heads, previous-token heads, duplicate-token heads or first-token heads.

    The model reads random tokens twice in a row (a BOS in front where the model's policy adds one). An induction head
    attends from a token of the second half to the one *after* its earlier occurrence, a duplicate-token head to that
    occurrence, a previous-token head to the token before, a first-token head to the first one (the attention sink).
    Random tokens have no other structure, so that what words mean cannot explain a score. As many sequences that do not
    repeat give the controls.

    Args:
        model: what `load_model` returns.
        length: random tokens, all different, that each sequence repeats once; special tokens are left out.
        sequences: sequences that repeat, each of other tokens.
        seed: of the tokens.
        batch_size: sequences per pass; by default by work and free memory.
        progress: called with (done, total) sequences.
        check: called before every pass and layer; raises to cancel.

    Raises:
        ValueError: a length that does not fit the context or the vocabulary, or a model that shows no patterns.

    Source: In-context Learning and Induction Heads (Olsson et al. 2022), *definition of induction heads*;
    Interpretability in the Wild (Wang et al. 2023), section 3.

    Example:
        >>> result = head_scores(model, length=20, sequences=4)
        >>> layer, head = result.top("previous_token", 1)[0]
        >>> bool(result.previous_token[layer, head] > 2 * result.control("previous_token")[layer, head])
        True
    """
    model.capabilities.require("attention_patterns", "head_scores")
    check_range("length", length, 2)
    check_range("sequences", sequences, 1)
    check_length(model, length)
    offset = int(model.prepend_bos)
    total = 2 * length + offset
    texts = _sequences(model, length, sequences, seed)
    layers, heads, places = model.n_layers, model.n_heads, _places(length, offset)
    shares = torch.zeros(2, len(SCORES), sequences, layers, heads, dtype=wide_type(model.dtype))
    runner = Runner(model, total, batch_size, check, progress, total=len(texts))

    def read(chosen: list[int], ids: Tensor) -> None:
        def reader(layer: int) -> Callable[[Tensor], None]:
            def reduce(pattern: Tensor) -> None:
                means = torch.stack([wide(pattern[:, :, at.queries, at.keys]).mean(-1) for at in places]).cpu()
                for at, mean in zip(places, means, strict=True):
                    for number, of_heads in zip(chosen, mean, strict=True):
                        if (number < sequences) == at.repeats:
                            shares[int(at.control), SCORES.index(at.score), number % sequences, layer] = of_heads

            return reduce

        read_values(model, ids, [(f"blocks.{layer}.attn.hook_pattern", reader(layer)) for layer in range(layers)])

    runner.run_texts(texts, read)
    check_finite(shares, lambda *at: f"the attention of head {at[3]}.{at[4]} of {model.name}")
    uniform = [np.mean([1 / (query + 1) for query in at.queries]) for at in places if not at.control]
    options = {"length": length, "sequences": sequences, "seed": seed, "bos": offset == 1}
    return HeadScores(
        scores=to_numpy(shares[0]),
        controls=to_numpy(shares[1]),
        uniform=np.array(uniform),
        length=length,
        bos=offset == 1,
        provenance=provenance(model.provenance(), **options, **runner.log.facts()),
    )


def check_length(model: Model, length: int) -> None:
    """Raise ValueError for a length that does not fit the model's context or vocabulary."""
    offset = int(model.prepend_bos)
    if 2 * length + offset > model.n_ctx:
        raise ValueError(
            f"length must be at most {(model.n_ctx - offset) // 2}, half of the {model.n_ctx} tokens that this model "
            f"reads, got {length}"
        )
    ordinary = len(ordinary_tokens(model))
    if ordinary < 2 * length:
        raise ValueError(
            f"length must be at most {ordinary // 2}, half of the {ordinary} tokens of this vocabulary that "
            f"are not special, got {length}"
        )


def longest(model: Model, length: int) -> int:
    """The length, or the largest one that fits the model's context and vocabulary."""
    return min(length, (model.n_ctx - int(model.prepend_bos)) // 2, len(ordinary_tokens(model)) // 2)


def head_scores_cost(model: Model, *, length: int = 40, sequences: int = 8) -> Cost:
    """Forecast of `head_scores`.

    Example:
        >>> head_scores_cost(model, sequences=8).flops == 2 * head_scores_cost(model, sequences=4).flops
        True
    """
    total, count = 2 * length + int(model.prepend_bos), 2 * sequences
    return Cost(flops=float(count * pass_flops(model, total, total)), bytes=chunk_bytes(model, count, total))


@dataclass(frozen=True)
class _Places:
    """The entries of a pattern whose mean is one score or control."""

    score: Score
    control: bool
    repeats: bool
    """Whether it is read on sequences that repeat."""
    queries: list[int]
    keys: list[int]

    @staticmethod
    def of(score: Score, queries: range, key: Callable[[int], int], *, control: bool, repeats: bool) -> _Places:
        """Those of some queries; the first token, a possible sink, is a key of `first_token` only."""
        pairs = [(query, key(query)) for query in queries if score == "first_token" or key(query) > 0]
        return _Places(score, control, repeats, [query for query, _ in pairs], [key for _, key in pairs])


def _places(length: int, offset: int) -> list[_Places]:
    """The scores, in the order of `SCORES`, then their controls, for ``offset`` tokens before the random ones."""
    total = 2 * length + offset
    second, later = range(length + offset, total), range(2, total)
    of = _Places.of
    return [
        of("induction", second, lambda query: query - length + 1, control=False, repeats=True),
        of("previous_token", later, lambda query: query - 1, control=False, repeats=True),
        of("duplicate_token", second, lambda query: query - length, control=False, repeats=True),
        of("first_token", later, lambda query: 0, control=False, repeats=True),
        of("induction", second, lambda query: query - length + 1, control=True, repeats=False),
        of("previous_token", later, lambda query: query - 2, control=True, repeats=True),
        of("duplicate_token", second, lambda query: query - length, control=True, repeats=False),
        of("first_token", later, lambda query: 1, control=True, repeats=True),
    ]


def _sequences(model: Model, length: int, sequences: int, seed: int) -> list[list[int]]:
    """Token ids of the sequences that repeat their random tokens, then of as many that do not."""
    ordinary = ordinary_tokens(model)
    rng = np.random.default_rng(seed)
    halves = [rng.choice(ordinary, 2 * length, replace=False).tolist() for _ in range(sequences)]
    front = [] if not model.prepend_bos or model.bos_token_id is None else [model.bos_token_id]
    return [[*front, *both[:length], *both[:length]] for both in halves] + [[*front, *both] for both in halves]
