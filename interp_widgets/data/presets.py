"""Example prompts whose answer everybody knows, for the widgets that look into one prediction."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Preset:
    """One prompt, what should come next, and what to set it against."""

    name: str
    """What kind of knowledge it asks for."""
    prompt: str
    target: str
    """Text of the expected next token, with its leading space."""
    foil: str
    """A plausible wrong answer, one token."""
    subject: str
    """The words in `prompt` that the answer is about."""
    corrupted: str
    """A prompt of equal length, word by word, whose right answer is another one."""


PRESETS = (
    Preset(
        name="knowledge",
        prompt="The Eiffel Tower is located in the city of",
        target=" Paris",
        foil=" Dubai",
        subject="Eiffel Tower",
        corrupted="The Burj Khalifa is located in the city of",
    ),
    Preset(
        name="indirect object",
        prompt="When Mary and John went to the store, John gave a drink to",
        target=" Mary",
        foil=" John",
        subject="John",
        corrupted="When Mary and John went to the store, Mary gave a drink to",
    ),
    Preset(
        name="gender bias",
        prompt="The nurse said that",
        target=" she",
        foil=" he",
        subject="nurse",
        corrupted="The pilot said that",
    ),
)
"""Knowledge, indirect object and gender bias: the three that Explainability in Large Language Models (Luo 2024),
section 4.1.1, follows through the layers. The demo models know all three."""


def preset(name: str) -> Preset:
    """The preset of a name; ValueError that lists the names.

    >>> preset("knowledge").target
    ' Paris'
    """
    for one in PRESETS:
        if one.name == name:
            return one
    raise ValueError(f"preset must be one of {', '.join(repr(one.name) for one in PRESETS)}, got {name!r}")
