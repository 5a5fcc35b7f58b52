"""Every public analysis computes on an accelerator what it computes on the CPU, with float64 there and without.

That a tensor of the CPU among those of the device raises, so that these tests can fail, is shown in `test_strict`.
"""

from __future__ import annotations

import functools
import inspect
import traceback
from contextlib import nullcontext
from typing import Any

import pytest

import interp_widgets
from tests.accelerator import strict
from tests.accelerator.same import assert_same
from tests.accelerator.table import ARRAYS_ONLY, ROWS, Backend, Setup

TOLERANCE = 1e-4
"""Sums run in other blocks than on the CPU, and without float64 in float32."""
SETUPS: list[tuple[str, Backend]] = [
    ("gpt2", "hooked"), ("llama", "hooked"), ("gpt2", "bridge"), ("llama", "bridge"),
]  # fmt: skip


@functools.cache
def on_the_cpu(name: str, family: str, backend: Backend) -> Any:
    return ROWS[name][1](Setup(family, backend, "cpu"))


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("float64", [True, False], ids=["float64", "no_float64"])
@pytest.mark.parametrize("setup", SETUPS, ids="-".join)
def test_the_numbers_are_those_of_the_cpu(setup: tuple[str, Backend], float64: bool, name: str) -> None:
    wanted = on_the_cpu(name, *setup)
    with nullcontext() if float64 else strict.without_float64(), strict.counting() as counts:
        try:
            found = ROWS[name][1](Setup(*setup, "strict:0", float64))
        except (TypeError, ValueError) as error:
            _expect_float64(error)
            raise
    assert counts.operations > 10, "something ran on the device"
    assert_same(found, wanted, tolerance=TOLERANCE)


NEED_FLOAT64 = (
    "models/forward.py", "models/frozen.py", "models/compare.py", "models/interventions.py",
    "analysis/ablation/tracing.py", "analysis/ablation/prediction.py", "analysis/ablation/question.py",
    "analysis/concepts/steering.py",
)  # fmt: skip
"""Modules that still compute in float64 on any device."""


def _expect_float64(error: BaseException) -> None:
    """An expected failure, where a module of `NEED_FLOAT64` met a device without it."""
    if "no float64" not in str(error):
        return
    if isinstance(error, ValueError):  # of a data set, whose cases are reported together
        pytest.xfail("a case of the data set needs float64")
    own = [frame.filename for frame in traceback.extract_tb(error.__traceback__) if "interp_widgets" in frame.filename]
    if own[-1].endswith(NEED_FLOAT64):
        pytest.xfail(f"{own[-1]} needs float64")


def test_every_public_function_has_a_row() -> None:
    public = {
        name for name in interp_widgets.__all__ if inspect.isfunction(inspect.unwrap(getattr(interp_widgets, name)))
    }
    rows = {name for names, _ in ROWS.values() for name in names}
    missing = public - rows - ARRAYS_ONLY
    assert not missing, f"no row of the table runs {', '.join(sorted(missing))} on an accelerator"
    assert not rows & ARRAYS_ONLY
    assert rows | ARRAYS_ONLY <= set(interp_widgets.__all__), "a name that is not public any more"
