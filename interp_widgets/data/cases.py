"""Prompts with a known instruction, ready for the saliency tools."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from interp_widgets.arguments import checked
from interp_widgets.data.instructions import follows, instruction_cases, make_case


@checked
@dataclass(frozen=True)
class SaliencyCase:
    """A prompt for a saliency map, with its response, instruction and label if known.

    Example:
        >>> case = SaliencyCase("Name a colour. Bees like flowers.", " red", instruction=(0, 14), label=True)
        >>> case.prompt[slice(*case.instruction)]
        'Name a colour.'
    """

    prompt: str
    """All text before the response."""
    response: str | None = None
    """The response with its leading space; None lets the model write it."""
    instruction: tuple[int, int] | None = None
    """Characters [start, end) of the instruction's words in `prompt`."""
    label: bool | None = None
    """Whether the response follows the instruction; None if unknown."""
    name: str = ""
    """Name of the case in tables; may be empty."""
    follows: Callable[[str], bool] | None = field(default=None, compare=False, repr=False)
    """A function that decides whether the text of a response follows the instruction; None without one."""


@checked
def demo_cases(n: int = 100, seed: int = 0) -> list[SaliencyCase]:
    """Draw `n` saliency cases from the held-out instructions, with their reference responses.

    Args:
        n: number of cases.
        seed: of the draw; the same seed gives the same cases.

    Example:
        >>> case = demo_cases(1)[0]
        >>> case.prompt[slice(*case.instruction)], case.response
        ('Please write the plural form of this word.', ' bananas')
        >>> case.follows(case.response), case.follows(" nonsense")
        (True, False)
    """
    return [
        SaliencyCase(
            case.prompt, case.response, case.instruction_span, True, f"{i:03d} {case.task}", partial(follows, case)
        )
        for i, case in enumerate(instruction_cases("held_out", n, seed))
    ]


def opening_prompt() -> SaliencyCase:
    """The first prompt of the saliency explorer: 12 of the 15 tokens of the tuned model's correct answer depend on it,
    by 0.01 of their probability or more."""
    case = make_case(
        "list", (5, 2), "five colours", "", layout="input_first",
        context="The Eiffel Tower is located in the city of Paris.",
    )  # fmt: skip
    return SaliencyCase(case.prompt, None, case.instruction_span, None, "opening", partial(follows, case))


def default_prompt() -> SaliencyCase:
    """A prompt that the tuned model answers in about thirty tokens, only two of which depend on it noticeably."""
    case = make_case(
        "country", (1, 1), "Japan", "", context="When Mary and Paul went to the park, Paul gave a ball to Mary."
    )
    return SaliencyCase(case.prompt, None, case.instruction_span, None, "default")
