"""`concept_directions`: one direction per concept from the hidden states of its stimuli."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from interp_widgets.analysis._core.arrays import Bools, Floats, Ints
from interp_widgets.analysis._core.checks import check_choice, stream_indices
from interp_widgets.analysis._core.cost import Cost
from interp_widgets.analysis._core.result import provenance
from interp_widgets.analysis._core.run import RunOptions
from interp_widgets.analysis.concepts.auc import (
    MOST_OTHERS,
    add_projections,
    aucs_of_projections,
    sampled,
    shuffled_aucs,
)
from interp_widgets.analysis.concepts.concept_set import ConceptSet
from interp_widgets.analysis.concepts.direction_methods import Method, Moments, directions_of, maker
from interp_widgets.analysis.hidden_states import last_states, last_states_cost
from interp_widgets.arguments import checked
from interp_widgets.data.concepts import Concept, check_concepts, demo_concepts
from interp_widgets.models import Model
from interp_widgets.models.engine import can_pad

__all__ = ["NEUTRAL_TEMPLATE", "TEMPLATE", "concept_directions", "concept_directions_cost", "directions_of"]

TEMPLATE = "Consider the <concept> in the following scenario:\nScenario: <stimulus>\nAnswer:"
NEUTRAL_TEMPLATE = "Consider the following scenario:\nScenario: <stimulus>\nAnswer:"
"""The template for testing, without the concept's name, which would leak the label."""
States = Callable[..., Floats]
"""A function that computes hidden states: `last_states`, or a `HiddenStateCache`."""
MOST_SHUFFLED = 16_384
"""Most stimuli whose labels are shuffled for the control; of more, those of a random sample of concepts."""
_BLOCK = 4096
"""Stimuli whose states are in memory at once."""


@checked
def concept_directions(
    model: Model,
    concepts: Sequence[Concept] | None = None,
    *,
    layer: int,
    method: Method = "mean_difference",
    template: str = TEMPLATE,
    test_template: str = NEUTRAL_TEMPLATE,
    shuffles: int = 20,
    seed: int = 0,
    batch_size: int | None = None,
    states: States = last_states,
    progress: Callable[[int, int], None] | None = None,
    check: Callable[[], None] | None = None,
) -> ConceptSet:
    """A unit direction for every concept in the residual stream entering a layer, with its quality on held-out stimuli.

    Also called steering vectors: by difference in means (``mean_difference``), or a linear probe
    (``discriminant``).

    Every stimulus is put in the template and the state at the last token is read. ``mean_difference``: the mean state
    of a concept's stimuli minus that of all other stimuli. ``pca``: the first right singular vector of the differences
    between each state of the concept and 5 random states of other concepts (not centred, so that their mean counts),
    with the sign for which the concept scores higher.

    ``discriminant``: the mean difference times the inverse of the covariance within concepts (Fisher's linear
    discriminant, covariance shrunk by 1% towards a multiple of the identity), which downweights variation between
    stimuli of one concept, such as their wording. Use it for reading and the mean difference for steering.

    Quality is measured on held-out stimuli in a template without the concept's name, which would leak the label. The
    control repeats everything with shuffled labels; in a set with more than 16,384 stimuli, with those of a random
    sample of concepts (`ConceptSet.shuffled_auc` of the others is NaN).

    States are summed 4,096 at a time, so that memory does not grow with the number of stimuli: it takes 8 bytes
    times concepts times d_model and what `concept_directions_cost` adds. ``discriminant`` sums up products of
    states too, d_model times d_model. ``pca`` alone keeps the states of all stimuli (held-out ones not), since the
    partners of a state are drawn from all others.

    Args:
        model: what `load_model` returns.
        concepts: by default the demo's (`demo_concepts`); `read_concepts` gives those of a folder.
        layer: the stream entering it; n_layers (or -1) is the one entering the final norm.
        method: "mean_difference", "pca" or "discriminant".
        template: with ``<stimulus>``, and ``<concept>`` where the name goes.
        test_template: with ``<stimulus>``.
        shuffles: number of label shuffles for the control.
        seed: of the shuffles and of the pairs.
        states: function that computes the states, called like `last_states`; a `HiddenStateCache` reads no text twice.
        batch_size, progress, check: as in `last_states`; progress counts prompts.

    Raises:
        ValueError: fewer than 2 concepts, a repeated name, fewer than 3 stimuli, a stimulus longer than the context, a
            template without its placeholder, an unknown layer or method, states that do not differ at the layer.

    Source: Representation Engineering (Zou et al. 2023), section 3.1; the template is that of PaCE: Parsimonious
    Concept Engineering for Large Language Models (Luo et al. 2024), section 3.1.

    Example:
        >>> few = [c for c in demo_concepts() if c.name in ("Paris", "London", "red", "blue")]
        >>> directions = concept_directions(model, few, layer=3)
        >>> directions.names, directions.directions.shape
        (('Paris', 'London', 'red', 'blue'), (4, 192))
        >>> bool(directions.auc.min() > 0.7), bool(directions.shuffled_auc.max() < 0.6)
        (True, True)
    """
    chosen = tuple(demo_concepts() if concepts is None else concepts)
    (layer,) = stream_indices(model, layer)
    _check(model, chosen, method, template, test_template)
    run = RunOptions(progress, check, batch_size)
    passes = _Passes(model, chosen, layer, states, run)
    moments = Moments(len(chosen), model.d_model, scatter=method == "discriminant")
    in_control = _control_concepts(chosen, seed)
    keep = np.ones(len(chosen), dtype=bool) if method == "pca" else in_control
    training = _ConceptStates(model, keep, passes.sizes)
    for block, owner in passes.run(template, held_out=False):
        moments.add(block, owner)
        training.add(block, owner)
    center = moments.mean
    make = maker(moments, training.states, training.owner, method=method, seed=seed)
    directions, gap = moments.take_directions(make, [concept.name for concept in chosen])
    held_out = _HeldOut(model, in_control, passes.held_out, directions, seed)
    for block, owner in passes.run(test_template, held_out=True):
        held_out.add(block, owner)
    overall, within = held_out.aucs(_group_numbers([concept.group for concept in chosen]))
    control = np.full(len(chosen), np.nan)
    control[in_control] = _control(training, held_out.kept, in_control, method, times=shuffles, seed=seed, run=run)
    return ConceptSet(
        names=[concept.name for concept in chosen],
        directions=directions.astype(training.states.dtype),
        layer=layer,
        groups=[concept.group for concept in chosen],
        center=center.astype(training.states.dtype),
        gap=gap,
        auc=overall,
        group_auc=within,
        shuffled_auc=control,
        method=method,
        provenance=provenance(
            model.provenance(), layer=layer, method=method, template=template, test_template=test_template,
            stimuli=int(passes.sizes.sum()), held_out=int(passes.held_out.sum()), shuffles=shuffles, seed=seed,
        ),
    )  # fmt: skip


def concept_directions_cost(
    model: Model, concepts: Sequence[Concept] | None = None, *, layer: int, method: Method = "mean_difference"
) -> Cost:
    """Operations and peak bytes of `concept_directions`, extrapolated from the lengths of 500 evenly spaced stimuli.

    A prefix that the prompts of a concept share is counted once, where it runs once.
    """
    chosen = tuple(demo_concepts() if concepts is None else concepts)
    texts = [concept.stimuli[0] for concept in chosen[:: max(1, len(chosen) // 500)]]
    lengths = [len(ids) for ids in model.token_lists([_fill(TEMPLATE, "", text) for text in texts])]
    trained = sum(len(concept.stimuli) for concept in chosen)
    tested = sum(len(concept.held_out) for concept in chosen)
    width, item = model.d_model, 8 if model.dtype == torch.float64 else 4
    count = min(_BLOCK, trained + tested)
    sample = (lengths * (count // len(lengths) + 1))[:count]
    block = last_states_cost(model, sample, layer)
    begin = len(model.tokens(TEMPLATE.split("<stimulus>")[0].rstrip())) if can_pad(model) else 0
    each = last_states_cost(model, [max(1, length - begin) for length in sample], layer).flops / count
    begins = last_states_cost(model, [begin] * len(chosen), layer).flops
    in_control = min(MOST_SHUFFLED, trained + tested)
    kept_states = (trained if method == "pca" else in_control) + in_control
    squares = {"mean_difference": 0.0, "pca": 0.0, "discriminant": 4.0 * 8 * width**2}[method]
    others = min(tested, MOST_OTHERS) * (item + 8) * width
    sums = len(chosen) * width * (8 + item) + 4 * 8 * min(1024, len(chosen)) * width
    scatter = 2.0 * width**2 * trained if squares else 0.0
    return Cost(
        flops=each * (trained + tested) + begins + scatter + 2.0 * len(chosen) * min(tested, MOST_OTHERS) * width,
        bytes=block.bytes + kept_states * item * width + squares + others + sums,
    )


@dataclass
class _Passes:
    """The states of all stimuli, block by block."""

    model: Model
    concepts: Sequence[Concept]
    layer: int
    read: States
    run_options: RunOptions
    done: int = 0

    def __post_init__(self) -> None:
        self.sizes = np.array([len(concept.stimuli) for concept in self.concepts])
        self.held_out = np.array([len(concept.held_out) for concept in self.concepts])

    def run(self, template: str, *, held_out: bool) -> Iterator[tuple[Floats, Ints]]:
        """(n, d_model) states and (n,) indices of their concepts, for blocks of whole concepts."""
        sizes = self.held_out if held_out else self.sizes
        for start, stop in _blocks(sizes):
            owner = np.repeat(np.arange(start, stop), sizes[start:stop])
            texts = [
                _fill(template, concept.name, text)
                for concept in self.concepts[start:stop]
                for text in (concept.held_out if held_out else concept.stimuli)
            ]
            # with the name, the prompts of a concept share a prefix; without it all prompts do
            groups = owner if "<concept>" in template else np.zeros_like(owner)
            yield self._states(texts, groups), owner

    def _states(self, texts: list[str], groups: Ints) -> Floats:
        run = self.run_options.after(self.done, int(self.sizes.sum() + self.held_out.sum()))
        states = self.read(
            self.model, texts, self.layer, groups=groups.tolist(),
            batch_size=run.batch_size, progress=run.progress, check=run.check,
        )  # fmt: skip
        self.done += len(texts)
        return states[:, 0]


def _blocks(sizes: Ints) -> Iterator[tuple[int, int]]:
    """Start and stop of blocks of concepts with at most `_BLOCK` stimuli, or of one concept with more."""
    start, count = 0, 0
    for i, size in enumerate(sizes.tolist()):
        if count and count + size > _BLOCK:
            yield start, i
            start, count = i, 0
        count += size
    if count:
        yield start, len(sizes)


class _ConceptStates:
    """The states of some of the concepts."""

    def __init__(self, model: Model, chosen: Bools, sizes: Ints) -> None:
        self.owner = np.repeat(np.arange(len(chosen)), np.where(chosen, sizes, 0))
        kind = np.float64 if model.dtype == torch.float64 else np.float32
        self.states: Floats = np.empty((len(self.owner), model.d_model), dtype=kind)
        self._chosen, self._filled = chosen, 0

    def add(self, states: Floats, owner: Ints) -> None:
        rows = self._chosen[owner]
        end = self._filled + int(rows.sum())
        self.states[self._filled : end] = states[rows]
        self._filled = end


class _HeldOut:
    """Held-out states: projections on their concepts' directions, and the states used as others."""

    def __init__(self, model: Model, in_control: Bools, sizes: Ints, directions: Floats, seed: int) -> None:
        self.kept = _ConceptStates(model, in_control, sizes)
        self.owner = np.repeat(np.arange(len(sizes)), sizes)
        self.projections = np.empty(len(self.owner))
        self.directions = directions
        self._is_other = sampled(len(self.owner), seed)
        self._others: list[Floats] = []
        self._done = 0

    def add(self, states: Floats, owner: Ints) -> None:
        at = slice(self._done, self._done + len(owner))
        add_projections(self.projections[at], self.directions, states, owner)
        self._others.append(states[self._is_other[at]])
        self.kept.add(states, owner)
        self._done = at.stop

    def aucs(self, groups: Ints) -> tuple[Floats, Floats]:
        others = np.concatenate(self._others) if self._others else self.kept.states
        return aucs_of_projections(
            self.projections, self.owner, self.directions, others, self.owner[self._is_other], groups
        )


def _control_concepts(concepts: Sequence[Concept], seed: int) -> Bools:
    """(concepts,) mask of the concepts of the control: all, or the first ones in a random order."""
    sizes = np.array([len(concept.stimuli) + len(concept.held_out) for concept in concepts])
    if sizes.sum() <= MOST_SHUFFLED:
        return np.ones(len(sizes), dtype=bool)
    order = np.random.default_rng(seed).permutation(len(sizes))
    chosen = np.zeros(len(sizes), dtype=bool)
    chosen[order[: max(2, int((sizes[order].cumsum() <= MOST_SHUFFLED).sum()))]] = True
    return chosen


def _control(
    training: _ConceptStates, held_out: _ConceptStates, in_control: Bools, method: Method, *,
    times: int, seed: int, run: RunOptions,
) -> Floats:  # fmt: skip
    """(concepts of the control,) mean AUC with shuffled labels."""
    number, rows = in_control.cumsum() - 1, in_control[training.owner]
    states = training.states if rows.all() else training.states[rows]

    def make(labels: Ints, shuffle: int) -> Floats:
        return directions_of(states, labels, int(in_control.sum()), method=method, seed=shuffle)

    return shuffled_aucs(make, number[training.owner[rows]], held_out.states, number[held_out.owner],
                         times=times, seed=seed, run=run)  # fmt: skip


def _fill(template: str, name: str, stimulus: str) -> str:
    before, after = template.replace("<concept>", name).split("<stimulus>")
    return before + stimulus + after


def _group_numbers(groups: Sequence[str]) -> Ints:
    numbers = {group: i for i, group in enumerate(dict.fromkeys(group for group in groups if group))}
    return np.array([numbers.get(group, -1) for group in groups])


def _check(model: Model, concepts: Sequence[Concept], method: str, template: str, test_template: str) -> None:
    check_concepts(concepts)
    check_choice("method", method, Method)
    for name, text in (("template", template), ("test_template", test_template)):
        if text.count("<stimulus>") != 1:
            raise ValueError(f"{name} must hold <stimulus> once, where the stimulus goes, got {text!r}")
    if "<concept>" in test_template:
        raise ValueError("test_template must not contain <concept>: the name would leak the label")
    for concept in concepts:
        for text in (*concept.stimuli, *concept.held_out):
            filled = _fill(template, concept.name, text)
            if len(filled.encode()) < model.n_ctx // 2:  # a token is a byte or more: no need to count them
                continue
            fed = len(model.tokens(filled))
            if fed > model.n_ctx:
                raise ValueError(
                    f"a stimulus of {concept.name!r} is {fed} tokens long with its template and the model reads "
                    f"{model.n_ctx}: shorten or leave out {text[:60]!r}"
                )
