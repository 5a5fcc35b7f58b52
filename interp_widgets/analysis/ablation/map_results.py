"""The results of ablation maps: how far the next token's metric moves when one part of the model is removed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from interp_widgets.analysis._core.arrays import Floats
from interp_widgets.analysis._core.result import Result, record, with_axes
from interp_widgets.analysis._core.statistics import BEYOND
from interp_widgets.analysis._core.tables import DataFrame, table


def largest_effect(
    kind: str, effects: NDArray[np.floating[Any]], layers: Sequence[int], tokens: Sequence[str]
) -> dict[str, float | int | str]:
    """The largest of a map's effects (layers, positions) with its layer and token, as measures of one kind of part; NaN
    and "" where the map has no number yet."""
    effect, layer, token = math.nan, math.nan, ""
    if not np.isnan(effects).all():
        row, column = map(int, np.unravel_index(int(np.nanargmax(effects)), effects.shape))
        effect, layer, token = float(effects[row, column]), layers[row], tokens[column]
    return {f"{kind}_effect": effect, f"{kind}_layer": layer, f"{kind}_token": token}


@record
class NextTokenEffect(Result):
    """Base of the results of ablation maps: the prompt, the target token, and the metric."""

    prompt_tokens: Sequence[str] = with_axes("prompt")
    """Readable tokens, without a BOS."""

    prompt_ids: Sequence[int] = with_axes("prompt")
    """Token ids."""

    prompt_special: Sequence[bool] = with_axes("prompt")
    """Whether a token is special."""

    target: int
    """Id of the target token, which follows the prompt."""

    target_token: str
    """Its readable text."""

    metric: str
    """A :data:`Metric`: ``logit``, ``probability``, ``log_prob`` (nats), ``logit_difference`` or ``kl`` (nats)."""

    clean: float
    """The metric before, in its unit; 0 for ``kl``."""

    replacement: str
    """The kind of replacement value: ``zero``, ``mean`` or ``resample``."""

    foil: int | None = field(default=None, kw_only=True)
    """Id of the token whose logit ``logit_difference`` subtracts."""

    bos_id: int | None = field(default=None, kw_only=True)
    """Id of the beginning-of-sequence token fed before the prompt and left off the axis; None when there was none."""

    sink: bool = field(default=False, kw_only=True)
    """Whether the first prompt token carries the model's attention sink: what is removed there takes the sink away, on
    which every later token relies."""

    strongest_first: bool = field(default=False, kw_only=True)
    """Of a partial result: whether the cells that are estimated to be strongest run first; else layer by layer."""

    @property
    def p(self) -> NDArray[np.float64] | None:
        """(1 + changes as long in random directions that have as large an effect) / (1 + draws) of every cell, shaped
        as `effect`: at most 0.05 in 5% of all cells, if what is removed were a random change. NaN where a cell was not
        compared, None without ``draws``.
        """
        effect, null = getattr(self, "effect", None), getattr(self, "null", None)
        return None if null is None else _p(effect, null)

    def in_words(self) -> str:
        """How many cells are beyond chance, in a sentence; ValueError without ``draws``."""
        p = self.p
        if p is None:
            raise ValueError("this map was not compared with chance: give draws=19")
        return beyond_in_words(p, len(getattr(self, "null", ())))


def _p(effect: Any, null: Any) -> NDArray[np.float64]:
    p = (1 + (np.abs(null) >= np.abs(effect)).sum(0)) / (1 + len(null))
    return np.where(np.isnan(null).any(0), np.nan, p)


def p_of_difference(
    a: AblationResult | HeadAblationResult, b: AblationResult | HeadAblationResult
) -> NDArray[np.float64] | None:
    """The p of B − A in every cell, draw by draw; None where one of them has no draws, or the maps differ."""
    if a.null is None or b.null is None or a.null.shape != b.null.shape:
        return None
    return _p(b.effect - a.effect, b.null - a.null)


def beyond_in_words(p: NDArray[np.floating[Any]], draws: int) -> str:
    """How many cells of a map are beyond chance, from their p-values, NaN where they were not compared, and the number
    of random directions of each."""
    level = int(BEYOND * (1 + draws) + 1e-9) / (1 + draws)
    found, expected = int((p <= BEYOND).sum()), round(level * p.size)
    if not level:
        return (
            f"With {draws} random directions no cell can be told from chance: p cannot be below {1 / (1 + draws):.2g}"
        )
    tested = int(np.isfinite(p).sum())
    if tested < p.size:
        return (
            f"{found:,} of the {tested:,} strongest cells are beyond chance: each does more than {draws} changes as "
            f"long in random directions (p at most {BEYOND} for each cell, not corrected). At most about "
            f"{min(expected, tested):,} would be by chance alone, since they are the strongest of {p.size:,} cells, "
            f"of which {p.size - tested:,} were not compared"
        )
    return (
        f"{found:,} of {p.size:,} cells are beyond chance, where at most about {expected:,} would be by chance alone: "
        f"each does more than {draws} changes as long in random directions (p at most {BEYOND} for each cell, not "
        "corrected for their number)"
    )


@record
class AblationResult(NextTokenEffect):
    """Effect of removing attention, MLP or both at every layer and position.

    Source: Explainability in Large Language Models (Luo 2024), section 4.1.1 and figure 4.3.

    Example:
        >>> result = ablate_modules(model, "The Eiffel Tower is in the city of", " Paris", kinds=["attn", "mlp"])
        >>> result.kinds, result.effect.shape
        (('attn', 'mlp'), (2, 6, 8))
        >>> result.to_frame().nlargest(1, "effect").round(1)
           kind  layer  position token  effect
        7  attn      0         7    of     4.2
    """

    effect: Floats = with_axes("kinds", "layers", "positions")
    """Metric before minus after, in its unit; for ``kl`` the divergence. NaN where a partial
    result has not got to."""

    kinds: Sequence[str] = with_axes("kinds")
    """What was removed: ``attn``, ``mlp``, ``both`` or ``attn_to_mlp``."""

    layers: Sequence[int] = with_axes("layers")
    """Layer numbers."""

    positions: Sequence[int] = with_axes("positions")
    """Places in the prompt."""

    common: Floats | None = with_axes("kinds", "layers", "positions", default=None)
    """With the ``logit`` alone: the part of the effect that all logits share, which changes no prediction (their
    log-sum-exp before minus after). ``effect - common`` is the effect on the log-probability."""

    null: Floats | None = with_axes("draws", "kinds", "layers", "positions", default=None)
    """The effect of changing the same values by as much in random directions; NaN where not compared, None without
    ``draws``."""

    @property
    def tokens(self) -> tuple[str, ...]:
        """(positions,) readable tokens at the positions of the map."""
        return tuple(self.prompt_tokens[position] for position in self.positions)

    def of(self, kind: str) -> NDArray[np.floating[Any]]:
        """(layers, positions) the map of one kind; ValueError for one that was not computed."""
        if kind not in self.kinds:
            raise ValueError(f"kind must be one of {', '.join(map(repr, self.kinds))} in this result, got {kind!r}")
        return np.asarray(self.effect[tuple(self.kinds).index(kind)])

    def measures(self) -> dict[str, float | int | str | bool | None]:
        """For each kind the largest effect with its layer and token (NaN and "" where a partial result has no number),
        and the metric before."""
        row: dict[str, float | int | str | bool | None] = {"target_token": self.target_token}
        for kind, effects in zip(self.kinds, self.effect, strict=True):
            row |= largest_effect(kind, effects, self.layers, self.tokens)
        return row | {"clean": self.clean}

    def to_frame(self) -> DataFrame:
        """One row per kind, layer and position: kind, layer, position, token, effect, common with the logit, and p."""
        axes = {"kind": self.kinds, "layer": self.layers, "position": self.positions}
        return table(axes, {"token": self.tokens, "effect": self.effect, "common": self.common, "p": self.p})


@record
class HeadAblationResult(NextTokenEffect):
    """Effect of removing each attention head."""

    effect: Floats = with_axes("layers", "heads")
    """Metric before minus after, in its unit; for ``kl`` the divergence. NaN where not computed yet."""

    layers: Sequence[int] = with_axes("layers")
    """Layer numbers."""

    position: int | None
    """Position at which the heads were removed; None for every position, including a BOS."""

    common: Floats | None = with_axes("layers", "heads", default=None)
    """With the ``logit`` alone: the part of the effect that all logits share, which changes no prediction (their
    log-sum-exp before minus after). ``effect - common`` is the effect on the log-probability."""

    null: Floats | None = with_axes("draws", "layers", "heads", default=None)
    """The effect of changing the head's output by as much in random directions; NaN where not compared, None without
    ``draws``."""

    def strongest(self, count: int) -> tuple[tuple[int, int], ...]:
        """(layer, head) of the ``count`` heads with the largest effect, largest first, among those computed."""
        flat = self.effect.ravel()
        order = [int(i) for i in np.argsort(-flat, kind="stable") if np.isfinite(flat[i])][:count]
        heads = self.effect.shape[1]
        return tuple((self.layers[i // heads], i % heads) for i in order)

    def measures(self) -> dict[str, float | int | str | bool | None]:
        """The largest effect of a head with its name (NaN and "" where a partial result has no number), and the metric
        before."""
        effect, name = math.nan, ""
        for layer, head in self.strongest(1):
            effect, name = float(self.effect[list(self.layers).index(layer), head]), f"{layer}.{head}"
        return {"target_token": self.target_token, "effect": effect, "head": name, "clean": self.clean}

    def to_frame(self) -> DataFrame:
        """One row per layer and head: layer, head, effect, common with the logit, and p."""
        axes = {"layer": self.layers, "head": range(self.effect.shape[1])}
        return table(axes, {"effect": self.effect, "common": self.common, "p": self.p})


@record
class NeuronAblationResult(NextTokenEffect):
    """Effect of removing each MLP neuron of one layer at one position."""

    effect: Floats = with_axes("neurons")
    """Metric before minus after, in its unit; for ``kl`` the divergence. NaN where not computed yet."""

    neurons: Sequence[int] = with_axes("neurons")
    """Numbers of the neurons."""

    activation: Floats = with_axes("neurons")
    """The activation that was removed."""

    layer: int
    """Layer number."""

    position: int
    """Position at which the neurons were removed."""

    common: Floats | None = with_axes("neurons", default=None)
    """With the ``logit`` alone: the part of the effect that all logits share, which changes no prediction (their
    log-sum-exp before minus after). ``effect - common`` is the effect on the log-probability."""

    def to_frame(self) -> DataFrame:
        """One row per neuron: neuron, activation, effect, and common with the logit."""
        columns = {"activation": self.activation, "effect": self.effect, "common": self.common}
        return table({"neuron": self.neurons}, columns)
