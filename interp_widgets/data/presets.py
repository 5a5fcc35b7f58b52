"""Example prompts with well-known answers, for the widgets that examine a single prediction."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Preset:
    """A prompt, its expected next token, and a foil."""

    name: str
    """The kind of knowledge that the prompt asks for."""
    prompt: str
    target: str
    """Text of the expected next token, with its leading space."""
    foil: str
    """A plausible wrong answer, one token."""
    subject: str
    """The words in `prompt` that the answer depends on."""
    corrupted: str
    """A prompt with as many words whose right answer differs."""


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
"""Knowledge, indirect object and gender bias: the prompts that Explainability in Large Language Models (Luo 2024),
section 4.1.1, follows through the layers. The demo models answer all three."""


def preset(name: str) -> Preset:
    """The preset with this name; a ValueError lists the names.

    >>> preset("knowledge").target
    ' Paris'
    """
    for entry in PRESETS:
        if entry.name == name:
            return entry
    raise ValueError(f"preset must be one of {', '.join(repr(entry.name) for entry in PRESETS)}, got {name!r}")
