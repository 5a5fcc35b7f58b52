"""Ablation maps: the effect on the next token when modules, heads or neurons are removed one at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from einops import rearrange
from torch import Tensor

from interp_widgets.analysis._core.arrays import Floats
from interp_widgets.analysis._core.checks import (
    check_choices,
    check_finite,
    check_range,
    layer_index,
    layer_indices,
    neuron_indices,
)
from interp_widgets.analysis._core.chunks import Runner
from interp_widgets.analysis._core.cost import (
    Cost,
    flops_per_token,
    pass_flops,
    row_bytes,
    unembedding_flops,
)
from interp_widgets.analysis._core.prompts import Prompt, read_prompt
from interp_widgets.analysis._core.result import Result, provenance
from interp_widgets.analysis._core.run import Check, Progress
from interp_widgets.analysis._core.tensors import to_numpy, wide_type
from interp_widgets.analysis.ablation.cells import (
    MANY_CHUNKS,
    STRONGEST,
    fewest_tokens,
    first_positions,
    run_cells,
    strongest_first,
    tokens_recomputed,
)
from interp_widgets.analysis.ablation.contexts import check_kind
from interp_widgets.analysis.ablation.estimates import Estimate, can_estimate, estimate, gradients_of
from interp_widgets.analysis.ablation.map_results import AblationResult, HeadAblationResult, NeuronAblationResult
from interp_widgets.analysis.ablation.metric import Metric, NextTokenMetric, check_metric, next_token_metric
from interp_widgets.analysis.ablation.random_changes import in_random_directions
from interp_widgets.analysis.ablation.replacement import (
    Replacement,
    ReplacementValues,
    SiteOfLayer,
    check_replacement,
    replacement_values,
)
from interp_widgets.arguments import checked
from interp_widgets.models import Model
from interp_widgets.models.chat import PromptInput
from interp_widgets.models.engine import Trace, expects_runs, trace
from interp_widgets.models.patching import Patch, Site

R = TypeVar("R", bound=Result)

Kind = Literal["attn", "mlp", "both", "attn_to_mlp"]
"""What is removed at one layer and position."""

SITES: dict[str, tuple[Site, ...]] = {
    "attn": ("attn",),
    "mlp": ("mlp",),
    "both": ("attn", "mlp"),
    "attn_to_mlp": ("attn_to_mlp",),
}


@checked
def ablate_modules(
    model: Model,
    prompt: PromptInput,
    target: str | int | None = None,
    *,
    kinds: Sequence[Kind] = ("attn", "mlp", "both", "attn_to_mlp"),
    layers: Sequence[int] | None = None,
    positions: Sequence[int] | str | None = None,
    replacement: Replacement = "zero",
    reference: Sequence[PromptInput] | None = None,
    pooled: bool = True,
    corrupted: PromptInput | None = None,
    metric: Metric = "log_prob",
    foil: str | int | None = None,
    draws: int = 0,
    compared: int | None = None,
    seed: int = 0,
    prepend_bos: bool | None = None,
    batch_size: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    check: Callable[[], None] | None = None,
    on_partial: Callable[[AblationResult], None] | None = None,
) -> AblationResult:
    """Effect (kinds, layers, positions) on the next token when a module is removed at one layer and position.

    Also called zero, mean or resample ablation by ``replacement``; with the values of a corrupted prompt
    (``corrupted=``), activation patching, or an interchange intervention.

    ``attn``: the attention output (with its bias) no longer goes to the residual stream. ``mlp``: the same for the MLP.
    ``both``: neither does, so that with zeros the block leaves the stream unchanged. ``attn_to_mlp``: attention still
    goes to the stream, but the MLP of this layer reads the stream without it; the effect is 0 in models with parallel
    attention and MLP. In the last layer only the last position can have an effect.

    Args:
        model: what `load_model` returns.
        prompt: text, token ids (then nothing is added) or the messages of a chat (`chat_prompt`). The target is
            the token that follows it.
        target: text or id of one token; by default the model's most likely one.
        kinds: which of the four.
        layers, positions: which ones, all by default; negative ones count from the end. Positions may also be
            ``"last"``, words of the prompt, or a span, such as ``range(3, 9)``.
        replacement: ``"zero"``, ``"mean"`` over ``reference`` texts, or ``"resample"``: the value at the same position
            in the ``corrupted`` prompt, which must have as many tokens.
        reference: texts for ``"mean"``.
        pooled: True for one mean over all positions of the texts, False for one per position, which needs texts as long
            as the prompt.
        corrupted: text or token ids for ``"resample"``.
        metric: ``"log_prob"`` of the target (nats), its ``"probability"`` or ``"logit"``, ``"logit_difference"`` to the
            ``foil``, or ``"kl"``: KL(before‖after) of the whole next-token distribution, in nats. The raw logit, which
            the source draws, also moves with what all logits share: the result has that part in ``common``.
        foil: text or id of one token, for ``"logit_difference"``.
        draws: how often the whole map is computed again for `AblationResult.p`, every cell with its own change turned
            into a random direction: as long, but towards nothing. 19 are the fewest with which p can be 0.05.
        compared: how many cells are computed again, those with the largest effects (a first token that carries the
            attention sink comes last); None for all. The p of a cell is the same either way, and NaN for the others.
        seed: of these directions.
        prepend_bos: overrides the model's BOS policy for texts. No axis of the result has the BOS.
        batch_size: cells per chunk; by default what 60% of the free memory holds.
        progress: called with (done, total) cells after every chunk.
        check: called before every layer of every chunk; raises to cancel.
        on_partial: receives a partial result a few times, NaN where nothing is computed yet. In a long run the cells
            that are estimated to first order to be strongest run first (`strongest_first`).

    Raises:
        ValueError: a target of several tokens, a corrupted prompt of another length, a position or layer out of range,
            an empty list, an unknown kind, metric or replacement, a missing foil, reference or corrupted prompt,
            numbers that are not finite.
        MemoryError: a single sequence does not fit.

    Source: Explainability in Large Language Models (Luo 2024), section 4.1.1 and figure 4.3; Interpretability in the
    Wild (Wang et al. 2023), section 2 (mean and resample ablation).

    Example:
        >>> result = ablate_modules(model, "The Eiffel Tower is located in the city of", " Paris")
        >>> result.effect.shape
        (4, 6, 9)
        >>> result.to_frame().nlargest(1, "effect").round(1)
           kind  layer  position token  effect
        8  attn      0         8    of     4.4
    """
    options = MapOptions(
        target, metric, foil, replacement, reference, pooled, corrupted, prepend_bos, batch_size, progress, check,
        draws, compared, seed,
    )  # fmt: skip
    names = check_choices("kinds", [kinds] if isinstance(kinds, str) else list(dict.fromkeys(kinds)), Kind)
    model.capabilities.require("residual_stream", "ablate_modules")
    for kind in names:
        check_kind(model, kind, f"ablate_modules(kinds=({kind!r},))")
    at_layers = layer_indices(model, layers)
    read = read_prompt(model, prompt, prepend_bos=prepend_bos)
    at_positions = read.positions(positions)
    sites = dict.fromkeys(site for kind in names for site in SITES[kind])
    ablation = make_run(model, read, options, [(site, layer) for layer in at_layers for site in sites])
    # cells run in the order of their positions: a chunk is computed from its first position on
    order = np.argsort(at_positions)
    ordered, count = torch.tensor(at_positions)[order], len(names)

    def patches(layer: int, cells: Tensor) -> list[Patch]:
        kind, fed = cells % count, ordered[cells // count] + read.offset
        changed = {site: torch.tensor([site in SITES[name] for name in names])[kind].nonzero()[:, 0] for site in sites}
        return [ablation.replacement.patch(site, layer, rows, fed[rows]) for site, rows in changed.items()]

    def by_kind(cells: Floats) -> Floats:
        by_position = cells.reshape(-1, len(at_layers), len(at_positions), count)[:, :, np.argsort(order)]
        return np.ascontiguousarray(rearrange(by_position, "draw layer position kind -> draw kind layer position"))

    def result(effect: Floats, common: Floats | None, null: Floats | None, **run: Any) -> AblationResult:
        return AblationResult(
            effect=by_kind(effect)[0],
            common=None if common is None else by_kind(common)[0],
            null=None if null is None else by_kind(null),
            kinds=names,
            layers=at_layers,
            positions=at_positions,
            **run,
            **ablation.fields(kinds=", ".join(names), layers=str(at_layers), positions=str(at_positions)),
        )

    return ablation.map(
        at_layers, count * len(at_positions), patches, result, on_partial,
        first=lambda cell: int(ordered[cell // count]) + read.offset,
        name=lambda layer, cell: f"{names[cell % count]!r} at layer {layer}, position {int(ordered[cell // count])}",
    )  # fmt: skip


@checked
def ablate_heads(
    model: Model,
    prompt: PromptInput,
    target: str | int | None = None,
    *,
    position: int | None = None,
    layers: Sequence[int] | None = None,
    replacement: Replacement = "zero",
    reference: Sequence[PromptInput] | None = None,
    pooled: bool = True,
    corrupted: PromptInput | None = None,
    metric: Metric = "log_prob",
    foil: str | int | None = None,
    draws: int = 0,
    compared: int | None = None,
    seed: int = 0,
    prepend_bos: bool | None = None,
    batch_size: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    check: Callable[[], None] | None = None,
    on_partial: Callable[[HeadAblationResult], None] | None = None,
) -> HeadAblationResult:
    """Effect (layers, heads) on the next token when one attention head is removed.

    Also called head ablation: zero, mean or resample ablation by ``replacement``; with ``corrupted``, activation
    patching of heads.

    The head's output is replaced before the output matrix, so that the attention's output bias stays.

    Args:
        position: where; by default at every position at once, including a BOS. A BOS attends only to itself and
            therefore keeps its value with ``"mean"`` and ``"resample"``.
        model, prompt, target, layers, replacement, reference, pooled, corrupted, metric, foil, draws, compared,
            seed, prepend_bos, batch_size, progress, check, on_partial: as in `ablate_modules`. A head's changes at
            several tokens are turned together, by one rotation of its output, so that they keep their angles.

    Raises:
        ValueError: as `ablate_modules`.

    Source: Interpretability in the Wild (Wang et al. 2023), section 2; Are Sixteen Heads Really Better than One?
    (Michel et al. 2019), section 3.

    Example:
        >>> result = ablate_heads(model, "The Eiffel Tower is located in the city of", " Paris")
        >>> result.effect.shape, result.strongest(1)
        ((6, 6), ((0, 1),))
    """
    model.capabilities.require("residual_stream", "ablate_heads")
    model.capabilities.require("heads", "ablate_heads", "use ablate_modules(kinds=('attn',))", using="attention")
    options = MapOptions(
        target, metric, foil, replacement, reference, pooled, corrupted, prepend_bos, batch_size, progress, check,
        draws, compared, seed,
    )  # fmt: skip
    at_layers = layer_indices(model, layers)
    read = read_prompt(model, prompt, prepend_bos=prepend_bos)
    where = None if position is None else read.position(position)
    ablation = make_run(model, read, options, [("head", layer) for layer in at_layers])
    at = torch.arange(ablation.clean.tokens) if where is None else torch.tensor([where + read.offset])

    def patches(layer: int, cells: Tensor) -> list[Patch]:
        rows = torch.arange(len(cells)).repeat_interleave(len(at))
        return [ablation.replacement.patch("head", layer, rows, at.repeat(len(cells)), cells[rows])]

    def result(effect: Floats, common: Floats | None, null: Floats | None, **run: Any) -> HeadAblationResult:
        fields = ablation.fields(layers=str(at_layers), position=where)
        return HeadAblationResult(
            effect=effect,
            common=common,
            null=null,
            layers=at_layers,
            position=where,
            **run,
            **fields,
        )

    return ablation.map(
        at_layers, model.n_heads, patches, result, on_partial,
        first=lambda head: int(at[0]),
        name=lambda layer, head: f"head {head} of layer {layer}",
    )  # fmt: skip


@checked
def ablate_neurons(
    model: Model,
    prompt: PromptInput,
    target: str | int | None = None,
    *,
    layer: int,
    position: int = -1,
    neurons: Sequence[int] | None = None,
    replacement: Replacement = "zero",
    reference: Sequence[PromptInput] | None = None,
    pooled: bool = True,
    corrupted: PromptInput | None = None,
    metric: Metric = "log_prob",
    foil: str | int | None = None,
    prepend_bos: bool | None = None,
    batch_size: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    check: Callable[[], None] | None = None,
    on_partial: Callable[[NeuronAblationResult], None] | None = None,
) -> NeuronAblationResult:
    """Effect (neurons,) on the next token when one neuron of a layer's MLP is removed at one position.

    Also called neuron ablation; with ``corrupted``, activation patching of neurons.

    A neuron is one entry of the input to the MLP's output matrix; in a gated MLP, gate times linear branch.

    Args:
        layer: which MLP; negative ones count from the end.
        position: where; the last one by default.
        neurons: which ones, all by default.
        model, prompt, target, replacement, reference, pooled, corrupted, metric, foil, prepend_bos, batch_size,
            progress, check, on_partial: as in `ablate_modules`.

    Raises:
        ValueError: as `ablate_modules`; a neuron out of range, or a model without such neurons.

    Source: Explainability in Large Language Models (Luo 2024), section 2.2.2 (neurons as key and value vectors).

    Example:
        >>> prompt = "The Eiffel Tower is located in the city of"
        >>> result = ablate_neurons(model, prompt, " Paris", layer=5, metric="logit")
        >>> result.to_frame().nlargest(2, "effect").round(1)  # every logit falls, no other answer gains
             neuron  activation  effect  common
        53       53  -69.300003     1.6     1.6
        233     233   21.799999     0.3     0.3
    """
    model.capabilities.require("residual_stream", "ablate_neurons")
    model.capabilities.require("mlp_neurons", "ablate_neurons", "use ablate_modules(kinds=('mlp',))", using="mlp")
    options = MapOptions(
        target, metric, foil, replacement, reference, pooled, corrupted, prepend_bos, batch_size, progress, check
    )
    at_layer = layer_index(model, layer)
    read = read_prompt(model, prompt, prepend_bos=prepend_bos)
    where = read.position(position)
    chosen = neuron_indices(model, neurons)
    ablation = make_run(model, read, options, [("neuron", at_layer)])
    index, fed = torch.tensor(chosen), where + read.offset
    activation = to_numpy(ablation.clean.value("neuron", at_layer)[0, fed, index, 0])

    def patches(layer: int, cells: Tensor) -> list[Patch]:
        rows = torch.arange(len(cells))
        return [ablation.replacement.patch("neuron", layer, rows, torch.full_like(rows, fed), index[cells])]

    def result(effect: Floats, common: Floats | None, null: Floats | None, **run: Any) -> NeuronAblationResult:
        return NeuronAblationResult(
            effect=effect[0],
            common=None if common is None else common[0],
            neurons=chosen,
            activation=activation,
            layer=at_layer,
            position=where,
            **run,
            **ablation.fields(layer=at_layer, position=where),
        )

    return ablation.map(
        (at_layer,), len(chosen), patches, result, on_partial,
        first=lambda cell: fed,
        name=lambda layer, cell: f"neuron {chosen[cell]} of layer {layer}",
    )  # fmt: skip


# ---- shared by the maps


@dataclass(frozen=True)
class MapOptions:
    """The options that every ablation map takes."""

    target: str | int | None
    metric: Any
    """A `Metric`, checked here."""
    foil: str | int | None
    replacement: Any
    """A `Replacement`, checked here."""
    reference: Sequence[PromptInput] | None
    pooled: bool
    corrupted: PromptInput | None
    prepend_bos: bool | None
    batch_size: int | None
    progress: Progress
    check: Check
    draws: int = 0
    compared: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        check_range("draws", self.draws, 0)
        if self.compared is not None:
            check_range("compared", self.compared)
            if not self.draws:
                raise ValueError(
                    "compared= chooses the cells of draws=: give draws=19 or more too, or leave compared= out"
                )
        check_metric(self.metric, self.foil)
        check_replacement(self.replacement, self.reference, self.corrupted)


@dataclass
class AblationRun:
    """One prompt, its clean trace, the metric, and the replacement values."""

    model: Model
    prompt: Prompt
    clean: Trace
    metric: NextTokenMetric
    replacement: ReplacementValues
    runner: Runner
    options: MapOptions

    def map(
        self,
        layers: Sequence[int],
        cells: int,
        patches: Callable[[int, Tensor], list[Patch]],
        result: Callable[..., R],
        on_partial: Callable[[R], None] | None,
        *,
        first: Callable[[int], int],
        name: Callable[[int, int], str],
    ) -> R:
        """Compute the effects of ``cells`` cells at each layer, each cell being the clean run with its own patches.

        Where partial results are asked for, and the map takes several chunks, the cells that are estimated to be
        strongest run first.

        Args:
            layers, cells: the size of the map.
            patches: maps a layer and cell numbers (n,) to patches, see `run_cells`.
            result: makes a result from effects (layers, cells), NaN where not computed yet, the part of them that all
                logits share, the same for the logit and None for the other metrics, the effects (draws, layers, cells)
                of random directions, NaN where not compared, None while there are none, and the keywords ``partial``
                and ``strongest_first``.
            on_partial: receives a partial result a few times.
            first: maps a cell to its first changed position, counted with the BOS.
            name: describes what a cell of a layer removes, for the error where its effect is not finite.
        """
        shape = (len(layers), cells, 1 if self.metric.log_prob is None else 2)
        effects = torch.full(shape, torch.nan, dtype=wide_type(self.model.dtype), device=self.model.device)
        count = len(layers) * cells
        compared = count if self.options.compared is None else min(self.options.compared, count)
        self.runner.total = count + compared * self.options.draws
        guess: Estimate | None = None

        def measured(partial: bool, null: Floats | None = None) -> R:
            effect, *common = (to_numpy(values).copy() for values in effects.unbind(-1))
            if not partial:
                check_finite(effect, lambda row, cell: f"the effect of removing {name(layers[row], cell)}")
            ordered = partial and guess is not None
            return result(effect, common[0] if common else None, null, partial=partial, strongest_first=ordered)

        def patches_of(chunk: Tensor) -> list[Patch]:
            rows, found = chunk // cells, list[Patch]()
            for row in sorted(set(rows.tolist())):
                places = (rows == row).nonzero()[:, 0]
                of_layer = patches(layers[row], chunk[places] % cells)
                found += [replace(patch, cells=places[patch.cells]) for patch in of_layer]
            return found

        groups = list(torch.split(torch.arange(len(layers) * cells), cells))
        by_layer = groups
        if on_partial is not None:
            self.runner.deliver = lambda: on_partial(measured(True))
            if self._takes_long(first(0)):
                guess = self._estimate(patches_of, len(layers) * cells)
                if guess is not None:
                    groups = strongest_first(guess.score, cells)
                    self.runner.deliver()
        for number, group in enumerate(groups):
            self._run(group, cells, patches_of, first, effects)
            if guess is not None and number < STRONGEST and self.runner.early and self.runner.deliver is not None:
                self.runner.deliver()
        if not self.options.draws:
            return measured(False)
        if on_partial is not None:
            on_partial(measured(False))
        self.runner.deliver = None
        sizes = np.abs(to_numpy(effects[..., 0])).ravel()
        on_sink = [self.prompt.first_is_sink and first(cell) == self.prompt.offset for cell in range(cells)]
        chosen = np.lexsort((-sizes, np.tile(on_sink, len(layers))))[:compared]
        by_layer = [group[np.isin(group.numpy(), chosen)] for group in by_layer]
        null = torch.full((self.options.draws, *shape), torch.nan, dtype=effects.dtype, device=effects.device)
        for draw, drawn in enumerate(null):

            def turned(chunk: Tensor, draw: int = draw) -> list[Patch]:
                seeds = [[self.options.seed, draw, int(cell)] for cell in chunk]
                return [in_random_directions(self.clean, one, seeds) for one in patches_of(chunk) if len(one.cells)]

            for group in filter(len, by_layer):
                self._run(group, cells, turned, first, drawn)
        random = to_numpy(null[..., 0])
        tested = np.isin(np.arange(count), chosen).reshape(len(layers), cells)
        check_finite(
            np.where(tested, random, 0.0),
            lambda draw, row, cell: f"the effect of a random change of {name(layers[row], cell)} (draw {draw})",
        )
        return measured(False, random)

    def _run(
        self,
        group: Tensor,
        cells: int,
        patches: Callable[[Tensor], list[Patch]],
        first: Callable[[int], int],
        effects: Tensor,
    ) -> None:
        """Write the effects of cells ``group`` (n,), ``cells`` to a layer, into ``effects`` (layers, cells, ...)."""

        def write(hidden: Tensor, numbers: Tensor) -> None:
            effects.flatten(0, 1)[group[numbers]] = self.metric.effects(hidden)

        run_cells(
            len(group), self.clean, self.runner, lambda numbers: patches(group[numbers]),
            lambda number: first(int(group[number]) % cells), write,
        )  # fmt: skip

    def _takes_long(self, first: int) -> bool:
        """Whether the map takes so many chunks that an estimate is worth its passes."""
        return self.runner.total > MANY_CHUNKS * self.runner.size(self.clean.computed(first))

    def _estimate(self, patches: Callable[[Tensor], list[Patch]], cells: int) -> Estimate | None:
        """What all cells change, to first order; None where it cannot be estimated."""
        if not can_estimate(self.model, self.metric, self.clean.tokens):
            return None
        every = patches(torch.arange(cells))
        if self.options.check is not None:
            self.options.check()
        places = list(dict.fromkeys((patch.site, patch.layer) for patch in every))
        at = gradients_of(self.model, self.prompt.ids, self.metric, places, self.clean)
        return estimate(self.clean, at, every, cells)

    def fields(self, **details: Any) -> dict[str, Any]:
        """The result's fields on the prompt, the target, the metric and its provenance."""
        options, metric = self.options, self.metric
        facts: dict[str, Any] = {"metric": options.metric, "target": metric.target, "bos": self.prompt.offset == 1}
        facts |= {"replacement": options.replacement, **details}
        if metric.foil is not None:
            facts["foil"] = metric.foil
        if options.replacement == "mean":
            facts |= {"pooled": options.pooled, "reference": repr(options.reference)}
        if options.replacement == "resample":
            facts["corrupted"] = repr(options.corrupted)
        facts |= {"draws": options.draws, "seed": options.seed} if options.draws else {}
        facts |= {"compared": options.compared} if options.draws and options.compared is not None else {}
        facts |= self.runner.log.facts()
        return {
            "prompt_tokens": self.prompt.tokens(),
            "prompt_ids": self.prompt.shown_ids,
            "prompt_special": self.prompt.special(),
            "target": metric.target,
            "target_token": self.model.token_strings([metric.target])[0],
            "metric": options.metric,
            "clean": metric.clean,
            "replacement": options.replacement,
            "foil": metric.foil,
            "bos_id": self.prompt.bos_id,
            "sink": self.prompt.first_is_sink,
            "provenance": provenance(self.runner.origin, **facts),
        }


def make_run(model: Model, prompt: Prompt, options: MapOptions, sites: Sequence[SiteOfLayer]) -> AblationRun:
    """Trace the prompt, check target and metric, prepare the replacement values of ``sites`` (site, layer)."""
    if options.check is not None:
        options.check()
    neurons = tuple(layer for site, layer in sites if site == "neuron")
    clean = trace(model, prompt.embeddings(), neurons=neurons)
    metric = next_token_metric(model, clean.hidden, options.target, metric=options.metric, foil=options.foil)
    replacement = replacement_values(
        prompt, clean, options.replacement, sites,
        reference=options.reference, pooled=options.pooled, corrupted=options.corrupted,
        prepend_bos=options.prepend_bos, check=options.check,
    )  # fmt: skip
    runner = Runner(
        model, len(prompt.ids), options.batch_size, options.check, options.progress,
        fewest_tokens=fewest_tokens(model),
    )  # fmt: skip
    return AblationRun(model, prompt, clean, metric, replacement, runner, options)


# ---- cost


def ablation_cost(
    model: Model,
    n_tokens: int,
    kinds: Sequence[str] = ("attn", "mlp", "both", "attn_to_mlp"),
    *,
    what: Literal["modules", "heads", "neurons"] = "modules",
    layers: Sequence[int] | None = None,
    positions: Sequence[int] | None = None,
    metric: Metric = "log_prob",
    draws: int = 0,
    compared: int | None = None,
) -> Cost:
    """Operations and peak bytes of `ablate_modules`, `ablate_heads` or `ablate_neurons` for a prompt of n_tokens.

    Args:
        model: a `Model`.
        n_tokens: tokens that the model is fed, with the BOS.
        kinds: kinds of modules.
        what: which of the three maps.
        layers: all by default; for neurons the one layer, by default the first, which takes longest.
        positions: all by default; for heads and neurons the one position, by default all at once and the last.
        metric: as in `ablate_modules`; ``logit_difference`` needs two rows of the unembedding, the others all.
        draws, compared: random directions, as in `ablate_modules`.

    It never waits for the model: before the first pass, the faster route is expected to be usable.

    Example:
        >>> round(ablation_cost(model, 32).flops / 1e9, 1)
        24.9
    """
    chosen = list(range(model.n_layers)) if layers is None else [layer % model.n_layers for layer in layers]
    match what:
        case "modules":
            axis = range(int(model.prepend_bos), n_tokens) if positions is None else positions  # a BOS is on no axis
            begins = first_positions(model, n_tokens, [position % n_tokens for position in axis for _ in kinds])
            cells = [(layer, position) for layer in chosen for position in begins]
        case "heads":
            position = 0 if positions is None else positions[0] % n_tokens
            cells = [(layer, position) for layer in chosen for _ in range(model.n_heads)]
        case "neurons":
            position = n_tokens - 1 if positions is None else positions[0] % n_tokens
            cells = [(0 if layers is None else chosen[0], position)] * model.d_mlp
        case _:
            raise ValueError(f"what must be one of 'modules', 'heads', 'neurons', got {what!r}")
    runs = expects_runs(model)
    two_rows = runs.native and metric == "logit_difference"
    unembedding = 4.0 * model.d_model if two_rows else unembedding_flops(model)
    rows = n_tokens if what == "heads" and positions is None else 1
    passed = sum(tokens_recomputed(model, n_tokens, *cell, rows, runs) for cell in cells) / model.n_layers
    again = draws * (1.0 if compared is None else min(1.0, compared / max(1, len(cells))))
    maps = (1 + again) * (pass_flops(model, passed, 2 * n_tokens) + len(cells) * unembedding)
    flops = n_tokens * flops_per_token(model) + maps
    batch = max(1.0, 1024 / n_tokens)
    kept = n_tokens * model.n_layers * (5 * model.d_model + 3 * model.n_heads * model.d_head) * model.dtype.itemsize
    logits = 8.0 * min(2**22, len(cells) * model.d_vocab)
    return Cost(flops=float(flops), bytes=float(batch * row_bytes(model, n_tokens, n_tokens) + kept + logits))
