"""`solve`: which problems a model's generated text answers correctly."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from interp_widgets.analysis._core.arrays import Bools
from interp_widgets.analysis._core.result import Result, provenance, record, with_axes
from interp_widgets.analysis._core.run import RunOptions
from interp_widgets.analysis._core.tables import DataFrame, table
from interp_widgets.arguments import checked
from interp_widgets.data.problems import Problem
from interp_widgets.models import Model


@record
class SolveResult(Result):
    """A model's responses to a list of problems, and whether they are correct."""

    solved: Bools = with_axes("problems")
    """Whether the response gives the correct answer."""

    responses: Sequence[str] = with_axes("problems")
    """The model's responses."""

    prompts: Sequence[str] = with_axes("problems")
    """The prompts."""

    @property
    def accuracy(self) -> float:
        """Share of problems solved, 0..1."""
        return float(np.mean(self.solved))

    def to_frame(self) -> DataFrame:
        """One row per problem."""
        return table({"prompt": self.prompts}, {"response": self.responses, "solved": self.solved})


@checked
def solve(
    model: Model,
    problems: Sequence[Problem],
    *,
    max_new_tokens: int = 40,
    progress: Callable[[int, int], None] | None = None,
    check: Callable[[], None] | None = None,
) -> SolveResult:
    """Let a model answer problems by greedy decoding, and check the answers.

    Args:
        model: what `load_model` or `tune_mod` returns.
        problems: from `read_problems` or `demo_problems`.
        max_new_tokens: most tokens of a response.
        progress: called with (done, total) problems.
        check: called before every token; raises to cancel.

    Raises:
        ValueError: no problems, or one that does not fit the model's context.

    Source: LLM-Adapters (Hu et al. 2023), section 4: only the final answer of the generated text counts.

    Example:
        >>> result = solve(tuned, demo_problems(n=4))
        >>> result.accuracy, result.responses[0]
        (1.0, ' bananas')
    """
    items = list(problems)
    if not items:
        raise ValueError("there are no problems to solve: give at least one")
    for index, problem in enumerate(items):  # before hours of work
        length = len(model.tokens(problem.prompt))
        if length + max_new_tokens > model.n_ctx:
            raise ValueError(
                f"problem {index} has {length} tokens, which with {max_new_tokens} new ones do not fit the model's "
                f"context of {model.n_ctx}: leave it out, or ask for fewer new tokens"
            )
    responses, run = [], RunOptions(progress, check)
    for done, problem in enumerate(items, start=1):
        responses.append(model.generate(problem.prompt, max_new_tokens=max_new_tokens, check=check))
        run.report(done, len(items))
    return SolveResult(
        solved=np.array([problem.solved(text) for problem, text in zip(items, responses, strict=True)]),
        responses=responses,
        prompts=[problem.prompt for problem in items],
        provenance=provenance(model.provenance(), max_new_tokens=max_new_tokens),
    )
