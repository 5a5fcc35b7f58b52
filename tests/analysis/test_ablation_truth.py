"""What the ablation maps say about the demo models is true of the demo models, on prompts that they never saw.

Measured on 150 held-out facts and 150 indirect objects, share still answered right (base, tuned):

| ablated | facts | indirect objects |
|---|---|---|
| nothing | 1.00, 1.00 | 1.00, 1.00 |
| MLPs 4 and 5 at the last position (their mean instead) | 0.19, 0.07 | 1.00, 0.99 |
| attention 1 to 5 at the last position (zero) | 0.97, 0.99 | 0.41, 0.65 |
| MLPs 1 to 5 at the subject (zero or mean) | 1.00, 1.00 | 1.00, 0.99 |

So late MLPs carry facts, but at the last position: these small models read the subject's embedding with the attention
of the first layer and recall at the last position, unlike large ones, which enrich the subject's own state first.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor

from interp_widgets.analysis._core.prompts import Prompt, read_prompt
from interp_widgets.analysis.ablation import Ablation, ablate_heads, ablate_modules, ablation, mean_ablation
from interp_widgets.data.world import IOIPrompt, fact_prompts, indirect_object_prompts
from interp_widgets.models import Model
from interp_widgets.models.engine import decode, patched, trace
from interp_widgets.models.patching import Patch
from tests.shipped import demo_pair

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(params=["base", "tuned"], scope="module")
def model(request: pytest.FixtureRequest) -> Model:
    return getattr(demo_pair(), request.param)


@cache
def facts(count: int) -> list[tuple[str, str, str]]:
    """(prompt, answer, subject) of held-out wordings, mixed."""
    cases = fact_prompts("held_out")
    random.Random(5).shuffle(cases)
    return [(case.prompt, case.answer, case.fact.subject) for case in cases[:count]]


@cache
def indirect_objects(count: int) -> list[tuple[str, str, str]]:
    """(prompt, answer, the name that acts) of pairs of names that never met in training."""
    return [(case.prompt, case.answer, case.distractor) for case in indirect_object_prompts(count, seed=21)]


@cache
def usual_texts() -> list[str]:
    some = [case.prompt + " " + case.answer for case in fact_prompts("train")[::400]][:12]
    return some + [case.prompt + " " + case.answer for case in indirect_object_prompts(6, seed=5, split="train")]


def first_token(model: Model, word: str) -> int:
    return model.tokens(" " + word, prepend_bos=False)[0]


# ---- facts come from late MLPs, names from late attention


Where = Callable[[Prompt, str], Sequence[int]]


def at_the_end(prompt: Prompt, subject: str) -> Sequence[int]:
    return [prompt.n_shown - 1]


def at_the_subject(prompt: Prompt, subject: str) -> Sequence[int]:
    return range(*prompt.find(subject))


def accuracy(model: Model, cases: Sequence[tuple[str, str, str]], parts: Sequence[Ablation], where: Where) -> float:
    """Share of cases whose answer still comes first with the parts ablated."""
    right = []
    for text, answer, subject in cases:
        prompt = read_prompt(model, text)
        places = list(where(prompt, subject))
        here = [Ablation(part.kind, part.layer, places, None, part.replacement, part.value) for part in parts]
        with ablation(model, here):
            logits = model.run(prompt.fed_ids()).logits[0, -1]
        right.append(int(logits.argmax()) == first_token(model, answer))
    return float(np.mean(right))


def test_late_mlps_at_the_last_position_carry_facts_and_no_names(model: Model) -> None:
    late = [mean_ablation(model, Ablation("mlp", layer), usual_texts()) for layer in (4, 5)]
    assert accuracy(model, facts(24), [], at_the_end) > 0.95
    assert accuracy(model, facts(24), late, at_the_end) < 0.4
    assert accuracy(model, indirect_objects(24), late, at_the_end) > 0.9


def test_attention_at_the_last_position_carries_names_and_no_facts(model: Model) -> None:
    later = [Ablation("attn", layer) for layer in (1, 2, 3, 4, 5)]
    assert accuracy(model, facts(24), later, at_the_end) > 0.85
    assert accuracy(model, indirect_objects(24), later, at_the_end) < 0.8


def test_mlps_at_the_subject_are_not_where_these_models_recall(model: Model) -> None:
    after_the_first = [Ablation("mlp", layer) for layer in (1, 2, 3, 4, 5)]
    assert accuracy(model, facts(24), after_the_first, at_the_subject) > 0.95
    assert accuracy(model, indirect_objects(24), after_the_first, at_the_subject) > 0.9


def test_the_map_shows_it(model: Model) -> None:
    """What the panel's own picture shows, one layer at a time: the mean effect at the last position."""
    maps = []
    for cases in (facts(10), indirect_objects(10)):
        effects = [
            ablate_modules(
                model, text, first_token(model, answer), kinds=("mlp", "attn"), positions=[-1], metric="probability",
                replacement="mean", reference=usual_texts()[::3],
            ).effect[:, :, 0]
            for text, answer, _ in cases
        ]  # fmt: skip
        maps.append(np.mean(effects, axis=0))
    fact, name = maps
    assert fact[0, 5] > name[0, 5] + 0.1  # measured 0.79 and 0.51 for the base model
    assert fact[0, 4] > name[0, 4] + 0.05  # 0.18 and 0.03
    assert fact[0, 1:4].max() < 0.1


# ---- the heads that carry the name


def names_swapped(case: IOIPrompt) -> str:
    """The text with the two names in each other's place: another answer, the same number of tokens."""
    other = {case.answer: case.distractor, case.distractor: case.answer}
    return re.sub("|".join(rf"\b{name}\b" for name in other), lambda found: other[found.group(0)], case.prompt)


def prompts_with_names_inside(count: int, seed: int) -> list[IOIPrompt]:
    """A name that opens the text has other tokens than one after a space."""
    drawn = indirect_object_prompts(2 * count, seed=seed)
    return [case for case in drawn if not case.prompt.startswith((case.answer, case.distractor))][:count]


def head_map(model: Model) -> np.ndarray:
    """(layers, heads) mean fall of the logit difference when a head sees the swapped names."""
    effects = [
        ablate_heads(
            model, case.prompt, first_token(model, case.answer), metric="logit_difference",
            foil=first_token(model, case.distractor), replacement="resample", corrupted=names_swapped(case),
        ).effect
        for case in prompts_with_names_inside(10, seed=11)
    ]  # fmt: skip
    return np.mean(effects, axis=0)


def accuracies(model: Model, groups: Sequence[Sequence[tuple[int, int]]]) -> Tensor:
    """(groups,) share of new prompts answered right when all heads of a group see the swapped names."""
    right = []
    for case in prompts_with_names_inside(30, seed=77):
        clean, other = (
            trace(model, read_prompt(model, text).embeddings()) for text in (case.prompt, names_swapped(case))
        )
        at = torch.arange(clean.tokens)
        patches = [
            Patch("head", layer, other.head[layer][0, :, head], at, at * 0 + cell, at * 0 + head)
            for cell, group in enumerate(groups)
            for layer, head in group
        ]
        logits = decode(model, patched(model, clean, patches, len(groups)))
        right.append(logits.argmax(-1) == first_token(model, case.answer))
    return torch.stack(right).double().mean(0)


def test_the_heads_found_by_the_map_carry_the_name(model: Model) -> None:
    found = head_map(model)
    order = [(int(i) // model.n_heads, int(i) % model.n_heads) for i in np.argsort(-found.ravel())]
    later = [place for place in order if place[0] > 0]
    draw = random.Random(3)
    at_random = [draw.sample(order[8:], 4) for _ in range(6)]
    at_random_later = [draw.sample(later[6:], 6) for _ in range(4)]
    shares = accuracies(model, [[], order[:2], later[:6], *at_random, *at_random_later])
    assert shares[0] > 0.95
    assert shares[1] < 0.15  # two heads of the first layer carry it all: measured 0.00
    assert shares[2] < 0.7  # behind them six share the work: measured 0.07 (base) and 0.45 (tuned)
    assert shares[3:].min() > 0.9  # measured 0.98 and more
