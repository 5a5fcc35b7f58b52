"""`compare_steering`: what a model writes as it is, steered along a concept, and along a random direction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Literal, SupportsIndex

import numpy as np

from interp_widgets.analysis._core.arrays import Floats, Ints
from interp_widgets.analysis._core.checks import check_choice, check_top, stream_indices
from interp_widgets.analysis._core.prompts import Prompt, read_prompt
from interp_widgets.analysis._core.result import Result, provenance, record, with_axes
from interp_widgets.analysis._core.run import RunOptions
from interp_widgets.analysis._core.tables import DataFrame, table
from interp_widgets.analysis._core.tensors import as_array
from interp_widgets.analysis._core.top_k import largest
from interp_widgets.analysis.concepts.concept_set import ConceptSet
from interp_widgets.analysis.concepts.steering import erase, steer
from interp_widgets.arguments import checked
from interp_widgets.models import Model
from interp_widgets.models.chat import PromptInput

Mode = Literal["add", "erase"]
RUNS = ("as it is", "steered", "random direction")


@record
class SteeringComparison(Result):
    """Three runs of one prompt: as it is, with a concept's direction, with a random direction of the same length."""

    concept: str
    """Whose direction."""

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
    """Tokens that are likeliest in one of the first two runs, by their change."""

    top_ids: Ints = with_axes("k")
    """Their ids."""

    top_probability: Floats = with_axes(3, "k")
    """Their probability as the next token."""

    strength: float
    """What was added, in the residual stream's units; 0 where the direction was erased."""

    mode: str
    """"add" or "erase"."""

    layers: Ints = with_axes("layers")
    """The residual streams that were changed."""

    def text(self, run: int) -> str:
        """What one run wrote, 0 as it is, 1 steered, 2 along the random direction."""
        return "".join(self.written[run])

    def to_frame(self) -> DataFrame:
        """One row per run: what it wrote, and the probability of the concept's word."""
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
    layer: SupportsIndex | Sequence[SupportsIndex] | None = None,
    mode: Mode = "add",
    max_new_tokens: int = 20,
    temperature: float = 0.0,
    seed: int = 0,
    control_seed: int = 0,
    top: int = 5,
    other_weights: bool = False,
    progress: Callable[[int, int], None] | None = None,
    check: Callable[[], None] | None = None,
) -> SteeringComparison:
    """Let a model go on writing with a concept's direction added or erased, beside two controls.

    The first control is the model as it is; the second has a random direction of the same length in the place of the
    concept's. What both of the other runs do is no effect of the concept.

    Args:
        model: the model that the set was made from.
        concepts: from `concept_directions`.
        name: of a concept in the set.
        prompt: text, token ids (then nothing is added) or the messages of a chat (`chat_prompt`).
        strength: in units of the concept's `ConceptSet.gap`, negative to steer away; not used by "erase".
        layer: the streams that are changed, by default the one that the directions were made in.
        mode: "add" `strength` times the direction, or "erase" it.
        max_new_tokens: most tokens to write; 0 for the probabilities alone.
        temperature, seed: of the writing, as in `Model.generate`.
        control_seed: of the random direction.
        top: how many of the likeliest next tokens of either run to keep.
        other_weights: let ``model`` be another one of the same sizes, such as the tuned one of a pair.
        progress: called with (done, total) tokens.
        check: called before every token; raises to cancel.

    Raises:
        ValueError: a prompt that is empty or too long, a concept that is not in the set, another model's set, a layer
            that there is not, a mode that there is not, a strength that is no number.

    Source: Activation Addition: Steering Language Models Without Optimization (Turner et al. 2023), section 3.

    Example:
        >>> few = [c for c in demo_concepts() if c.name in ("Paris", "London", "red", "blue")]
        >>> concepts = concept_directions(model, few, layer=3)
        >>> prompt = "The Eiffel Tower is located in the city of"
        >>> found = compare_steering(model, concepts, "London", prompt, layer=range(3, 6), max_new_tokens=1)
        >>> [found.text(run) for run in range(3)]  # as it is, steered, along a random direction
        [' Paris', ' London', ' Paris']
    """
    concepts.check(model, other_weights=other_weights)
    check_choice("mode", mode, Mode)
    check_top(top, model)
    shown = read_prompt(model, prompt)
    at = concepts.index(name)
    layers = stream_indices(model, concepts.layer if layer is None else layer)
    amount = float(strength * concepts.gap[at]) if mode == "add" else 0.0
    random = np.random.default_rng(control_seed).standard_normal(concepts.d_model)
    word = model.tokens(f" {name}", prepend_bos=False)[0]

    def under(direction: Floats | None) -> AbstractContextManager[None]:
        if direction is None:
            return nullcontext()
        if mode == "erase":
            return erase(model, direction, layer=layers)
        return steer(model, direction, layer=layers, strength=amount)

    room = min(max_new_tokens, model.n_ctx - len(shown.ids))
    run, done = RunOptions(progress, check), 0

    def count(token: int) -> None:
        nonlocal done
        done += 1
        run.report(done, len(RUNS) * max_new_tokens)

    next_token, written = [], []
    for number, direction in enumerate((None, concepts.directions[at], random)):
        done = number * max_new_tokens
        with under(direction):
            run.stop_if_cancelled()
            next_token.append(_next_token(model, shown))
            new = [] if room <= 0 else model.generate_ids(
                shown.ids, max_new_tokens=room, temperature=temperature, seed=seed, check=check, on_token=count,
            )  # fmt: skip
            written.append(new)
    probability = np.stack(next_token)
    order = _moved_most(probability, top)
    return SteeringComparison(
        concept=name,
        prompt_tokens=shown.tokens(),
        written=tuple(model.token_strings(ids) for ids in written),
        written_ids=tuple(tuple(ids) for ids in written),
        word=model.token_strings([word])[0],
        word_probability=probability[:, word],
        top_tokens=model.token_strings(order.tolist()),
        top_ids=order,
        top_probability=probability[:, order],
        strength=amount,
        mode=mode,
        layers=np.array(layers),
        provenance=provenance(
            model.provenance(), concept=name, mode=mode, gaps=float(strength), temperature=temperature, seed=seed,
            control_seed=control_seed,
        ),
    )  # fmt: skip


def _next_token(model: Model, shown: Prompt) -> Floats:
    """(d_vocab,) probability of every next token."""
    logits = model.forward(shown.embeddings(), positions=slice(-1, None))[0, -1]
    return as_array(logits.cpu().double().softmax(-1))


def _moved_most(probability: Floats, top: int) -> Ints:
    """The likeliest tokens as it is and steered, those that gain most first."""
    tokens = np.unique(largest(probability[:2], top))
    return np.asarray(tokens[largest(probability[1, tokens] - probability[0, tokens])])
