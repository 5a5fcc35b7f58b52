"""The effect of removing a set of parts beside the effects of random sets of the same size."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import combinations, product
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from interp_widgets.analysis._core.arrays import Floats
from interp_widgets.analysis._core.checks import check_choice, check_finite, check_range, index
from interp_widgets.analysis._core.chunks import Runner
from interp_widgets.analysis._core.cost import Cost, chunk_bytes, pass_flops
from interp_widgets.analysis._core.prompts import Prompt, read_prompt
from interp_widgets.analysis._core.result import Result, provenance, record, with_axes
from interp_widgets.analysis._core.tables import DataFrame, table
from interp_widgets.analysis._core.tensors import to_numpy, wide_type
from interp_widgets.analysis.ablation.cells import run_cells
from interp_widgets.analysis.ablation.contexts import Ablation, check_kind
from interp_widgets.analysis.ablation.maps import SITES
from interp_widgets.analysis.ablation.metric import Metric, NextTokenMetric, check_metric, next_token_metric
from interp_widgets.analysis.ablation.replacement import ReplacementValues, check_replacement, replacement_values
from interp_widgets.analysis.patching.pairs import Tokens, is_set, one_each
from interp_widgets.arguments import checked
from interp_widgets.models import Model
from interp_widgets.models.chat import PromptInput
from interp_widgets.models.engine import Trace, trace
from interp_widgets.models.patching import Patch, Site

Matched = Literal["layer", "model"]
"""Where random parts come from: the layers of the named ones, or all layers."""


@record
class AblationNullResult(Result):
    """The effect of removing a set of parts together, and those of random sets of the same size.

    Example:
        >>> result = ablation_null(model, "The Eiffel Tower is in the city of", [(0, 1), (1, 2)], draws=20)
        >>> result.null.shape, result.parts, result.drawn[0]
        ((20,), ('head 0.1', 'head 1.2'), ('head 0.5', 'head 1.3'))
    """

    effect: float
    """Metric before minus after removing the named parts together, averaged over the prompts; for ``kl`` the
    divergence."""

    null: Floats = with_axes("draws")
    """The effect of each random set, averaged over the prompts."""

    p: float
    """(1 + random sets whose effect is at least as large) / (1 + draws)."""

    each: Floats = with_axes("prompts")
    """The effect in each prompt."""

    each_null: Floats = with_axes("draws", "prompts")
    """That of each random set."""

    clean: Floats = with_axes("prompts")
    """The metric before; 0 for ``kl``."""

    parts: Sequence[str]
    """The named parts, such as ``head 3.1`` (layer 3, head 1) or ``attn 5 at 2`` (layer 5, position 2)."""

    drawn: Sequence[Sequence[str]] = with_axes("draws")
    """The parts of each random set."""

    possible: int
    """How many different sets there are to draw from, the named one among them."""

    targets: Sequence[int] = with_axes("prompts")
    """Id of the target token of each prompt."""

    target_tokens: Sequence[str] = with_axes("prompts")
    """Its readable text."""

    metric: str = field(kw_only=True)
    """A :data:`Metric`."""

    matched: str = field(kw_only=True)
    """``layer`` or ``model``."""

    @property
    def band(self) -> tuple[float, float]:
        """The middle 95% of the random effects."""
        low, high = np.quantile(self.null, [0.025, 0.975])
        return float(low), float(high)

    def measures(self) -> dict[str, float | int | str | bool | None]:
        """The effect, the mean and the middle 95% of the random ones, and p."""
        low, high = self.band
        return {"effect": self.effect, "null": float(self.null.mean()), "null_low": low, "null_high": high, "p": self.p}

    def to_frame(self) -> DataFrame:
        """One row per set, the named one first: named, parts and effect."""
        named = [True, *[False] * len(self.null)]
        parts = [", ".join(names) for names in (self.parts, *self.drawn)]
        columns = {"named": named, "parts": parts, "effect": np.array([self.effect, *self.null])}
        return table({"set": range(len(named))}, columns).drop(columns="set")


@checked
def ablation_null(
    model: Model,
    prompts: PromptInput | Sequence[PromptInput],
    parts: Sequence[Ablation | Sequence[int]],
    target: Tokens | None = None,
    *,
    metric: Metric = "log_prob",
    foil: Tokens | None = None,
    draws: int = 50,
    matched: Matched = "layer",
    replacement: Literal["zero", "mean"] = "zero",
    reference: Sequence[PromptInput] | None = None,
    prepend_bos: bool | None = None,
    seed: int = 0,
    batch_size: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    check: Callable[[], None] | None = None,
) -> AblationNullResult:
    """Whether removing a set of parts does more than removing as many random ones: a null for an ablation.

    A permutation test: the effect of the named set among those of random other sets of the same size, from the same
    layers, no set twice; of all other sets, where there are no more than ``draws``.

    Args:
        model: what `load_model` returns.
        prompts: one prompt or a list of them; the effect is the mean over them.
        parts: heads as (layer, head), or `Ablation` objects without a value: heads and neurons, at some positions or
            all; or attention, MLP or both at one position each (cells), for which other positions are drawn.
        target: text or id of the next token, one or one for each prompt; by default each prompt's most likely one.
        metric, foil: as in `ablate_modules`.
        draws: most random sets.
        matched: ``"layer"`` for sets with as many parts in each layer, ``"model"`` for parts of any layer.
        replacement: ``"zero"``, or ``"mean"`` over the tokens of the ``reference`` texts.
        reference: texts for ``"mean"``.
        prepend_bos: overrides the model's BOS policy for texts.
        seed: of the draw.
        batch_size: sets per chunk; by default what 60% of the free memory holds.
        progress: called with (done, total) runs after every chunk.
        check: called before every layer of every chunk; raises to cancel.

    Raises:
        ValueError: a part that the model does not have, parts named twice or with a value, parts for which there is no
            other set, a position that a prompt does not have, what `ablate_modules` refuses.

    Source: Permutation p-values should never be zero (Phipson & Smyth 2010), for p; Interpretability in the Wild (Wang
    et al. 2023), section 4 (random sets of heads).

    Example:
        >>> heads = ablate_heads(model, "The capital of France is", " Paris").strongest(3)
        >>> result = ablation_null(model, ["The capital of France is", "The capital of Italy is"], heads, draws=30)
        >>> len(result.null), result.p
        (19, 0.25)
    """
    model.capabilities.require("residual_stream", "ablation_null")
    check_metric(metric, foil if foil is None or isinstance(foil, str | int) else foil[0])
    check_choice("matched", matched, Matched)
    check_choice("replacement", replacement, Literal["zero", "mean"])
    check_replacement(replacement, reference, None)
    check_range("draws", draws)
    several = is_set(prompts)
    listed: Any = prompts if several else [prompts]
    read = [read_prompt(model, prompt, prepend_bos=prepend_bos) for prompt in listed]
    targets = one_each(target, len(read), several, "target")
    foils = one_each(foil, len(read), several, "foil")
    shortest = min(prompt.n_shown for prompt in read)
    named = [_part(model, part, shortest) for part in parts]
    pools = _pools(model, named, matched, shortest)
    possible = math.prod(math.comb(len(pool), count) for pool, count in pools)
    if possible < 2:
        advice = "matched='model' draws from all layers" if matched == "layer" else "name fewer"
        raise ValueError(f"there is only one set of as many such parts, so that none can be drawn: {advice}")
    drawn = _other_sets(pools, named, possible, draws, seed)
    runner = Runner(model, max(len(prompt.ids) for prompt in read), batch_size, check, progress)
    runner.total = len(read) * (1 + len(drawn))
    effects, metrics = [], []
    for prompt, one, other in zip(read, targets, foils, strict=True):
        if check is not None:
            check()
        neurons = {part.layer for one_set in (named, *drawn) for part in one_set if part.kind == "neuron"}
        clean = trace(model, prompt.embeddings(), neurons=tuple(sorted(neurons)))
        measure = next_token_metric(model, clean.hidden, one, metric=metric, foil=other)
        used = {(site, part.layer) for one_set in (named, *drawn) for part in one_set for site in part.sites}
        values = replacement_values(
            prompt, clean, replacement, sorted(used), reference=reference, prepend_bos=prepend_bos, check=check
        )
        effects.append(_effects(prompt, clean, measure, values, [named, *drawn], runner))
        metrics.append(measure)
    each = np.stack(effects, axis=1)
    means = each.mean(1)
    ids = [measure.target for measure in metrics]
    facts: dict[str, Any] = {
        "metric": metric,
        "matched": matched,
        "draws": draws,
        "seed": seed,
        "replacement": replacement,
    }
    facts |= {"prompts": repr(prompts), "parts": str([str(part) for part in named]), "target": str(ids)}
    facts |= {"foil": str([measure.foil for measure in metrics]), "reference": repr(reference)}
    return AblationNullResult(
        effect=float(means[0]),
        null=means[1:],
        p=float((1 + (means[1:] >= means[0]).sum()) / (1 + len(drawn))),
        each=each[0],
        each_null=each[1:],
        clean=np.array([measure.clean for measure in metrics]),
        parts=tuple(map(str, named)),
        drawn=tuple(tuple(map(str, one_set)) for one_set in drawn),
        possible=possible,
        targets=ids,
        target_tokens=tuple(model.token_strings(ids)),
        metric=metric,
        matched=matched,
        provenance=provenance(model.provenance(), bos=read[0].offset == 1, **facts, **runner.log.facts()),
    )


def ablation_null_cost(model: Model, n_tokens: int, *, draws: int) -> Cost:
    """Forecast of `ablation_null` on one prompt of this many tokens.

    Example:
        >>> ablation_null_cost(model, 10, draws=20).flops > ablation_null_cost(model, 10, draws=10).flops
        True
    """
    runs = draws + 2
    return Cost(flops=float(runs * pass_flops(model, n_tokens, n_tokens)), bytes=chunk_bytes(model, runs, n_tokens))


# ---- parts


@dataclass(frozen=True)
class _Part:
    """One part of a model."""

    kind: str
    layer: int
    index: int | None
    positions: tuple[int, ...] | None
    """None for all positions."""

    @property
    def sites(self) -> tuple[Site, ...]:
        return SITES.get(self.kind, (self.kind,))  # type: ignore[arg-type]

    def __str__(self) -> str:
        number = "" if self.index is None else f".{self.index}"
        where = "" if self.positions is None else f" at {', '.join(map(str, self.positions))}"
        return f"{self.kind} {self.layer}{number}{where}"


def _part(model: Model, part: Any, shortest: int) -> _Part:
    """A part as the user gives it, checked against the model and the prompts."""
    if not isinstance(part, Ablation):
        pair = tuple(part)
        if len(pair) != 2:
            raise ValueError(f"a part must be (layer, head) or an Ablation, got {pair}")
        check_kind(model, "head", "ablation_null(parts=[Ablation('head', ...)])")
        layer = index(pair[0], model.n_layers, "layer", f"{model.n_layers}-layer model")
        head = index(pair[1], model.n_heads, "head", f"model of {model.n_heads} heads per layer")
        part = Ablation("head", layer, index=head)
    if part.replacement != "zero":
        raise ValueError("a part has no value of its own here: leave value out, and give replacement= and reference=")
    check_kind(model, part.kind, f"ablation_null(parts=[Ablation({part.kind!r}, ...)])")
    if part.kind not in ("attn", "head") and model.capabilities.attention_only:
        raise ValueError(f"{model.name} has no MLPs, so that it has no {part.kind!r}: name heads or 'attn' instead")
    check_range("layer", part.layer, 0, model.n_layers - 1, f"this {model.n_layers}-layer model")
    if part.index is not None:
        size = model.n_heads if part.kind == "head" else model.d_mlp
        check_range(part.kind, part.index, 0, size - 1, f"this model of {size} {part.kind}s per layer")
    if part.positions is not None:
        check_range("position", max(part.positions), 0, shortest - 1, f"prompts of {shortest} tokens or more")
    return _Part(part.kind, part.layer, part.index, part.positions)


def _pools(model: Model, named: Sequence[_Part], matched: str, shortest: int) -> list[tuple[list[_Part], int]]:
    """Disjoint pools of parts to draw from, and how many come from each."""
    if not named:
        raise ValueError("parts is empty: name at least one")
    if len(set(named)) < len(named):
        twice = next(part for part in named if list(named).count(part) > 1)
        raise ValueError(f"parts must be different, got {twice} twice")
    if {"both"} < {part.kind for part in named} and {"attn", "mlp"} & {part.kind for part in named}:
        raise ValueError("parts of kind 'both' hold attention and MLP: name them as 'attn' and 'mlp', or all as 'both'")
    counts: dict[tuple[Any, ...], int] = {}
    for part in named:
        single = part.index is None and part.positions is not None
        if single and len(part.positions or ()) > 1:
            raise ValueError(f"{part} has several positions: name one part for each position")
        kinds = {other.positions for other in named if other.kind == part.kind}
        whole = None in kinds and len(kinds) > 1
        if whole or (part.index is not None and len(kinds) > 1):
            raise ValueError(
                f"parts of kind {part.kind!r} must be removed at the same positions, got {sorted(map(str, kinds))}"
            )
        key = (part.kind, part.layer if matched == "layer" else None, "cell" if single else part.positions)
        counts[key] = counts.get(key, 0) + 1
    pools = []
    for (kind, layer, positions), count in counts.items():
        layers = range(model.n_layers) if layer is None else [layer]
        numbers: Sequence[int | None] = {"head": range(model.n_heads), "neuron": range(model.d_mlp)}.get(kind, [None])
        places = [(place,) for place in range(shortest)] if positions == "cell" else [positions]
        pools.append(([_Part(kind, *each) for each in product(layers, numbers, places)], count))
    return pools


def _other_sets(
    pools: Sequence[tuple[list[_Part], int]], named: Sequence[_Part], possible: int, draws: int, seed: int
) -> list[list[_Part]]:
    """Different sets other than the named one: random ones, or all where there are no more than ``draws``."""
    if possible - 1 <= draws:
        every = product(*(combinations(pool, count) for pool, count in pools))
        sets = [[part for parts in chosen for part in parts] for chosen in every]
        return [one_set for one_set in sets if set(one_set) != set(named)]
    rng, seen, drawn = np.random.default_rng(seed), {frozenset(named)}, list[list[_Part]]()
    while len(drawn) < draws:
        one_set = [pool[i] for pool, count in pools for i in sorted(rng.choice(len(pool), count, replace=False))]
        if frozenset(one_set) not in seen:
            seen.add(frozenset(one_set))
            drawn.append(one_set)
    return drawn


# ---- the runs


def _effects(
    prompt: Prompt,
    clean: Trace,
    metric: NextTokenMetric,
    values: ReplacementValues,
    sets: Sequence[Sequence[_Part]],
    runner: Runner,
) -> Floats:
    """(sets,) the effect of removing each set together."""
    effects = torch.full((len(sets),), torch.nan, dtype=wide_type(clean.hidden.dtype), device=clean.hidden.device)

    def fed(part: _Part) -> list[int]:
        if part.positions is None:
            return list(range(clean.tokens))
        return [position + prompt.offset for position in part.positions]

    def patches(cells: Tensor) -> list[Patch]:
        rows: dict[tuple[Site, int], list[tuple[int, int, int]]] = {}
        for row, cell in enumerate(cells.tolist()):
            for part in sets[cell]:
                places = [(row, position, part.index or 0) for position in fed(part)]
                for site in part.sites:
                    rows.setdefault((site, part.layer), []).extend(places)
        made = []
        for (site, layer), numbers in rows.items():
            cell, position, number = torch.tensor(numbers).unbind(1)
            made.append(values.patch(site, layer, cell, position, number if site in ("head", "neuron") else None))
        return made

    def first(cell: int) -> int:
        return min(min(fed(part)) for part in sets[cell])

    def write(hidden: Tensor, cells: Tensor) -> None:
        effects[cells] = metric.effects(hidden)[:, 0].to(effects.dtype)

    run_cells(len(sets), clean, runner, patches, first, write)
    check_finite(effects, lambda cell: f"the effect of removing {', '.join(map(str, sets[cell]))}")
    return to_numpy(effects)
