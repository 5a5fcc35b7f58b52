"""Every public analysis computes on an accelerator what it computes on the CPU, with float64 there and without.

That a tensor of the CPU among those of the pretend device raises, so that these tests can fail, is shown in
`test_strict`. On a real device (see `device`) float64 is there.
"""

from __future__ import annotations

import inspect
from contextlib import nullcontext

import pytest

import interp_widgets
from tests.accelerator import device, strict
from tests.accelerator.same import assert_same
from tests.accelerator.table import ARRAYS_ONLY, ROWS, Backend, Setup, group, on_the_cpu

TOLERANCE = 1e-4
"""Sums run in other blocks than on the CPU, and without float64 in float32."""
SETUPS: dict[tuple[str, Backend], bool] = {
    ("gpt2", "hooked"): True, ("llama", "hooked"): False, ("gpt2", "bridge"): False, ("llama", "bridge"): True,
}  # fmt: skip
"""Either family on either backend, and whether the pretend device has float64 there: with and without, either family
and either backend is seen."""
CASES = [
    pytest.param(setup, float64 or not device.PRETEND, marks=group(*setup),
                 id="-".join((*setup, "float64" if float64 or not device.PRETEND else "no_float64")))
    for setup, float64 in SETUPS.items()
]  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize(("setup", "float64"), CASES)
def test_the_numbers_are_those_of_the_cpu(setup: tuple[str, Backend], float64: bool, name: str) -> None:
    wanted = on_the_cpu(name, *setup)
    with nullcontext() if float64 else strict.without_float64(), device.something_runs():
        found = ROWS[name][1](Setup(*setup, device.DEVICE, float64))
    assert_same(found, wanted, tolerance=TOLERANCE)


def test_every_public_function_has_a_row() -> None:
    public = {
        name for name in interp_widgets.__all__ if inspect.isfunction(inspect.unwrap(getattr(interp_widgets, name)))
    }
    rows = {name for names, _ in ROWS.values() for name in names}
    missing = public - rows - ARRAYS_ONLY
    assert not missing, f"no row of the table runs {', '.join(sorted(missing))} on an accelerator"
    assert not rows & ARRAYS_ONLY
    assert rows | ARRAYS_ONLY <= set(interp_widgets.__all__), "a name that is not public any more"
