"""`layer_similarity`: CKA of every layer of one model with every layer of another model, or of the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from interp_widgets.analysis._core.arrays import Floats, Ints
from interp_widgets.analysis._core.checks import stream_indices
from interp_widgets.analysis._core.cost import Cost
from interp_widgets.analysis._core.result import Result, provenance, record, with_axes
from interp_widgets.analysis._core.run import RunOptions
from interp_widgets.analysis._core.tables import DataFrame, table
from interp_widgets.analysis.hidden_states import last_states, last_states_cost
from interp_widgets.analysis.layer_similarity.cka import BIASED_FROM, MIN_INPUTS, alignments
from interp_widgets.arguments import checked
from interp_widgets.models import Model


@record
class LayerSimilarity(Result):
    """What `layer_similarity` returns: CKA of every layer of model A with every layer of model B.

    Layer l is the stream entering block l at the last token of each text, n_layers the one entering the final norm. NaN
    for a layer that is constant over the texts, such as layer 0 if all texts end in the same token.

    Example:
        >>> found = layer_similarity(base, tuned, demo_texts(30))
        >>> found.cka.shape, found.debiased, bool(found.cka[1, 1] > found.cka[6, 6])
        ((7, 7), True, True)
    """

    layers_a: Ints = with_axes("layers_a")
    """(layers_a,) layers of the first model."""
    layers_b: Ints = with_axes("layers_b")
    """(layers_b,) layers of the second model."""
    biased: Floats = with_axes("layers_a", "layers_b")
    """(layers_a, layers_b) biased CKA, 0..1."""
    unbiased: Floats = with_axes("layers_a", "layers_b")
    """(layers_a, layers_b) debiased CKA; 0 on average for unrelated representations, possibly slightly negative."""
    chance: Floats = with_axes("layers_a", "layers_b")
    """(layers_a, layers_b) mean biased CKA with the texts of one model shuffled, as for unrelated representations."""
    debiased: bool
    """Whether `cka` is the debiased estimate, the default for fewer than 10 texts per dimension."""
    texts: int
    """Number of different texts."""
    widths: Sequence[int] = with_axes(2)
    """d_model of both models."""

    @property
    def cka(self) -> Floats:
        """(layers_a, layers_b) the debiased or the biased estimate, as `debiased` says."""
        return self.unbiased if self.debiased else self.biased

    @property
    def warning(self) -> str:
        """A sentence on the bias of the biased estimate for this number of texts; empty if there are enough texts."""
        return small_sample_warning(self.texts, max(self.widths), self.chance, debiased=self.debiased)

    def measures(self) -> dict[str, float | int | str | bool | None]:
        """The CKA of each layer with the same layer of the other model."""
        both = [layer for layer in self.layers_a.tolist() if layer in self.layers_b]
        return {
            f"layer_{layer}": float(self.cka[self.layers_a.tolist().index(layer), self.layers_b.tolist().index(layer)])
            for layer in both
        }

    def to_frame(self) -> DataFrame:
        """One row per pair of layers: the CKA shown, both estimates, and the chance level of the biased one."""
        columns = {"cka": self.cka, "biased": self.biased, "debiased": self.unbiased, "chance": self.chance}
        return table({"layer_a": self.layers_a, "layer_b": self.layers_b}, columns)


@checked
def layer_similarity(
    a: Model,
    b: Model,
    texts: Sequence[str],
    *,
    debiased: bool | None = None,
    layers: Sequence[int] | None = None,
    prepend_bos: bool | None = None,
    batch_size: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    check: Callable[[], None] | None = None,
) -> LayerSimilarity:
    """Compare every layer of one model with every layer of another on the same texts, by linear CKA at the last token.

    The models may differ in width, depth and vocabulary; if both are the same model, its layers are compared with each
    other. The representation of a text is the residual stream at its last token.

    Args:
        a: what `load_model` returns.
        b: another model, or the same.
        texts: at least 4 different texts; repeated texts count once.
        debiased: whether `LayerSimilarity.cka` is the debiased estimate; by default if there are fewer than 10 texts
            per dimension. Both estimates are computed.
        layers: of both models, 0..n_layers, negative from the end; by default all.
        prepend_bos: overrides the models' BOS policies.
        batch_size: most texts in one pass of a model; by default chosen by cost and memory.
        progress: called with (done, total) texts of both models.
        check: called before every pass; raises to cancel.

    Raises:
        ValueError: fewer than 4 different texts, a layer out of range, states that are not finite.

    Source: Similarity of Neural Network Representations Revisited (Kornblith et al. 2019), section 3.

    Example:
        >>> found = layer_similarity(base, tuned, demo_texts(30), layers=[2, 4, 6])
        >>> found.to_frame().shape, found.warning[:42]
        ((9, 6), '30 texts are fewer than 10 × 192 dimension')
    """
    different = different_texts(texts)
    same = a is b
    layers_a = stream_indices(a, range(a.n_layers + 1) if layers is None else layers)
    layers_b = layers_a if same else stream_indices(b, range(b.n_layers + 1) if layers is None else layers)
    run = RunOptions(progress, check, batch_size)
    parts = [run] if same else [run.part(0, 2), run.part(1, 2)]
    states = [
        last_states(
            model, different, own, prepend_bos=prepend_bos, batch_size=batch_size, progress=part.progress, check=check
        )
        for model, own, part in zip((a, b), (layers_a, layers_b), parts, strict=False)
    ]
    run.stop_if_cancelled()
    biased, unbiased, chance = alignments(states[0], states[-1])
    return LayerSimilarity(
        layers_a=np.asarray(layers_a),
        layers_b=np.asarray(layers_b),
        biased=biased,
        unbiased=unbiased,
        chance=chance,
        debiased=is_debiased(debiased, len(different), max(a.d_model, b.d_model)),
        texts=len(different),
        widths=(a.d_model, b.d_model),
        provenance=provenance(
            a.provenance(),
            **{f"other_{name}": b.provenance()[name] for name in ("model", "weight_hash", "backend", "dtype")},
            analysis="layer_similarity",
            debiased=debiased,
        ),
    )


def layer_similarity_cost(a: Model, b: Model, lengths: Sequence[int]) -> Cost:
    """FLOPs and peak bytes of `layer_similarity` on texts with these numbers of tokens."""
    n, different = len(lengths), {id(model): model for model in (a, b)}.values()
    states = [last_states_cost(model, lengths, model.n_layers) for model in different]
    layers = a.n_layers + b.n_layers + 2
    products = 2.0 * n * n * (layers * max(a.d_model, b.d_model) + (a.n_layers + 1) * (b.n_layers + 1))
    buffers = 16.0 * n * layers * max(a.d_model, b.d_model)
    return Cost(sum(one.flops for one in states) + products, max(one.bytes for one in states) + buffers)


def different_texts(texts: Sequence[str]) -> list[str]:
    """The texts without repetitions, which CKA would count as similar inputs; ValueError for fewer than 4."""
    different = list(dict.fromkeys(texts))
    if len(different) < MIN_INPUTS:
        raise ValueError(f"texts must be at least {MIN_INPUTS} different ones, got {len(different)}: give more")
    return different


def is_debiased(debiased: bool | None, n: int, d: int) -> bool:
    """Whether the debiased estimate is shown: as given, by default below 10 inputs per dimension."""
    return n < BIASED_FROM * d if debiased is None else debiased


def small_sample_warning(n: int, d: int, chance: Floats, *, debiased: bool) -> str:
    """A sentence on the bias of the biased estimate for n inputs; empty if there are enough."""
    if n >= BIASED_FROM * d or not np.isfinite(chance).any():
        return ""
    sentence = (
        f"{n:,} texts are fewer than {BIASED_FROM} × {d} dimensions: the biased CKA of unrelated layers would be "
        f"{np.nanmean(chance):.2f} here (mean with the texts shuffled), not 0"
    )
    return sentence + (", so the debiased CKA is shown." if debiased else "; the debiased CKA does not have this bias.")
