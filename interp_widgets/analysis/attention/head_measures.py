"""`head_measures`: several measures of every head side by side, and whether heads high in one are high in another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from interp_widgets.analysis._core.arrays import Floats
from interp_widgets.analysis._core.checks import check_choices
from interp_widgets.analysis._core.cost import Cost, pass_flops, row_bytes, unembedding_flops
from interp_widgets.analysis._core.prompts import PromptResult, read_prompt
from interp_widgets.analysis._core.result import provenance, record, with_axes
from interp_widgets.analysis._core.run import RunOptions
from interp_widgets.analysis._core.statistics import spearman
from interp_widgets.analysis._core.tables import DataFrame, table
from interp_widgets.analysis.ablation import HeadAblationResult, ablate_heads, ablation_cost
from interp_widgets.analysis.attention.direct_attribution import direct_logit_attribution
from interp_widgets.analysis.attention.head_scores import SCORES, head_scores, head_scores_cost
from interp_widgets.arguments import checked
from interp_widgets.models import Model
from interp_widgets.models.chat import PromptInput

HeadMeasure = Literal[
    "induction", "previous_token", "duplicate_token", "first_token", "direct_attribution", "ablation_effect"
]
"""What a head is measured by: a score of `head_scores` on random tokens; what it adds directly to the logit of the next
token (`direct_logit_attribution`); or by how much the log-probability of that token falls without it (`ablate_heads`,
set to zero)."""


@record
class HeadMeasures(PromptResult):
    """Several measures of every head.

    Example:
        >>> result = head_measures(model, "The Eiffel Tower is in the city of", length=20, sequences=4)
        >>> result.names, result.values.shape, result.target_token
        (('induction', 'ablation_effect'), (2, 6, 6), ' Paris')
        >>> rho, p = result.correlation("induction", "ablation_effect")
        >>> bool(-1 <= rho <= 1)
        True
    """

    values: Floats = with_axes("measures", "layers", "heads")
    """The measures: mean attention, 0..1; logit; or drop in log-probability, nats. NaN in a partial result for a head
    that is not ablated yet."""

    names: Sequence[str] = with_axes("measures")
    """Each a :data:`HeadMeasure`."""

    p: Floats | None = with_axes("layers", "heads", default=None)
    """Of the direct attribution: two-sided p of every head, corrected over all (`DirectLogitAttribution.heads_p`); None
    where it was not asked for."""

    target: int | None = None
    """Id of the token after the prompt that is asked for; None for scores alone, which have none."""

    target_token: str | None = None
    """Its readable text."""

    strongest_first: bool = field(default=False, kw_only=True)
    """Whether a partial result has the heads with the strongest expected effects."""

    def of(self, name: str) -> NDArray[np.float64]:
        """(layers, heads) one measure; ValueError if it was not computed."""
        if name not in self.names:
            raise ValueError(f"{name!r} was not computed, only {', '.join(self.names)}: name it in measures")
        return np.asarray(self.values[list(self.names).index(name)], dtype=np.float64)

    def correlation(self, first: str, second: str) -> tuple[float, float]:
        """Spearman's rank correlation of two measures over all heads, and its two-sided p; NaN where one is constant.

        Heads of one layer are not independent, so that the p is a rough guide. ValueError for a measure that was not
        computed.
        """
        return spearman(self.of(first).ravel(), self.of(second).ravel())

    def measures(self) -> dict[str, float | int | str | bool | None]:
        """The highest value of each measure with its head, and the correlation of the first two."""
        row: dict[str, float | int | str | bool | None] = {"target_token": self.target_token}
        for name in self.names:
            values = self.of(name)
            layer, head = divmod(int(np.nan_to_num(values, nan=-np.inf).argmax()), values.shape[1])
            highest = float(values[layer, head])  # NaN where no head is ablated yet
            row |= {name: highest, f"{name}_head": f"{layer}.{head}" if np.isfinite(highest) else ""}
        if len(self.names) > 1:
            rho, p = self.correlation(*self.names[:2])
            row |= {"rho": rho, "p": p}
        return row

    def to_frame(self) -> DataFrame:
        """One row per head: layer, head, each measure, and the p of the direct attribution."""
        _, layers, heads = self.values.shape
        columns: dict[str, Any] = {name: self.values[i] for i, name in enumerate(self.names)}
        columns |= {} if self.p is None else {"direct_attribution_p": self.p}
        return table({"layer": range(layers), "head": range(heads)}, columns)


@checked
def head_measures(
    model: Model,
    prompt: PromptInput,
    target: str | int | None = None,
    *,
    measures: Sequence[HeadMeasure] | HeadMeasure = ("induction", "ablation_effect"),
    length: int = 40,
    sequences: int = 8,
    seed: int = 0,
    prepend_bos: bool | None = None,
    progress: Callable[[int, int], None] | None = None,
    check: Callable[[], None] | None = None,
    on_partial: Callable[[HeadMeasures], None] | None = None,
) -> HeadMeasures:
    """Several measures of every head side by side: what it looks at, what it writes, and what is lost without it.

    A head that looks like something need not do anything, and one that is needed need not write the answer itself:
    measures that agree over all heads say that here it is so.

    Args:
        model: what `load_model` returns.
        prompt: text, token ids or the messages of a chat, for direct attribution and ablation.
        target: text or id of the token after the prompt; by default the likeliest.
        measures: which, in this order.
        length, sequences, seed: of the random tokens for the scores, as in `head_scores`.
        prepend_bos: overrides the model's BOS policy for a text.
        progress: called with (done, total) steps.
        check: called before every chunk; raises to cancel.
        on_partial: receives a partial result a few times while heads are ablated, as in `ablate_heads`.

    Raises:
        ValueError: an unknown measure, an empty or too long prompt, a target of several tokens, or a model that shows
            no attention patterns.

    Source: In-context Learning and Induction Heads (Olsson et al. 2022), which sets scores beside ablations.

    Example:
        >>> result = head_measures(model, "The Eiffel Tower is in the city of", measures="direct_attribution")
        >>> result.to_frame().columns.tolist()
        ['layer', 'head', 'direct_attribution', 'direct_attribution_p']
    """
    names = check_choices("measures", measures, HeadMeasure)
    read = read_prompt(model, prompt, prepend_bos=prepend_bos)
    by_name: dict[str, NDArray[Any]] = {}
    token: int | None = None
    p: Floats | None = None
    origin, facts = model.provenance(), dict[str, Any]({"bos": read.offset == 1})
    parts = [bool(set(names) & set(SCORES)), "direct_attribution" in names, "ablation_effect" in names]

    def options(part: int) -> dict[str, Any]:
        run = RunOptions(progress, check).part(sum(parts[:part]), sum(parts))
        return {"progress": run.progress, "check": run.check}

    def result(*, partial: bool = False, strongest_first: bool = False) -> HeadMeasures:
        return HeadMeasures(
            **read.fields(),
            values=np.stack([by_name[name] for name in names]).astype(np.float64),
            names=names,
            p=p,
            target=token,
            target_token=None if token is None else model.single_token_strings([token])[0],
            provenance=provenance(origin, measures=", ".join(names), **facts),
            partial=partial,
            strongest_first=strongest_first,
        )

    def ablated(part: HeadAblationResult) -> HeadMeasures:
        nonlocal token
        by_name["ablation_effect"], token = part.effect, part.target
        return result(partial=part.partial, strongest_first=part.strongest_first)

    if parts[0]:
        facts |= {"length": length, "sequences": sequences, "seed": seed}
        scores = head_scores(model, length=length, sequences=sequences, seed=seed, **options(0))
        by_name |= {name: getattr(scores, name) for name in SCORES}
    if parts[1]:
        direct = direct_logit_attribution(model, [prompt], target, prepend_bos=prepend_bos, **options(1))
        by_name["direct_attribution"], token, p = direct.heads, direct.targets[0], direct.heads_p
    if not parts[2]:
        return result()
    deliver = None if on_partial is None else lambda part: on_partial(ablated(part))
    asked = target if token is None else token
    return ablated(ablate_heads(model, prompt, asked, prepend_bos=prepend_bos, on_partial=deliver, **options(2)))


def head_measures_cost(
    model: Model, n_tokens: int, measures: Sequence[str], *, length: int = 40, sequences: int = 8
) -> Cost:
    """Forecast of `head_measures` on a prompt of so many tokens, with the BOS.

    Example:
        >>> both = head_measures_cost(model, 9, ["induction", "ablation_effect"]).flops
        >>> both > head_measures_cost(model, 9, ["ablation_effect"]).flops
        True
    """
    costs = [
        Cost(pass_flops(model, n_tokens, n_tokens) + unembedding_flops(model), row_bytes(model, n_tokens, n_tokens))
    ]
    if set(measures) & set(SCORES):
        costs.append(head_scores_cost(model, length=length, sequences=sequences))
    if "ablation_effect" in measures:
        costs.append(ablation_cost(model, n_tokens, ("head",), what="heads"))
    return Cost(flops=sum(cost.flops for cost in costs), bytes=max(cost.bytes for cost in costs))
