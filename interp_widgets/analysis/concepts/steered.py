"""Steered generation compared with random directions: `compare_steering`, `steering_sweep`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import count
from typing import Any, ClassVar, Literal, SupportsIndex

import numpy as np

from interp_widgets.analysis._core.arrays import Floats, Ints
from interp_widgets.analysis._core.checks import check_choice, check_range, check_top, stream_indices
from interp_widgets.analysis._core.cost import flops_per_token
from interp_widgets.analysis._core.prompts import Prompt, read_prompt
from interp_widgets.analysis._core.result import Result, provenance, record, with_axes
from interp_widgets.analysis._core.run import RunOptions
from interp_widgets.analysis._core.tables import DataFrame, table
from interp_widgets.analysis._core.tensors import as_array
from interp_widgets.analysis._core.top_k import top_k_indices
from interp_widgets.analysis._core.word_embeddings import word_ids
from interp_widgets.analysis.concepts.concept_set import ConceptSet
from interp_widgets.analysis.concepts.steering import erase, steer
from interp_widgets.arguments import checked
from interp_widgets.models import Model
from interp_widgets.models.chat import PromptInput

Mode = Literal["add", "erase"]
Unit = Literal["gap", "norm"]
"""What a strength of 1 is: the concept's `ConceptSet.gap`, or the norm of an ordinary token's residual stream."""
_NAMES = {"gap": "gaps", "norm": "norms"}
"""A strength in provenance."""
RUNS = ("as it is", "steered", "random direction")
BEYOND = 0.05
"""Largest p of a change that is called beyond chance: what 19 random directions can reach."""


@record
class SteeringComparison(Result):
    """Three runs of one prompt: unsteered, with a concept's direction, with a random direction of the same length."""

    VERSION: ClassVar[int] = 2

    concept: str
    """Name of the concept."""

    prompt_tokens: Sequence[str] = with_axes("positions")
    """Readable tokens of the prompt."""

    written: Sequence[Sequence[str]] = with_axes(3)
    """Readable tokens that each run writes, in the order of `RUNS`."""

    written_ids: Sequence[Sequence[int]] = with_axes(3)
    """Their ids."""

    word: str
    """The concept's name as the next token would begin it."""

    word_probability: Floats = with_axes(3)
    """Probability that the next token is `word`, 0..1."""

    top_tokens: Sequence[str] = with_axes("k")
    """The likeliest tokens of the first two runs, sorted by change of probability."""

    top_ids: Ints = with_axes("k")
    """Their ids."""

    top_probability: Floats = with_axes(3, "k")
    """Their probability as the next token."""

    strength: float
    """Length of the added vector, in the residual stream's units; 0 where the direction was erased."""

    mode: str
    """"add" or "erase"."""

    layers: Ints = with_axes("layers")
    """The residual streams that were changed."""

    random_probability: Floats = with_axes("draws")
    """Probability that the next token is `word` along each random direction, 0..1; the first is the third run."""

    mixed: Mapping[str, float] = field(default_factory=dict, kw_only=True)
    """Other concepts added, and the length of each one's vector, in the residual stream's units."""

    def text(self, run: int) -> str:
        """The text of one run: 0 unsteered, 1 steered, 2 along the random direction."""
        return "".join(self.written[run])

    @property
    def as_much(self) -> int:
        """How many random directions raise the probability of `word` at least as much as the concept's; for a negative
        strength and for erasing, how many lower it as much."""
        away = self.mode == "erase" or self.strength < 0
        steered = self.word_probability[1]
        return int(((self.random_probability <= steered) if away else (self.random_probability >= steered)).sum())

    @property
    def p(self) -> float:
        """(1 + `as_much`) / (1 + draws): at most 0.05 in 5% of all directions, if the concept's were a random one."""
        return (1 + self.as_much) / (1 + len(self.random_probability))

    def in_words(self) -> str:
        """What random directions of the same length do, in a sentence."""
        draws = len(self.random_probability)
        verb = "lower" if self.mode == "erase" or self.strength < 0 else "raise"
        verdict = "beyond chance" if self.p <= BEYOND else "not beyond chance"
        start = f"Of {draws} random direction{'s' * (draws != 1)} of the same length, {self.as_much} "
        few = f", since with {draws} p cannot be below {1 / (1 + draws):.2g}" if 1 / (1 + draws) > BEYOND else ""
        return f"{start}{verb}{'s' * (self.as_much == 1)} it as much: p = {self.p:.2g}, {verdict}{few}"

    def to_frame(self) -> DataFrame:
        """One row per run: its text, and the probability of the concept's word."""
        texts = [self.text(run) for run in range(len(RUNS))]
        return table({"run": RUNS}, {"text": texts, "probability of " + self.word: self.word_probability})


@checked
def compare_steering(
    model: Model,
    concepts: ConceptSet,
    name: str,
    prompt: PromptInput,
    *,
    strength: float = 2.0,
    unit: Unit = "gap",
    layer: SupportsIndex | Sequence[SupportsIndex] | None = None,
    mode: Mode = "add",
    mixed: Sequence[tuple[str, float]] = (),
    max_new_tokens: int = 20,
    temperature: float = 0.0,
    seed: int = 0,
    control_seed: int = 0,
    draws: int = 19,
    top: int = 5,
    other_weights: bool = False,
    progress: Callable[[int, int], None] | None = None,
    check: Callable[[], None] | None = None,
) -> SteeringComparison:
    """Continue a prompt with a concept's direction added or erased, and with two controls.

    The first control is the unsteered model; the second uses a random direction of the same length instead of the
    concept's. A change that the random direction causes too is not an effect of the concept: `SteeringComparison.p`
    tests it on the concept's word with ``draws`` random directions.

    Args:
        model: the model that the set was computed from.
        concepts: from `concept_directions`.
        name: of a concept in the set.
        prompt: text, token ids (then nothing is added) or the messages of a chat (`chat_prompt`).
        strength: in units of ``unit``, negative to steer away; not used by "erase".
        unit: "gap", the concept's `ConceptSet.gap`, or "norm", the norm of an ordinary token's residual stream at the
            first changed layer (``model.profile.stream_norm``), of which a pretrained model's gap may be a twentieth.
            Much less than the norm may change nothing, much more breaks the text: compare with the random direction.
        layer: the streams that are changed, by default the one that the directions were computed in.
        mode: "add" `strength` times the direction, or "erase" it.
        mixed: other concepts whose directions are added (or erased) too, each with a strength in the same unit. The
            random direction is as long as the sum; for erasing, there are as many random directions as concepts.
        max_new_tokens: most tokens to write; 0 for the probabilities alone.
        temperature, seed: of the generation, as in `Model.generate`.
        control_seed: of the random directions.
        draws: random directions for the test, the first of which is the one that the text is written with; 19 are the
            fewest with which p can be 0.05.
        top: number of likeliest next tokens of either run to list.
        other_weights: accept another model of the same sizes, such as the tuned one of a pair.
        progress: called with (done, total) tokens.
        check: called before every token; raises to cancel.

    Raises:
        ValueError: an empty or too long prompt, a concept that is not in the set, another model's set, an unknown layer
            or mode, a strength that is not finite.

    Source: Activation Addition: Steering Language Models Without Optimization (Turner et al. 2023), section 3;
    Permutation p-values should never be zero (Phipson & Smyth 2010), for p.

    Example:
        >>> few = [c for c in demo_concepts() if c.name in ("Paris", "London", "red", "blue")]
        >>> concepts = concept_directions(model, few, layer=3)
        >>> prompt = "The Eiffel Tower is located in the city of"
        >>> result = compare_steering(model, concepts, "London", prompt, layer=range(3, 6), max_new_tokens=1)
        >>> [result.text(run) for run in range(3)]  # as it is, steered, along a random direction
        [' Paris', ' London', ' Paris']
        >>> result.p
        0.05
    """
    concepts.check(model, other_weights=other_weights)
    check_range("draws", draws)
    check_choice("mode", mode, Mode)
    check_choice("unit", unit, Unit)
    check_top(top, model)
    options = RunOptions(progress, check)
    continuation = _Continuation(model, read_prompt(model, prompt), max_new_tokens, temperature, seed, options)
    steering = _Steering.of(model, concepts, [(name, strength), *mixed], layer, unit, mode, control_seed)
    first, *others = steering.controls(draws)
    changes: tuple[AbstractContextManager[None], ...] = (nullcontext(), steering.change(), first)
    runs = [continuation.run(number, change) for number, change in enumerate(changes)]
    random = [runs[-1][0][steering.word], *(continuation.next_token(change)[steering.word] for change in others)]
    return _comparison(steering, continuation, runs, random, top)


@dataclass(frozen=True)
class _Steering:
    """What is done to the residual streams in the second and the third of the `RUNS`."""

    model: Model
    terms: Sequence[tuple[str, float]]
    """Concepts with their strengths in the unit; the first one is compared."""
    unit: Unit
    mode: Mode
    layers: tuple[int, ...]
    directions: Floats
    """(concepts, d_model) those of the concepts."""
    amounts: Sequence[float]
    """Length of each concept's vector, in the residual stream's units; 0 where it is erased."""
    word: int
    """Id of the token that begins the compared concept's name."""
    control_seed: int

    @classmethod
    def of(
        cls,
        model: Model,
        concepts: ConceptSet,
        terms: Sequence[tuple[str, float]],
        layer: SupportsIndex | Sequence[SupportsIndex] | None,
        unit: Unit,
        mode: Mode,
        control_seed: int,
    ) -> _Steering:
        """Look up the concepts; ValueError for a layer, concept or strength that cannot be used."""
        layers = stream_indices(model, concepts.layer if layer is None else layer)
        for _, times in terms:
            if not np.isfinite(times):
                raise ValueError(f"strength must be a finite number, got {times}")
        sizes = [concepts.gap[concepts.index(term)] for term, _ in terms]
        if unit == "norm" and mode == "add":
            sizes = [model.profile.stream_norm(layers[0])] * len(terms)
        amounts = [float(times * size) if mode == "add" else 0.0 for (_, times), size in zip(terms, sizes, strict=True)]
        directions = np.stack([concepts.direction(term) for term, _ in terms])
        name = terms[0][0]
        word = (word_ids(model, [name])[0] or model.tokens(f" {name}", prepend_bos=False))[0]
        return cls(model, terms, unit, mode, layers, directions, amounts, word, control_seed)

    @property
    def added(self) -> Floats:
        """(d_model,) the sum of the concepts' vectors."""
        return np.asarray(np.asarray(self.amounts) @ self.directions)

    def change(self) -> AbstractContextManager[None]:
        """The context in which the concepts are added or erased."""
        if self.mode == "erase":
            return erase(self.model, self.directions, layer=self.layers)
        return _along(self.model, self.added, self.layers)

    def controls(self, draws: int) -> list[AbstractContextManager[None]]:
        """For each draw the context in which a random direction is added, or as many erased as there are concepts."""
        random = np.random.default_rng(self.control_seed).standard_normal((draws, *self.directions.shape))
        if self.mode == "erase":
            return [erase(self.model, rows, layer=self.layers) for rows in random]
        length = np.copysign(np.linalg.norm(self.added), self.amounts[0])
        return [_along(self.model, row / np.linalg.norm(row) * length, self.layers) for row in random[:, 0]]


@dataclass(frozen=True)
class _Continuation:
    """How the prompt is continued in each of the `RUNS`."""

    model: Model
    prompt: Prompt
    max_new_tokens: int
    temperature: float
    seed: int
    options: RunOptions

    def run(self, number: int, change: AbstractContextManager[None]) -> tuple[Floats, list[int]]:
        """(d_vocab,) probability of every next token, and the ids that are written."""
        done = count(number * self.max_new_tokens + 1)

        def report(token: int) -> None:
            self.options.report(next(done), len(RUNS) * self.max_new_tokens)

        with change:
            self.options.stop_if_cancelled()
            probability = _next_token(self.model, self.prompt)
            return probability, _written(
                self.model, self.prompt.ids, self.max_new_tokens, temperature=self.temperature, seed=self.seed,
                check=self.options.check, on_token=report,
            )  # fmt: skip

    def next_token(self, change: AbstractContextManager[None]) -> Floats:
        """(d_vocab,) probability of every next token."""
        self.options.stop_if_cancelled()
        with change:
            return _next_token(self.model, self.prompt)


def _comparison(
    steering: _Steering,
    continuation: _Continuation,
    runs: Sequence[tuple[Floats, list[int]]],
    random: Sequence[float],
    top: int,
) -> SteeringComparison:
    """The result of the three runs."""
    model = steering.model
    (name, strength), *mixed = steering.terms
    probability = np.stack([each for each, _ in runs])
    order = _moved_most(probability, top)
    return SteeringComparison(
        concept=name,
        prompt_tokens=continuation.prompt.tokens(),
        written=tuple(model.token_strings(ids) for _, ids in runs),
        written_ids=tuple(tuple(ids) for _, ids in runs),
        word=model.token_strings([steering.word])[0],
        word_probability=probability[:, steering.word],
        top_tokens=model.single_token_strings(order.tolist()),
        top_ids=order,
        top_probability=probability[:, order],
        strength=steering.amounts[0],
        mode=steering.mode,
        layers=np.array(steering.layers),
        random_probability=np.array(random),
        mixed={term: amount for (term, _), amount in zip(mixed, steering.amounts[1:], strict=True)},
        provenance=provenance(
            model.provenance(), concept=name, mode=steering.mode, temperature=continuation.temperature,
            seed=continuation.seed, **{_NAMES[steering.unit]: float(strength)}, control_seed=steering.control_seed,
            **({"mixed": dict(mixed)} if mixed else {}),
        ),
    )  # fmt: skip


@record
class SteeringSweep(Result):
    """One prompt continued with a concept's direction added at several strengths."""

    VERSION: ClassVar[int] = 2

    concept: str
    """Name of the concept."""

    strengths: Floats = with_axes("strengths", nan=False)
    """In the `Unit` that was asked for."""

    written: Sequence[Sequence[str]] = with_axes("strengths")
    """Readable tokens that are written at each strength."""

    word: str
    """The concept's name as the next token would begin it."""

    word_probability: Floats = with_axes("strengths")
    """Probability that the next token is `word`, 0..1."""

    random_probability: Floats = with_axes("strengths", "draws")
    """Probability that the next token is `word` along each random direction of equal length, 0..1; the same directions
    at every strength."""

    layers: Ints = with_axes("layers")
    """The residual streams that were changed."""

    def text(self, index: int) -> str:
        """The text written at one strength."""
        return "".join(self.written[index])

    @property
    def band(self) -> tuple[Floats, Floats, Floats]:
        """Each (strengths,): the median, and both ends of the middle 95%, of `random_probability`."""
        middle, low, high = np.quantile(self.random_probability, [0.5, 0.025, 0.975], axis=1)
        return middle, low, high

    @property
    def p(self) -> Floats:
        """(strengths,) (1 + random directions that move the word as far) / (1 + draws), as `SteeringComparison.p`: up
        for positive strengths, down for negative ones; 1 at 0."""
        steered, away = self.word_probability[:, None], self.strengths[:, None] < 0
        as_much = np.where(away, self.random_probability <= steered, self.random_probability >= steered)
        return np.asarray((1 + as_much.sum(1)) / (1 + self.random_probability.shape[1]))

    def in_words(self) -> str:
        """At which strengths the concept moves its word beyond chance, in a sentence."""
        draws = self.random_probability.shape[1]
        if 1 / (1 + draws) > BEYOND:
            return f"With {draws} random directions no strength can be told from chance: draw at least 19"
        beyond = [f"{strength:+g}".replace("-", "−") for strength in self.strengths[self.p <= BEYOND].tolist()]
        tested = int((self.strengths != 0).sum())
        return (
            f"Beyond chance at {', '.join(beyond) or 'none'} of {tested} strengths: further than {draws} random "
            f"directions of the same length (p at most {BEYOND} at each strength)"
        )

    def to_frame(self) -> DataFrame:
        """One row per strength: text and probabilities of the concept's word; the median and the middle 95% of those
        along random directions, and p."""
        columns = {"text": [self.text(i) for i in range(len(self.strengths))]}
        probabilities = {f"probability of {self.word}": self.word_probability}
        random = dict(zip(("random", "random_low", "random_high"), self.band, strict=True))
        return table({"strength": self.strengths}, {**columns, **probabilities, **random, "p": self.p})


@checked
def steering_sweep(
    model: Model,
    concepts: ConceptSet,
    name: str,
    prompt: PromptInput,
    *,
    strengths: Sequence[float] = (-4.0, -2.0, -1.0, 0.0, 1.0, 2.0, 4.0),
    unit: Unit = "gap",
    mixed: Sequence[tuple[str, float]] = (),
    layer: SupportsIndex | Sequence[SupportsIndex] | None = None,
    max_new_tokens: int = 20,
    temperature: float = 0.0,
    seed: int = 0,
    control_seed: int = 0,
    draws: int = 19,
    other_weights: bool = False,
    progress: Callable[[int, int], None] | None = None,
    check: Callable[[], None] | None = None,
) -> SteeringSweep:
    """Continue a prompt with a concept's direction added at each of several strengths, beside random directions.

    Args:
        strengths: in units of ``unit``.
        mixed: other concepts, whose strengths are fixed.
        draws: random directions of the same length, the same ones at every strength; 19 are the fewest with which p can
            be 0.05.
        model, concepts, name, prompt, unit, layer, max_new_tokens, temperature, seed, control_seed, other_weights: as
            in `compare_steering`.
        progress: called with (done, total) strengths.
        check: called before every token; raises to cancel.

    Raises:
        ValueError: no strength, or what `compare_steering` refuses.

    >>> from interp_widgets import concept_directions, demo_concepts
    >>> few = [c for c in demo_concepts() if c.name in ("Paris", "London", "red", "blue")]
    >>> concepts = concept_directions(model, few, layer=3)
    >>> prompt = "The Eiffel Tower is located in the city of"
    >>> sweep = steering_sweep(model, concepts, "London", prompt, strengths=(0, 4), layer=range(3, 6), max_new_tokens=1)
    >>> [sweep.text(0), sweep.text(1)]
    [' Paris', ' London']
    """
    if not len(strengths):
        raise ValueError("strengths must hold at least one number, got none")
    concepts.check(model, other_weights=other_weights)
    check_range("draws", draws)
    check_choice("unit", unit, Unit)
    run = RunOptions(progress, check)
    continuation = _Continuation(model, read_prompt(model, prompt), max_new_tokens, temperature, seed, run)
    steered, random, written = [], [], []
    for number, strength in enumerate(strengths):
        steering = _Steering.of(model, concepts, [(name, float(strength)), *mixed], layer, unit, "add", control_seed)
        with steering.change():
            run.stop_if_cancelled()
            steered.append(_next_token(model, continuation.prompt)[steering.word])
            ids = continuation.prompt.ids
            new = _written(model, ids, max_new_tokens, temperature=temperature, seed=seed, check=check)
        written.append(model.token_strings(new))
        if np.any(steering.added):
            random.append([continuation.next_token(change)[steering.word] for change in steering.controls(draws)])
        else:
            random.append([steered[-1]] * draws)  # directions of no length
        run.report(number + 1, len(strengths))
    return SteeringSweep(
        concept=name,
        strengths=np.asarray(strengths, dtype=float),
        written=written,
        word=model.token_strings([steering.word])[0],
        word_probability=np.array(steered),
        random_probability=np.array(random),
        layers=np.array(steering.layers),
        provenance=provenance(
            model.provenance(), concept=name, mode="add", temperature=temperature, seed=seed,
            **{_NAMES[unit]: str(list(strengths))}, control_seed=control_seed, draws=draws,
            **({"mixed": dict(mixed)} if mixed else {}),
        ),
    )  # fmt: skip


def steering_flops(model: Model, n_tokens: int, *, max_new_tokens: int, strengths: int = 1, draws: int = 19) -> float:
    """Operations of `compare_steering` on a prompt of this many tokens, or of `steering_sweep` at several strengths.

    Example:
        >>> few, many = (steering_flops(model, 9, max_new_tokens=5, draws=draws) for draws in (1, 19))
        >>> few < many
        True
    """
    texts = len(RUNS) if strengths == 1 else strengths
    passes = texts + strengths * draws
    return float((texts * max_new_tokens + passes * n_tokens) * flops_per_token(model))


def _along(model: Model, vector: Floats, layers: Sequence[int]) -> AbstractContextManager[None]:
    """Add a vector to the streams; a zero vector changes nothing."""
    length = float(np.linalg.norm(vector))
    return steer(model, vector, layer=layers, strength=length) if length else nullcontext()


def _written(model: Model, ids: Sequence[int], max_new_tokens: int, **options: Any) -> list[int]:
    """The ids that `Model.generate_ids` writes with these options, as many as there is room for in the context."""
    room = min(max_new_tokens, model.n_ctx - len(ids))
    return [] if room <= 0 else model.generate_ids(ids, max_new_tokens=room, **options)


def _next_token(model: Model, prompt: Prompt) -> Floats:
    """(d_vocab,) probability of every next token."""
    logits = model.forward(prompt.embeddings(), positions=slice(-1, None))[0, -1]
    return as_array(logits.cpu().double().softmax(-1))


def _moved_most(probability: Floats, top: int) -> Ints:
    """The likeliest tokens of the unsteered and the steered run, those that gain most first."""
    tokens = np.unique(top_k_indices(probability[:2], top))
    return np.asarray(tokens[top_k_indices(probability[1, tokens] - probability[0, tokens])])
