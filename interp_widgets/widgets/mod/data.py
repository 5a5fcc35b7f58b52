"""What is learned and what is solved: given, from a file, or the demo's tasks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from interp_widgets.data.problems import Problem, demo_problems, read_problems

if TYPE_CHECKING:
    from .viewer import MoDRoutingViewer


def learned(panel: MoDRoutingViewer) -> Sequence[Any]:
    """Examples to tune on; ValueError where there are none."""
    if panel.dataset is not None:
        found = list(panel.dataset)
    elif panel.data_file.strip():
        found = list(read_problems(panel.data_file.strip()))
    else:
        found = list(demo_problems("train", panel.examples, panel.seed))
    if not found:
        raise ValueError("the data set is empty: give at least one example with a prompt and a response")
    return found


def solved(panel: MoDRoutingViewer) -> list[Problem]:
    """Held-out problems; ValueError where there are none."""
    if panel.problems is not None:
        found = list(panel.problems)
    elif panel.problem_file.strip():
        found = list(read_problems(panel.problem_file.strip()))
    elif panel.dataset is not None or panel.data_file.strip():
        raise ValueError("there are no held-out problems for this data set: give a file of problems, or problems=")
    else:
        found = list(demo_problems("held_out", panel.n_problems, panel.seed))
    if not found:
        raise ValueError("there are no problems to solve: give at least one")
    wrong = next((one for one in found if not isinstance(one, Problem)), None)
    if wrong is not None:
        raise ValueError(f"problems must come from read_problems or demo_problems, got {type(wrong).__name__}")
    return found[: panel.n_problems]


def learned_words(panel: MoDRoutingViewer) -> str:
    """What is learned, for people."""
    if panel.dataset is not None:
        return f"{len(panel.dataset):,} examples as given"
    return panel.data_file.strip() or f"{panel.examples:,} of the demo's tasks"
