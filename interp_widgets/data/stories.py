"""Stories and explanations of the demo world, in the base model's text and in the tuned model's responses alike."""

from __future__ import annotations

import random

from interp_widgets.data import world_tables as t


def an(noun: str) -> str:
    """Put "a" or "an" before a noun."""
    return ("an " if noun[0] in "aeiou" else "a ") + noun


def story(rng: random.Random, topic: str | None = None) -> str:
    """Write a short story of 40 to 70 words, about the animal or the lost object in `topic`."""
    is_woman = rng.random() < 0.5
    name = rng.choice(t.WOMEN if is_woman else t.MEN)
    he, his = ("she", "her") if is_woman else ("he", "his")
    topic = topic or rng.choice(t.STORY_ANIMALS + t.STORY_FINDS)
    where = rng.choice(t.STORY_PLACES)
    friend = rng.choice([n for n in t.WOMEN + t.MEN if n != name])
    if topic in t.STORY_ANIMALS:
        feeling, gift = rng.choice(t.STORY_FEELINGS), rng.choice(t.STORY_GIFTS)
        return (
            f"One day, {name} saw {an(topic)} near the {where}. The {topic} was {feeling} and did not know what to do. "
            f"{name} went home to get some {gift}. When {he} came back, the {topic} was still there. "
            f"{name} gave it the {gift}, and the {topic} was not {feeling} any more. "
            f"From that day on, {name} and the {topic} were good friends."
        )
    return (
        f"One day, {name} found {an(topic)} near the {where}. It was old and very beautiful. "
        f"{name} asked {friend}, but {friend} did not know the {topic}. So {name} took the {topic} home "
        f"and put it on {his} table. In the evening, {friend} came to see it again. "
        f"They talked about the {topic} for a long time, and {name} was happy."
    )


def job_text(job: str) -> str:
    """Describe what a person with this job does, in about 45 words."""
    where, action, tool, glad = t.JOBS[job]
    return (
        f"A {job} works in the {where}. Every day the {job} {action}. "
        f"To do this work, the {job} needs {an(tool)} and a lot of time. "
        f"It is not easy to be {an(job)}, but {glad} are glad that there is someone who {action}."
    )


def how_to_text(task: str) -> str:
    """Explain a small task in four steps."""
    first, second, third, fourth, result = t.HOW_TO[task]
    return (
        f"This is how you {task}. First, {first}. Then {second}. After that, {third}. "
        f"Finally, {fourth}. Take your time and do one step after the other. In the end you have {result}."
    )
