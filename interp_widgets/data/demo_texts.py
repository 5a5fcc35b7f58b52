"""Short texts of the demo world, of every kind that its models were trained on."""

from __future__ import annotations

import random
from functools import cache

from interp_widgets.data import world, world_tables
from interp_widgets.data.instructions import instruction_cases
from interp_widgets.data.stories import how_to_text, job_text, story


@cache
def demo_texts(n: int = 160, seed: int = 0) -> tuple[str, ...]:
    """Facts, texts about gifts, stories, descriptions of jobs and instructions with their responses, mixed.

    >>> texts = demo_texts(8)
    >>> len(texts), len(set(texts))
    (8, 8)
    """
    rng = random.Random(seed)
    each = -(-n // 4)
    facts = [f"{fact.prompt} {fact.answer}." for fact in rng.sample(world.fact_prompts("train"), each)]
    gifts = [f"{gift.prompt} {gift.answer}." for gift in world.indirect_object_prompts(each, seed=seed, split="train")]
    longer = [story(rng) for _ in range(each // 2)]
    longer += [job_text(job) for job in rng.sample(list(world_tables.JOBS), min(each // 4, len(world_tables.JOBS)))]
    how_to = list(world_tables.HOW_TO)
    longer += [how_to_text(rng.choice(how_to)) for _ in range(each - len(longer))]
    instructed = [f"{case.prompt}{case.response}" for case in instruction_cases("train", each, seed=seed)]
    rounds = zip(facts, gifts, longer, instructed, strict=True)
    return tuple(dict.fromkeys(text for texts in rounds for text in texts))[:n]
