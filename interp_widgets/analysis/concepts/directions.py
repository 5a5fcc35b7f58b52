"""`concept_directions`: one direction per concept from the hidden states of its stimuli."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from interp_widgets.analysis.concepts.quality import concept_aucs, shuffled_aucs
from interp_widgets.analysis.concepts.result import ConceptSet
from interp_widgets.analysis.hidden_states import last_states
from interp_widgets.analysis.result import provenance
from interp_widgets.data.concepts import Concept, check_concepts, demo_concepts

Method = Literal["mean_difference", "pca", "discriminant"]
Floats = NDArray[np.floating[Any]]
Ints = NDArray[np.integer[Any]]

TEMPLATE = "Consider the <concept> in the following scenario:\nScenario: <stimulus>\nAnswer:"
NEUTRAL_TEMPLATE = "Consider the following scenario:\nScenario: <stimulus>\nAnswer:"
"""The same without the concept's name, for testing: with it, the prompt itself would say which concept it is."""
SHRINKAGE = 0.01
"""Of the covariance within concepts, for ``discriminant``."""
PARTNERS = 5
"""States of other concepts that each state is paired with, for ``pca``."""


def concept_directions(
    model: Any,
    concepts: Sequence[Concept] | None = None,
    *,
    layer: int,
    method: Method = "mean_difference",
    template: str = TEMPLATE,
    test_template: str = NEUTRAL_TEMPLATE,
    shuffles: int = 20,
    seed: int = 0,
    batch_size: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    check: Callable[[], None] | None = None,
) -> ConceptSet:
    """A unit direction for every concept in the residual stream entering a layer, with its quality on held-out stimuli.

    Every stimulus is put in the template and the state at the last token is read. ``mean_difference``: the mean state
    of a concept's stimuli less that of all other stimuli. ``pca``: the first right singular vector of the differences
    between each state of the concept and 5 states of other concepts drawn at random (not centred, so that what they
    have in common counts), its sign such that the concept scores higher.

    ``discriminant``: the mean difference times the inverse of the covariance within concepts (Fisher's linear
    discriminant, covariance shrunk by 1 % towards a multiple of the identity), which plays down what varies between
    stimuli of one concept, such as their wording. It reads best; the mean difference is the one to steer with.

    Quality is measured on stimuli that no direction was made from, in a template without the concept's name, which
    would give the answer away. The control repeats all of it with labels dealt at random.

    Args:
        model: what `load_model` returns.
        concepts: by default the demo's (`demo_concepts`); `read_concepts` gives those of a folder.
        layer: 0..n_layers; n_layers is the stream entering the final norm.
        method: "mean_difference", "pca" or "discriminant".
        template: with ``<stimulus>``, and ``<concept>`` where the name goes.
        test_template: with ``<stimulus>``.
        shuffles: how often labels are dealt for the control.
        seed: of the deals and of the pairs.
        batch_size, progress, check: as in `last_states`; progress counts prompts.

    Raises:
        ValueError: fewer than 2 concepts, two of one name, fewer than 3 stimuli, a stimulus longer than the context, a
            template without its place, a layer or method that there is not.

    Source: Representation Engineering (Zou et al. 2023), section 3.1; the template is that of PaCE: Parsimonious
    Concept Engineering for Large Language Models (Luo et al. 2024), section 3.1.

    Example:
        >>> found = concept_directions(model, layer=3)                            # doctest: +SKIP
        >>> found.names[0], round(float(found.auc[0]), 2)                         # doctest: +SKIP
        ('France', 0.96)
    """
    given = tuple(demo_concepts() if concepts is None else concepts)
    _check(model, given, layer, method, template, test_template, shuffles)
    owner = np.array([i for i, concept in enumerate(given) for _ in concept.stimuli])
    tested = np.array([i for i, concept in enumerate(given) for _ in concept.held_out], dtype=int)
    total, before = len(owner) + len(tested), 0

    def states(texts: list[str], groups: Ints) -> Floats:
        count = None if progress is None else lambda done, _: progress(before + done, total)
        return last_states(
            model, texts, layer, groups=groups.tolist(), batch_size=batch_size, progress=count, check=check
        )[:, 0]

    texts = [_fill(template, concept.name, text) for concept in given for text in concept.stimuli]
    made_from, before = states(texts, owner), len(owner)
    texts = [_fill(test_template, "", text) for concept in given for text in concept.held_out]
    held_out = states(texts, np.zeros_like(tested)) if texts else made_from[:0]

    def make(labels: Ints, deal: int) -> Floats:
        return directions_of(made_from, labels, len(given), method=method, seed=deal)

    directions = make(owner, seed)
    kinds = _kinds([concept.group for concept in given])
    whole, within = concept_aucs(directions, held_out, tested, kinds, seed=seed)
    control = shuffled_aucs(make, owner, held_out, tested, times=shuffles, seed=seed, check=check)
    means, others = _means(made_from, owner, len(given))
    return ConceptSet(
        names=[concept.name for concept in given],
        directions=directions.astype(made_from.dtype),
        layer=layer,
        groups=[concept.group for concept in given],
        centre=made_from.mean(axis=0),
        gap=((means - others) * directions).sum(axis=1),
        auc=whole,
        group_auc=within,
        shuffled_auc=control,
        method=method,
        provenance=provenance(
            model.provenance(), layer=layer, method=method, template=template, test_template=test_template,
            stimuli=len(owner), held_out=len(tested), shuffles=shuffles, seed=seed,
        ),
    )  # fmt: skip


def directions_of(states: Floats, owner: Ints, count: int, *, method: Method, seed: int = 0) -> Floats:
    """(count, d_model) unit directions from states (n, d_model) of the concepts ``owner`` (n,), each with some states.

    Raises ValueError where a concept's states do not differ from the others'.
    """
    means, others = _means(states, owner, count)
    difference = means - others
    found: Floats
    match method:
        case "mean_difference":
            found = difference
        case "pca":
            found = _components(states, owner, count, difference, seed)
        case "discriminant":
            found = _discriminants(states, owner, means, difference)
    length = np.linalg.norm(found, axis=1)
    if not length.all():
        flat = int(np.flatnonzero(length == 0)[0])
        raise ValueError(f"the states of concept {flat} are those of the others: it has no direction at this layer")
    unit: Floats = found / length[:, None]
    return unit


def _means(states: Floats, owner: Ints, count: int) -> tuple[Floats, Floats]:
    """(count, d_model) the mean state of each concept, and that of all states that are not its own; in float64."""
    sums = np.zeros((count, states.shape[1]))
    np.add.at(sums, owner, states)
    sizes = np.bincount(owner, minlength=count)[:, None]
    return sums / sizes, (sums.sum(axis=0) - sums) / (len(owner) - sizes)


def _components(states: Floats, owner: Ints, count: int, difference: Floats, seed: int) -> Floats:
    rng = np.random.default_rng(seed)
    found = np.empty_like(difference)
    for i in range(count):
        own, foreign = np.flatnonzero(owner == i), np.flatnonzero(owner != i)
        pairs = rng.choice(foreign, (len(own), PARTNERS))
        apart = (states[own][:, None] - states[pairs]).reshape(-1, states.shape[1]).astype(np.float64)
        first = np.linalg.svd(apart, full_matrices=False)[2][0]
        found[i] = first if first @ difference[i] >= 0 else -first
    return found


def _discriminants(states: Floats, owner: Ints, means: Floats, difference: Floats) -> Floats:
    width = states.shape[1]
    within = np.zeros((width, width))
    for start in range(0, len(states), 4096):  # in parts, so that no second copy of all states is made
        rest = states[start : start + 4096] - means[owner[start : start + 4096]]
        within += rest.T @ rest
    within /= max(len(states) - len(means), 1)
    spread = np.trace(within) / width
    if spread == 0:  # all stimuli of a concept have one state
        return difference
    shrunk = (1 - SHRINKAGE) * within + SHRINKAGE * spread * np.eye(width)
    found: Floats = np.linalg.solve(shrunk, difference.T).T
    return found


def _fill(template: str, name: str, stimulus: str) -> str:
    before, after = template.replace("<concept>", name).split("<stimulus>")
    return before + stimulus + after


def _kinds(groups: Sequence[str]) -> Ints:
    numbers = {group: i for i, group in enumerate(dict.fromkeys(group for group in groups if group))}
    return np.array([numbers.get(group, -1) for group in groups])


def _check(
    model: Any, concepts: Sequence[Concept], layer: int, method: str, template: str, test_template: str, shuffles: int
) -> None:
    check_concepts(concepts)
    if not 0 <= layer <= model.n_layers:
        raise ValueError(f"layer must be in 0..{model.n_layers} for this {model.n_layers}-layer model, got {layer}")
    if method not in get_args(Method):
        raise ValueError(f"method must be one of {', '.join(get_args(Method))}, got {method!r}")
    if shuffles < 1:
        raise ValueError(f"shuffles must be at least 1, got {shuffles}")
    for name, text in (("template", template), ("test_template", test_template)):
        if text.count("<stimulus>") != 1:
            raise ValueError(f"{name} must hold <stimulus> once, where the stimulus goes, got {text!r}")
    if "<concept>" in test_template:
        raise ValueError("test_template must not name the concept: that would give the answer away")
    for concept in concepts:
        for text in (*concept.stimuli, *concept.held_out):
            fed = len(model.tokens(_fill(template, concept.name, text)))
            if fed > model.n_ctx:
                raise ValueError(
                    f"a stimulus of {concept.name!r} is {fed} tokens long with its template and the model reads "
                    f"{model.n_ctx}: shorten or leave out {text[:60]!r}"
                )
