"""Activation patching: values of one run put into another, one layer, head and position at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from interp_widgets.analysis._core.arrays import Floats
from interp_widgets.analysis._core.checks import (
    check_choice,
    check_choices,
    check_finite,
    check_range,
    index,
    layer_indices,
    row_of,
)
from interp_widgets.analysis._core.chunks import Runner
from interp_widgets.analysis._core.cost import Cost, flops_per_token, pass_flops, row_bytes, unembedding_flops
from interp_widgets.analysis._core.prompts import Prompt
from interp_widgets.analysis._core.result import record, with_axes
from interp_widgets.analysis._core.statistics import bootstrap_mean, holm_adjusted, sign_flip_p
from interp_widgets.analysis._core.tables import DataFrame, table
from interp_widgets.analysis._core.tensors import to_numpy, wide_type
from interp_widgets.analysis.ablation.cells import (
    MANY_CHUNKS,
    fewest_tokens,
    first_positions,
    run_cells,
    tokens_recomputed,
)
from interp_widgets.analysis.ablation.estimates import can_estimate
from interp_widgets.analysis.ablation.metric import Metric
from interp_widgets.analysis.patching.estimates import changes
from interp_widgets.analysis.patching.pairs import (
    Alignment,
    Direction,
    MeasuredPair,
    PairsResult,
    PromptPair,
    Tokens,
    fields_of_pairs,
    mean_of,
    read_pairs,
    unaligned,
)
from interp_widgets.arguments import checked
from interp_widgets.models import Model
from interp_widgets.models.capabilities import Capability
from interp_widgets.models.chat import PromptInput
from interp_widgets.models.engine import Trace, expects_runs
from interp_widgets.models.patching import HEAD_INPUTS, Patch, Site

PatchSite = Literal["resid_pre", "attn", "mlp", "head", "head_q", "head_k", "head_v", "pattern"]
"""What is patched: the residual stream entering a layer; the output of its attention or MLP; the output, query, key or
value of one head; the whole attention pattern of one head."""

Method = Literal["exact", "attribution", "attribution_softmax"]
"""``exact``: every cell is patched. ``attribution``: every cell is estimated by a gradient, and some are patched.
``attribution_softmax``: the same, with the exact change of the attention pattern for queries and keys."""

_SITES: dict[str, Site] = {
    "resid_pre": "resid", "attn": "attn", "mlp": "mlp", "head": "head",
    "head_q": "q", "head_k": "k", "head_v": "v", "pattern": "pattern",
}  # fmt: skip
_WITHOUT_HEADS = ("resid_pre", "attn", "mlp")
HEAD_SITES: dict[str, Site] = {name: site for name, site in _SITES.items() if site in HEAD_INPUTS}
"""Those that are kept in a trace only where it is asked for."""
_NEEDS: dict[str, Capability] = {
    "attn": "attention", "mlp": "mlp", "head": "heads",
    "head_q": "head_inputs", "head_k": "head_inputs", "head_v": "head_inputs", "pattern": "pattern_changes",
}  # fmt: skip
_RESAMPLES = 2000
_STRONGEST = 10
"""Cells of each site that are patched first where all are estimated."""
_COLUMNS = 512
"""Cells whose bootstrap means are held at once."""


@record
class ActivationPatchingResult(PairsResult):
    """How much of the answer each patched value brings back, by site, layer, head and position.

    Example:
        >>> result = activation_patching(
        ...     model, "The Eiffel Tower is in the city of", "The Trevi Fountain is in the city of", " Paris",
        ...     alignment=[(-1, -1)],
        ... )
        >>> result.unaligned[:3], result.recovered["resid_pre"].shape
        ((0, 1, 2), (6, 1))
    """

    recovered: Mapping[str, Floats]
    """For each site (patched - corrupted) / (clean - corrupted) of the metric, averaged over the pairs: (layers,
    positions) for ``resid_pre``, ``attn`` and ``mlp``, (layers, heads, positions) for heads, (layers, heads) for
    ``pattern``. Keys and values have one head per key/value head. NaN where clean and corrupted agree to rounding."""

    each: Mapping[str, Floats]
    """The recovered part in every pair, with the pairs in front."""

    low: Mapping[str, Floats]
    """Lower ends of the 95% bootstrap intervals of the means over the pairs; empty for one pair."""

    high: Mapping[str, Floats]
    """Upper ends."""

    layers: Sequence[int] = with_axes("layers")
    """Layer numbers."""

    positions: Sequence[int] = with_axes("positions")
    """Positions in the prompt that is run and patched, without a BOS: the corrupted one when denoising."""

    source_positions: Sequence[int] = with_axes("positions")
    """The positions in the other prompt that the values come from."""

    unaligned: Sequence[int]
    """Positions of the prompt that is run which are aligned with none, so that they are not patched."""

    source_unaligned: Sequence[int]
    """Positions of the other prompt that are aligned with none."""

    prompt_tokens: Sequence[Sequence[str]] = with_axes("pairs")
    """Readable tokens of each prompt that is run, without a BOS."""

    source_tokens: Sequence[Sequence[str]] = with_axes("pairs")
    """Those of the prompts that the values come from."""

    direction: str = field(kw_only=True)
    """``denoising`` or ``noising``."""

    estimated: Mapping[str, Floats] = field(default_factory=dict, kw_only=True)
    """With ``method="attribution"`` the recovered part of every cell to first order; ``recovered`` then has the sampled
    cells only, and NaN for the rest. Empty where every cell was patched, but not in a partial result that is
    `strongest_first`."""

    strongest_first: bool = field(default=False, kw_only=True)
    """Whether the cells of a partial result are patched in the order of these estimates, the largest of each site
    first."""

    missing: int = field(default=0, kw_only=True)
    """Cells of all pairs that a partial result has not computed yet: they are NaN. It has the pairs begun so far."""

    def __post_init__(self) -> None:
        super().__post_init__()
        shape = {"layers": len(self.layers), "positions": len(self.positions), "pairs": len(self.clean)}
        for name in ("recovered", "each", "low", "high", "estimated"):
            maps: Mapping[str, Floats] = getattr(self, name)
            read_only = {}
            for site, values in maps.items():
                axes = (("pairs",) if name == "each" else ()) + self.axes(site)
                array = np.asarray(values).view()
                fits = array.ndim == len(axes) and all(
                    axis not in shape or size == shape[axis] for axis, size in zip(axes, array.shape, strict=True)
                )
                if not fits:
                    raise ValueError(f"{type(self).__name__}.{name}[{site!r}] must have axes {axes}, got {array.shape}")
                array.flags.writeable = False
                read_only[site] = array
            object.__setattr__(self, name, read_only)

    @property
    def sites(self) -> tuple[str, ...]:
        """What was patched."""
        return tuple(self.recovered)

    @property
    def n_pairs(self) -> int:
        """Number of pairs of prompts."""
        return len(self.clean)

    @property
    def tokens(self) -> tuple[str, ...]:
        """(positions,) readable tokens of the first pair's prompt at the positions of the maps."""
        return tuple(self.prompt_tokens[0][position] for position in self.positions)

    @staticmethod
    def axes(site: str) -> tuple[str, ...]:
        """The names of a site's axes; queries, outputs and patterns have a head, keys and values a key/value head.

        >>> ActivationPatchingResult.axes("head_k")
        ('layers', 'key/value heads', 'positions')
        """
        check_choice("site", site, PatchSite)
        if site in _WITHOUT_HEADS:
            return "layers", "positions"
        if site == "pattern":
            return "layers", "heads"
        return "layers", "key/value heads" if site in ("head_k", "head_v") else "heads", "positions"

    def strongest(self, site: str, count: int = 1, *, estimated: bool = False) -> tuple[tuple[int, ...], ...]:
        """(layer, position), (layer, head, position) or (layer, head) of the cells of a site that recover most, of
        those that were patched or of all by their estimates."""
        values = self._of(site)
        values = self._estimates(site) if estimated else values
        flat = values.ravel()
        order = [int(i) for i in np.argsort(-flat, kind="stable") if np.isfinite(flat[i])][:count]
        labels = [self._labels(axis, size) for axis, size in zip(self.axes(site), values.shape, strict=True)]
        cells = (np.unravel_index(i, values.shape) for i in order)
        return tuple(tuple(names[int(k)] for names, k in zip(labels, cell, strict=True)) for cell in cells)

    def correlation(self, site: str) -> float:
        """Pearson's correlation of the estimates of a site with what patching its sampled cells recovers; NaN where one
        of them does not vary.

        Raises ValueError where nothing was estimated.
        """
        real = self._of(site).ravel()
        pairs = np.stack([self._estimates(site).ravel(), real])[:, np.isfinite(real)]
        if pairs.shape[1] < 3 or not pairs.std(1).all():
            return float("nan")
        return float(np.corrcoef(pairs)[0, 1])

    def _of(self, site: str) -> Floats:
        if site not in self.recovered:
            names = ", ".join(map(repr, self.recovered))
            raise ValueError(f"site must be one of {names}, which were patched, got {site!r}")
        return self.recovered[site]

    def _estimates(self, site: str) -> Floats:
        if not self.estimated:
            raise ValueError("every cell was patched, so that there is no estimate: compute with method='attribution'")
        return self.estimated[site]

    def _labels(self, axis: str, size: int) -> tuple[int, ...]:
        return {"layers": tuple(self.layers), "positions": tuple(self.positions)}.get(axis, tuple(range(size)))

    def test(
        self, cells: Sequence[Sequence[str | int]] | None = None, *, resamples: int = 9999, seed: int = 0
    ) -> DataFrame:
        """Whether named cells recover anything: mean, 95% interval, permutation p, and p corrected by Holm's method.

        The permutation test flips the signs of the pairs; Holm's correction is over the cells of the table. Cells that
        were picked because they are large in this very map need the correction over all cells, the default.

        Args:
            cells: (site, layer, position), (site, layer, head, position) or ("pattern", layer, head) each; all by
                default.
            resamples: sign flips drawn where there are more; with few pairs every one is used.
            seed: of the draw.

        Raises:
            ValueError: a result of one pair, or a cell that was not computed.
        """
        known = self._known()
        rows, values = list[tuple[Any, ...]](), []
        for site, where in self._cells(cells):
            axes = self.axes(site)
            labels = [self._labels(axis, size) for axis, size in zip(axes, self._of(site).shape, strict=True)]
            at = tuple(
                row_of(number, names, axis.removesuffix("s"))
                for axis, number, names in zip(axes, where, labels, strict=True)
            )
            label = {axis: names[i] for axis, names, i in zip(axes, labels, at, strict=True)}
            head = label.get("heads", label.get("key/value heads", -1))
            rows.append((site, label["layers"], head, label.get("positions", -1), self.recovered[site][at],
                         self.low[site][at], self.high[site][at]))  # fmt: skip
            if self.estimated and np.isnan(self.recovered[site][at]):
                raise ValueError(
                    f"{site!r} at {where} was estimated, not patched, and an estimate is not tested: compute it with "
                    "method='exact'"
                )
            values.append([one[at] for one in self.each[site]])
        p = sign_flip_p(np.stack(values, axis=1)[known], resamples=resamples, seed=seed)
        heading = ("site", "layer", "head", "position", "recovered", "low", "high")
        columns = {**dict(zip(heading, zip(*rows, strict=True), strict=True)), "p": p, "holm_p": holm_adjusted(p)}
        return table({"cell": range(len(rows))}, columns).drop(columns="cell")

    def holm_p(self, site: str, *, resamples: int = 9999, seed: int = 0) -> Floats:
        """The p-values of `test` for every cell of one site, in the axes of its map, corrected over these cells.

        Raises ValueError for a result of one pair.
        """
        values = self._of(site)
        return holm_p(self.each[site][self._known()], resamples=resamples, seed=seed).reshape(values.shape)

    def _known(self) -> list[int]:
        """The pairs in which clean and corrupted differ; ValueError for fewer than two."""
        known = [number for number in range(self.n_pairs) if number not in self.undefined]
        if len(known) < 2:
            raise ValueError(
                f"a test needs several pairs of prompts with different metrics, this result has {len(known)}: give "
                "lists of prompts"
            )
        return known

    def _cells(self, cells: Sequence[Sequence[str | int]] | None) -> list[tuple[str, tuple[int, ...]]]:
        if cells is None:
            return [
                (site, cell) for site, values in self.recovered.items() for cell in self.strongest(site, values.size)
            ]
        named = []
        for cell in cells:
            site, *where = cell
            wanted = self.axes(str(site)) if site in self.recovered else self._of(str(site))
            if len(where) != len(wanted):
                raise ValueError(f"a cell of {site!r} must be (site, {', '.join(map(str, wanted))}), got {tuple(cell)}")
            named.append((str(site), tuple(int(number) for number in where)))
        if not named:
            raise ValueError("cells is empty: name at least one, or None for all")
        return named

    def measures(self) -> dict[str, float | int | str | bool | None]:
        """For each site the largest recovered part with its layer, head and token (NaN and "" where nothing is
        defined); the metric in both runs; for estimates their correlation with the sampled patches."""
        row: dict[str, float | int | str | bool | None] = {"answer_token": self.answer_tokens[0]}
        for site, values in self.recovered.items():
            best = self.strongest(site)
            at = dict(zip(self.axes(site), best[0], strict=True)) if best else {}
            row[f"{site}_recovered"] = float(np.nanmax(values)) if best else float("nan")
            for axis in self.axes(site):
                if axis == "positions":
                    row[f"{site}_token"] = self.prompt_tokens[0][at[axis]] if best else ""
                else:
                    row[f"{site}_{'layer' if axis == 'layers' else 'head'}"] = at.get(axis, float("nan"))
        row |= {f"{site}_correlation": self.correlation(site) for site in self.estimated}
        return row | {"clean": float(self.clean.mean()), "corrupted": float(self.corrupted.mean())}

    def to_frame(self) -> DataFrame:
        """One row per cell: site, layer, head (-1 for sites without), position and token (-1 and "" for a whole
        pattern), recovered, its interval over several pairs, and the estimate if there is one."""
        import pandas as pd

        frames = []
        for site, values in self.recovered.items():
            axes = dict(zip(self.axes(site), values.shape, strict=True))
            heads = axes.get("heads", axes.get("key/value heads"))
            labels = {
                "site": [site],
                "layer": self.layers,
                "head": [-1] if heads is None else range(heads),
                "position": self.positions if "positions" in axes else [-1],
            }
            shape = tuple(map(len, labels.values()))
            columns: dict[str, Any] = {"token": self.tokens if "positions" in axes else [""]}
            columns["recovered"] = values.reshape(shape)
            if self.low:
                columns |= {"low": self.low[site].reshape(shape), "high": self.high[site].reshape(shape)}
            if self.estimated:
                columns["estimated"] = self.estimated[site].reshape(shape)
            frames.append(table(labels, columns))
        return pd.concat(frames, ignore_index=True)


def holm_p(each: Floats, *, resamples: int = 9999, seed: int = 0) -> Floats:
    """Permutation p-values of the means over the first axis, corrected by Holm's method over all other cells."""
    p = sign_flip_p(each.reshape(len(each), -1), resamples=resamples, seed=seed)
    return np.asarray(holm_adjusted(p)).reshape(each.shape[1:])


@checked
def activation_patching(
    model: Model,
    clean: PromptInput | Sequence[PromptInput],
    corrupted: PromptInput | Sequence[PromptInput],
    answer: Tokens | None = None,
    *,
    foil: Tokens | None = None,
    sites: Sequence[PatchSite] | PatchSite = ("resid_pre", "attn", "mlp"),
    direction: Direction = "denoising",
    metric: Metric = "logit_difference",
    layers: Sequence[int] | None = None,
    positions: Sequence[int] | str | None = None,
    alignment: Sequence[Sequence[int]] | Literal["ends"] | None = None,
    method: Method = "exact",
    sample: int = 50,
    prepend_bos: bool | None = None,
    seed: int = 0,
    batch_size: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    check: Callable[[], None] | None = None,
    on_partial: Callable[[ActivationPatchingResult], None] | None = None,
) -> ActivationPatchingResult:
    """How much of the answer comes back when one value of a clean run is put into a corrupted run.

    Also called activation patching, causal mediation, or an interchange intervention; by direction, denoising (clean
    values into the corrupted run) or noising (corrupted values into the clean run); estimated by gradients, attribution
    patching.

    The result is (patched - corrupted) / (clean - corrupted) of the metric: 1 where the patched run answers as the
    clean one does, 0 where it answers as the corrupted one. Noising reads the same way: 1 means that nothing is lost.

    Args:
        model: what `load_model` returns.
        clean, corrupted: text, token ids or the messages of a chat; or lists of them, for means over pairs.
        answer: text or id of the token that follows the clean prompt; one for all pairs, or one for each; by default
            the token that each clean prompt is most likely followed by.
        foil: text or id of the token whose logit ``"logit_difference"`` subtracts; by default the token that the
            corrupted prompt is most likely followed by.
        sites: which of ``"resid_pre"``, ``"attn"``, ``"mlp"`` (one cell per layer and position), ``"head"``,
            ``"head_q"``, ``"head_k"``, ``"head_v"`` (one per layer, head and position) and ``"pattern"`` (one per layer
            and head, all positions at once). Queries and keys are those before rotary embeddings. Where several heads
            share keys and values (grouped queries), there is one cell per key/value head.
        direction: ``"denoising"`` or ``"noising"``.
        metric: ``"logit_difference"``, ``"logit"``, ``"log_prob"``, ``"probability"`` of the answer, or ``"kl"``, the
            divergence from the clean prompt's next-token distribution.
        layers: which ones, all by default; negative ones count from the end.
        positions: which ones of the prompt that is run (the corrupted one when denoising), all aligned ones by default:
            ``"last"``, words of that prompt, or numbers.
        alignment: pairs of (position in clean, position in corrupted) that belong together, needed where the prompts
            have different numbers of tokens; or ``"ends"``: equal tokens at the start, then token by token from the
            end. Other positions are not patched; the result lists them in ``unaligned``.
        method: ``"exact"`` patches every cell. ``"attribution"`` (attribution patching) estimates every cell by the
            metric's gradient in the run that is patched, in two forward passes and a backward one, and patches
            ``sample`` random cells of each site to show how good the estimate is (``correlation``). A gradient
            is wrong where the patch moves a softmax or a norm far; see `ActivationPatchingResult.estimated`.
            ``"attribution_softmax"`` (AtP*) takes the gradient of ``head_q`` and ``head_k`` behind the softmax, whose
            pattern it computes exactly, in one or two more passes; the rest is as with ``"attribution"``.
        sample: how many cells of each site are patched beside the estimates, at least 3.
        prepend_bos: overrides the model's BOS policy for texts. No axis of the result has the BOS.
        seed: of the bootstrap over pairs, and of the sample.
        batch_size: cells per chunk; by default what 60% of the free memory holds.
        progress: called with (done, total) cells after every chunk.
        check: called before every layer of every chunk; raises to cancel.
        on_partial: receives a partial result a few times, NaN where nothing is computed yet, which it counts. In a long
            run all cells of the first pair are estimated, and the largest of each site are patched first.

    Raises:
        ValueError: equal prompts, prompts of different lengths without an alignment, an answer or foil of several
            tokens or both the same, a layer or position out of range, a site that the model does not have, numbers that
            are not finite.
        MemoryError: a single sequence does not fit.

    Source: Locating and Editing Factual Associations in GPT (Meng et al. 2022), section 2; Towards Best Practices of
    Activation Patching (Zhang & Nanda 2024); How to use and interpret activation patching (Heimersheim & Nanda 2024);
    Attribution Patching Outperforms Automated Circuit Discovery (Syed et al. 2024), section 2, for the estimate; AtP*
    (Kramár et al. 2024), section 3.1, for queries and keys.

    Example:
        >>> clean, corrupted = "The capital of France is", "The capital of Italy is"
        >>> result = activation_patching(model, clean, corrupted, " Paris", foil=" Rome", sites=["resid_pre", "head"])
        >>> result.recovered["resid_pre"].shape, result.recovered["head"].shape
        ((6, 5), (6, 6, 5))
    """
    names = check_choices("sites", sites, PatchSite)
    check_choice("direction", direction, Direction)
    check_choice("method", method, Method)
    check_range("sample", sample, 3)
    check_sites(model, names)
    at_layers = layer_indices(model, layers)
    pairs = read_pairs(model, clean, corrupted, answer, foil, metric, prepend_bos)
    patched = _PatchedPositions.of(pairs, alignment, direction, positions, whole="pattern" in names)
    runner = Runner(model, len(patched.run.ids), batch_size, check, progress, fewest_tokens=fewest_tokens(model))
    facts: dict[str, Any] = {"direction": direction, "sites": ", ".join(names), "seed": seed}
    facts |= {"clean": repr(clean), "corrupted": repr(corrupted), "layers": str(at_layers)}
    facts |= {"positions": str(patched.positions), "alignment": str(alignment), "method": method}
    sampled = None if method == "exact" else sample
    facts |= {} if sampled is None else {"sample": sample}
    softmax = method == "attribution_softmax"
    patching = _PatchingRun(model, names, at_layers, patched, direction, metric, seed, sampled, runner, softmax)
    return patching.run(pairs, facts, on_partial)


def ordered(clean: Any, corrupted: Any, direction: str) -> tuple[Any, Any]:
    """What is run, and what the values come from."""
    return (corrupted, clean) if direction == "denoising" else (clean, corrupted)


def cell_patch(
    model: Model, site: str, source: Trace, layer: int, head: int | None, fed: int, taken: int
) -> Patch:  # fmt: skip
    """The patch of one cell: its value at the fed position ``taken`` of the source goes to ``fed``.

    Raises ValueError for a layer or head that the model does not have.
    """
    layer = index(layer, model.n_layers, "layer", f"{model.n_layers}-layer model")
    value = source.value(_SITES[site], layer)[0]
    row = torch.zeros(1, dtype=torch.long)
    if site in _WITHOUT_HEADS:
        if head is not None:
            raise ValueError(f"{site!r} has no heads: leave head out, or use a site with heads")
        return Patch(_SITES[site], layer, value[[taken]], torch.tensor([fed]), row)
    if head is None:
        raise ValueError(f"{site!r} needs a head: give head=")
    shared = site in ("head_k", "head_v")
    count, what = (model.n_kv_heads, "key/value head") if shared else (model.n_heads, "head")
    head = index(head, count, what, f"model of {count} {what}s per layer")
    if site == "pattern":
        at = torch.arange(len(value))
        zeros = torch.zeros_like(at)
        return Patch("pattern", layer, value[at, head], at, zeros, torch.full_like(at, head))
    return Patch(_SITES[site], layer, value[[taken], head], torch.tensor([fed]), row, torch.tensor([head]))


def possible_sites(model: Model) -> tuple[str, ...]:
    """The sites that a model has and lets be patched."""
    has = model.capabilities
    return tuple(
        site
        for site in _SITES
        if (site not in _NEEDS or getattr(has, _NEEDS[site])) and not (site == "mlp" and has.attention_only)
    )


def check_sites(model: Model, names: Sequence[str]) -> None:
    """ValueError if a model lacks what is to be patched."""
    model.capabilities.require("residual_stream", "activation_patching")
    if "mlp" in names and model.capabilities.attention_only:
        raise ValueError(f"{model.name} has no MLPs: leave 'mlp' out of sites")
    for name in names:
        if name in _NEEDS:
            caller = f"activation_patching(sites=({name!r},))"
            model.capabilities.require(_NEEDS[name], caller, "use sites=('resid_pre',)")


def _intervals(each: Mapping[str, Floats], seed: int) -> tuple[dict[str, Floats], dict[str, Floats]]:
    """Both ends of the bootstrap intervals of the means over pairs; NaN where fewer than two pairs are defined."""
    ends: tuple[dict[str, Floats], dict[str, Floats]] = ({}, {})
    for name, values in each.items():
        rows = values.reshape(len(values), -1)
        rows = rows[~np.isnan(rows).all(1)]
        both = np.full((2, rows.shape[1]), np.nan)
        if len(rows) > 1:
            for start in range(0, rows.shape[1], _COLUMNS):
                part = slice(start, start + _COLUMNS)
                both[:, part] = bootstrap_mean(rows[:, part], resamples=_RESAMPLES, seed=seed)
        for end, numbers in zip(ends, both, strict=True):
            end[name] = numbers.reshape(values.shape[1:])
    return ends


# ---- the runs


@dataclass(frozen=True)
class _PatchedPositions:
    """Where every pair is patched: positions without a BOS, the same in all pairs."""

    run: Prompt
    """The first pair's prompt that is run."""
    positions: tuple[int, ...]
    """Those of it that are patched."""
    sources: tuple[int, ...]
    """Those of the other prompt that the values come from."""
    unaligned: tuple[int, ...]
    """Those of the prompt that is run which are aligned with none."""
    source_unaligned: tuple[int, ...]
    """Those of the other prompt."""

    @staticmethod
    def of(
        pairs: Sequence[PromptPair],
        alignment: Sequence[Sequence[int]] | Literal["ends"] | None,
        direction: Direction,
        positions: Sequence[int] | str | None,
        *,
        whole: bool,
    ) -> _PatchedPositions:
        """The named positions, all aligned ones for None; ``whole`` patterns need prompts of one length.

        Raises ValueError for a position that is out of range or aligned with none.
        """
        aligned, source_aligned = Alignment.of_all(pairs, alignment).into(direction)
        run, source = ordered(pairs[0].clean, pairs[0].corrupted, direction)
        if whole and len(run.ids) != len(source.ids):
            raise ValueError(
                "an attention pattern can only be patched between prompts of one length: leave 'pattern' out"
            )
        chosen = aligned if positions is None else run.positions(positions)
        for position in chosen:
            if position not in aligned:
                raise ValueError(f"position {position} is aligned with none in the other prompt: add it to alignment")
        sources = tuple(source_aligned[aligned.index(position)] for position in chosen)
        return _PatchedPositions(run, chosen, sources, unaligned(run, aligned), unaligned(source, source_aligned))


@dataclass(frozen=True)
class _PatchingRun:
    """What is patched, in every pair, and the values of the metric so far."""

    model: Model
    sites: tuple[str, ...]
    layers: tuple[int, ...]
    patched: _PatchedPositions
    direction: Direction
    metric: Metric
    seed: int
    """Of the bootstrap over pairs, and of the sample."""
    sample: int | None
    """Cells of each site that are patched beside the estimates; None where every cell is patched."""
    runner: Runner
    through_softmax: bool = False
    """Whether estimates of queries and keys take the exact change of the pattern."""
    measured: list[MeasuredPair] = field(default_factory=list)
    """The pairs that have been begun."""
    values: list[dict[str, Tensor]] = field(default_factory=list)
    """For each of them and each site (layers, cells of a layer) the metric with that cell patched, NaN before."""
    estimates: list[dict[str, Tensor]] = field(default_factory=list)
    """For each of them the metric with every cell patched, to first order; empty where every cell is patched."""

    def run(
        self,
        pairs: Sequence[PromptPair],
        facts: Mapping[str, Any],
        on_partial: Callable[[ActivationPatchingResult], None] | None,
    ) -> ActivationPatchingResult:
        """Patch the cells of every pair; ``facts`` go into the provenance."""
        self.runner.total = len(pairs) * (sum(map(len, self.sampled.values())) or self.cells)
        if on_partial is not None:
            self.runner.deliver = lambda: on_partial(self._result(facts, partial=True))
        for pair in pairs:
            self._measure(pair)
        return self._result(facts)

    def heads(self, site: str) -> int:
        """Heads of a site; 1 for one without heads."""
        if site in _WITHOUT_HEADS:
            return 1
        return self.model.n_kv_heads if site in ("head_k", "head_v") else self.model.n_heads

    def shape(self, site: str) -> tuple[int, ...]:
        """The cells of one layer: positions and heads."""
        return (1 if site == "pattern" else len(self.patched.positions)), self.heads(site)

    @property
    def cells(self) -> int:
        """Cells of one pair."""
        return len(self.layers) * sum(int(np.prod(self.shape(site))) for site in self.sites)

    @cached_property
    def sampled(self) -> dict[str, Tensor]:
        """For each site the numbers of its random cells, all layers one after the other; empty for every cell."""
        if self.sample is None:
            return {}
        rng = np.random.default_rng(self.seed)
        counts = {site: len(self.layers) * int(np.prod(self.shape(site))) for site in self.sites}
        return {
            site: torch.from_numpy(np.sort(rng.permutation(count)[: self.sample])).long()
            for site, count in counts.items()
        }

    def _measure(self, pair: PromptPair) -> None:
        """Run both prompts of a pair, estimate all cells if only some are patched or some first, and patch cells."""
        inside = tuple(HEAD_SITES[site] for site in self.sites if site in HEAD_SITES)
        both = pair.measured(self.model, self.metric, inside, check=self.runner.check)
        ordered_first = self._strongest_first(both)
        if self.sampled or ordered_first:
            self.estimates.append(self._estimate(both))
        kind, device, rows = wide_type(self.model.dtype), self.model.device, len(self.layers)
        self.measured.append(both)
        self.values.append(
            {
                site: torch.full((rows, int(np.prod(self.shape(site)))), torch.nan, dtype=kind, device=device)
                for site in self.sites
            }
        )
        values = self.values[-1]
        if not ordered_first:
            for site in self.sites:
                self._patch(site, both, values[site], self.sampled.get(site))
            return
        value = both.corrupted_value if self.direction == "denoising" else both.clean_value
        order = {
            site: (estimated - value).abs().flatten().argsort(descending=True, stable=True).cpu()
            for site, estimated in self.estimates[-1].items()
        }
        for part in (slice(0, _STRONGEST), slice(_STRONGEST, None)):
            if self.runner.deliver is not None:
                self.runner.deliver()
            for site in self.sites:
                self._patch(site, both, values[site], order[site][part].sort().values)
        self.estimates.clear()

    def _strongest_first(self, pair: MeasuredPair) -> bool:
        """Whether the cells of a pair are estimated before they are patched: of the first pair of a long run."""
        if self.sampled or self.measured or self.runner.deliver is None:
            return False
        long = self.cells > MANY_CHUNKS * self.runner.size(self.runner.length)
        return long and can_estimate(self.model, pair.metric, self.runner.length)

    def _estimate(self, pair: MeasuredPair) -> dict[str, Tensor]:
        """For each site (layers, cells of a layer) the metric with that cell patched, to first order."""
        run_prompt, source_prompt = ordered(pair.pair.clean, pair.pair.corrupted, self.direction)
        value = pair.corrupted_value if self.direction == "denoising" else pair.clean_value
        fed, taken = self._cell_positions(run_prompt, source_prompt)
        if self.runner.check is not None:
            self.runner.check()
        moved = changes(
            self.model, run_prompt.ids, source_prompt.ids, pair.metric,
            {_SITES[site]: self.heads(site) for site in self.sites}, self.layers, fed, taken,
            through_softmax=self.through_softmax,
        )  # fmt: skip
        estimated = {site: value + moved[_SITES[site]].flatten(1) for site in self.sites}
        for site, values in estimated.items():
            check_finite(values, lambda layer, _, site=site: f"the estimate of {site!r} in layer {self.layers[layer]}")
        return estimated

    def _cell_positions(self, run: Prompt, source: Prompt) -> tuple[Tensor, Tensor]:
        """(positions,) the positions in both runs with the BOS, in the order in which cells run."""
        fed, taken = (torch.tensor(each)[self._order] for each in (self.patched.positions, self.patched.sources))
        return fed + run.offset, taken + source.offset

    def _result(self, facts: Mapping[str, Any], *, partial: bool = False) -> ActivationPatchingResult:
        """The result so far: means over the pairs that have been begun, and intervals once all are done."""
        measured, patched = self.measured, self.patched
        each = self._stacked(self.values)
        estimated = self._stacked(self.estimates) if self.estimates else {}
        low, high = _intervals(each, self.seed) if len(measured) > 1 and not partial else ({}, {})
        both_ways = [ordered(both.pair.clean, both.pair.corrupted, self.direction) for both in measured]
        return ActivationPatchingResult(
            estimated={site: mean_of(values) for site, values in estimated.items()},
            recovered={site: mean_of(values) for site, values in each.items()},
            each=each,
            low=low,
            high=high,
            layers=self.layers,
            positions=patched.positions,
            source_positions=patched.sources,
            unaligned=patched.unaligned,
            source_unaligned=patched.source_unaligned,
            prompt_tokens=tuple(run.tokens() for run, _ in both_ways),
            source_tokens=tuple(source.tokens() for _, source in both_ways),
            direction=self.direction,
            missing=self.runner.total - self.runner.done,
            strongest_first=bool(estimated) and not self.sampled,
            partial=partial,
            **fields_of_pairs(self.runner, measured, {"bos": patched.run.offset == 1, **facts}),
        )

    def _stacked(self, values: Sequence[Mapping[str, Tensor]]) -> dict[str, Floats]:
        """The recovered part by site, with the pairs in front of the axes of the result."""
        back = np.argsort(self._order)
        maps: dict[str, Floats] = {}
        for site in self.sites:
            shape = (len(self.layers), *self.shape(site))
            found = np.stack(
                [
                    to_numpy(pair.share(of_pair[site])).reshape(shape)
                    for pair, of_pair in zip(self.measured, values, strict=True)
                ]
            )
            if site == "pattern":
                maps[site] = np.ascontiguousarray(found[:, :, 0])
                continue
            by_head = found[:, :, back].swapaxes(2, 3)
            maps[site] = np.ascontiguousarray(by_head[:, :, 0] if site in _WITHOUT_HEADS else by_head)
        return maps

    @property
    def _order(self) -> NDArray[np.intp]:
        """Cells run in the order of their positions: a chunk is computed from its first position on."""
        return np.argsort(self.patched.positions, kind="stable")

    def _patch(self, site: str, pair: MeasuredPair, values: Tensor, only: Tensor | None) -> None:
        run, source = ordered(pair.clean, pair.corrupted, self.direction)
        run_prompt, source_prompt = ordered(pair.pair.clean, pair.pair.corrupted, self.direction)
        fed, taken = self._cell_positions(run_prompt, source_prompt)
        count, heads = self.shape(site)
        every = torch.arange(values.numel()) if only is None else only
        for number, (row, layer) in enumerate(zip(values, self.layers, strict=True)):
            mine = every[every // (count * heads) == number] % (count * heads)
            if not len(mine):
                continue
            value = source.value(_SITES[site], layer)[0]

            def patches(cells: Tensor, layer: int = layer, value: Tensor = value, mine: Tensor = mine) -> list[Patch]:
                rows, cells = torch.arange(len(cells)), mine[cells]
                if site == "pattern":
                    attending = torch.arange(len(value))
                    rows, at = rows.repeat_interleave(len(value)), attending.repeat(len(cells))
                    head = cells[rows]
                    return [Patch("pattern", layer, value[at, head], at, rows, head)]
                number, head = cells // heads, cells % heads
                if site in _WITHOUT_HEADS:
                    return [Patch(_SITES[site], layer, value[taken[number]], fed[number], rows)]
                return [Patch(_SITES[site], layer, value[taken[number], head], fed[number], rows, head)]

            def first(cell: int, mine: Tensor = mine) -> int:
                return 0 if site == "pattern" else int(fed[mine[cell] // heads])

            def write(hidden: Tensor, cells: Tensor, row: Tensor = row, mine: Tensor = mine) -> None:
                row[mine[cells]] = pair.read(hidden, run).to(row.dtype)

            run_cells(len(mine), run, self.runner, patches, first, write)
        if only is not None:
            check_finite(values.flatten()[only], f"the metric with {site!r} patched")
            return
        check_finite(values, lambda layer, cell: f"the metric with {site!r} of layer {self.layers[layer]} patched")


# ---- cost


def activation_patching_cost(
    model: Model,
    n_tokens: int,
    sites: Sequence[PatchSite] | PatchSite = ("resid_pre", "attn", "mlp"),
    *,
    layers: Sequence[int] | None = None,
    positions: Sequence[int] | None = None,
    pairs: int = 1,
    metric: Metric = "logit_difference",
    method: Method = "exact",
    sample: int = 50,
) -> Cost:
    """Operations and peak bytes of `activation_patching` for prompts of n_tokens.

    Args:
        model: a `Model`.
        n_tokens: tokens that the model is fed, with the BOS, in the run that is patched.
        sites: which ones.
        layers: all by default.
        positions: of the fed tokens, all by default.
        pairs: how many pairs of prompts.
        metric: ``logit_difference`` needs two rows of the unembedding, the others all.
        method, sample: as in `activation_patching`.

    It never waits for the model: before the first pass, the faster route is expected to be usable.

    Example:
        >>> round(activation_patching_cost(model, 32).flops / 1e9, 1)
        25.7
    """
    names = check_choices("sites", sites, PatchSite)
    estimated = method != "exact"
    chosen = range(model.n_layers) if layers is None else [layer % model.n_layers for layer in layers]
    axis = range(int(model.prepend_bos), n_tokens) if positions is None else [at % n_tokens for at in sorted(positions)]
    runs, passed, cells = expects_runs(model), 0.0, 0.0
    for site in names:
        heads = 1 if site in _WITHOUT_HEADS else model.n_kv_heads if site in ("head_k", "head_v") else model.n_heads
        whole = site == "pattern"
        begins = first_positions(model, n_tokens, [at for at in ([0] if whole else axis) for _ in range(heads)])
        every = len(begins) * len(chosen)
        patched = min(1.0, sample / max(1, every)) if estimated else 1.0  # of the cells, at random
        cells += patched * every
        for layer in chosen:
            rows = n_tokens if whole else 1
            passed += patched * sum(tokens_recomputed(model, n_tokens, layer, at, rows, runs) for at in begins)
    unembedding = 4.0 * model.d_model if runs.native and metric == "logit_difference" else unembedding_flops(model)
    flops = 2 * n_tokens * flops_per_token(model) + pass_flops(model, passed / model.n_layers, 2 * n_tokens)
    if estimated:  # two runs and a gradient; behind the softmax a pass for queries and two for keys
        behind = ("head_q" in names) + 2 * ("head_k" in names) if method == "attribution_softmax" else 0
        flops += (4 + behind) * pass_flops(model, n_tokens, n_tokens)
    kept = n_tokens * model.n_layers * (5 * model.d_model + 3 * model.n_heads * model.d_head) * model.dtype.itemsize
    batch = max(1.0, 1024 / n_tokens)
    logits = 8.0 * min(2**22, cells * model.d_vocab)
    return Cost(
        flops=float(pairs * (flops + cells * unembedding)),
        bytes=float(batch * row_bytes(model, n_tokens, n_tokens) + 2 * pairs * kept + logits),
    )
