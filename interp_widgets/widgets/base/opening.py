"""The example that a panel on a prompt and its response opens on: one that suits the models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from interp_widgets.data.cases import opening_prompt
from interp_widgets.data.presets import PRESETS
from interp_widgets.models.hub_files import DEMO_NAMES
from interp_widgets.models.top_k import likeliest

from .controls import chat_text

QUESTION = "What is the capital of France?"
"""What a model with a chat template is asked."""
ANSWER, SUBJECT, SWAP = "Paris", "France", "France → Italy"


@dataclass(frozen=True)
class Opening:
    """A prompt to open on."""

    prompt: str
    """A text, or a chat."""
    instruction: tuple[int, int] | None = None
    """Characters [start, end) of the instruction in `prompt`, if it has one."""
    answer: str = ""
    """The word of the response that the prompt asks for; empty if it asks for no single word."""
    subject: str = ""
    """The words of the prompt that the answer is about; empty if there are none."""
    swap: str = ""
    """Words of the prompt and those that change the answer, old → new; empty if there are none."""

    def answer_in(self, tokens: Sequence[str]) -> int:
        """The response token with which the answer begins; 0 where it does not occur."""
        return next((at for at, token in enumerate(tokens) if self.answer and token.strip() == self.answer), 0)


def opening_pair(models: Sequence[Any], pairs: Sequence[tuple[str, str]]) -> tuple[str, str]:
    """The first pair of a clean and a corrupted prompt that the last of these models continues differently.

    The first of all for the models that ship, and where no pair differs.
    """
    for clean, corrupted in () if are_demo(models) else pairs:
        if _next_token(models[-1], clean) != _next_token(models[-1], corrupted):
            return clean, corrupted
    return pairs[0]


def _next_token(model: Any, prompt: str) -> int:
    embeddings = model.token_embeddings(model.tokens(prompt))[None]
    return likeliest(model.forward(embeddings, positions=slice(-1, None))[0, -1])


def are_demo(models: Sequence[Any]) -> bool:
    """Whether these are the models that ship, which the demo's data were made for."""
    return all(model.source in DEMO_NAMES for model in models)


def opening_of(models: Sequence[Any]) -> Opening:
    """The demo's own format for the demo models, a chat for models with a template, else the start of a sentence."""
    if are_demo(models):
        case = opening_prompt()
        return Opening(case.prompt, case.instruction)
    if any(model.chat_template is not None for model in models):
        try:
            prompt = chat_text(models, [{"role": "user", "content": QUESTION}])
            return Opening(prompt, answer=ANSWER, subject=SUBJECT, swap=SWAP)
        except ValueError:
            pass  # a template that refuses one message of a user is named when a chat is asked for
    return Opening(PRESETS[0].prompt, answer=PRESETS[0].target.strip(), subject=PRESETS[0].subject)
