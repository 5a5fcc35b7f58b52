"""Whether two results hold the same numbers, wherever they were computed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import pandas as pd
from torch import Tensor

NOT_NUMBERS = ("provenance",)
"""Fields that say where a result comes from."""


def assert_same(found: Any, wanted: Any, *, tolerance: float, where: str = "result") -> None:
    """Raise an AssertionError that names the first place where two results differ.

    ``tolerance`` is the largest difference, relative to the largest number of an array. Everything but floats must be
    equal; floats may be of another width.
    """
    assert type(found) is type(wanted), f"{where}: {type(found)} and {type(wanted)}"
    match found:
        case Tensor():
            _same_array(found.detach().cpu().numpy(), wanted.detach().cpu().numpy(), tolerance, where)
        case np.ndarray():
            _same_array(found, wanted, tolerance, where)
        case float():
            _same_array(np.array(found), np.array(wanted), tolerance, where)
        case pd.DataFrame():
            assert_same(found.to_dict("list"), wanted.to_dict("list"), tolerance=tolerance, where=where)
        case str():
            assert found == wanted, f"{where}: {found!r} and {wanted!r}"
        case Mapping():
            assert list(found) == list(wanted), f"{where}: {list(found)} and {list(wanted)}"
            for key in found:
                assert_same(found[key], wanted[key], tolerance=tolerance, where=f"{where}[{key!r}]")
        case list() | tuple():
            assert len(found) == len(wanted), f"{where}: {len(found)} and {len(wanted)} entries"
            for index, (left, right) in enumerate(zip(found, wanted, strict=True)):
                assert_same(left, right, tolerance=tolerance, where=f"{where}[{index}]")
        case _ if is_dataclass(found):
            for field in fields(found):
                if field.name not in NOT_NUMBERS:
                    left, right = getattr(found, field.name), getattr(wanted, field.name)
                    assert_same(left, right, tolerance=tolerance, where=f"{where}.{field.name}")
        case _:
            assert found == wanted, f"{where}: {found!r} and {wanted!r}"


def _same_array(found: np.ndarray[Any, Any], wanted: np.ndarray[Any, Any], tolerance: float, where: str) -> None:
    assert found.shape == wanted.shape, f"{where}: {found.shape} and {wanted.shape}"
    assert found.dtype.kind == wanted.dtype.kind, f"{where}: {found.dtype} and {wanted.dtype}"
    if found.dtype.kind != "f":
        assert np.array_equal(found, wanted), f"{where}: {found} and {wanted}"
        return
    finite = np.isfinite(wanted)
    assert np.array_equal(np.isfinite(found), finite), f"{where}: other numbers are not finite"
    assert np.array_equal(found[~finite], wanted[~finite], equal_nan=True), f"{where}: other numbers are not finite"
    if not finite.any():
        return
    apart = np.abs(found[finite] - wanted[finite]).max()
    assert apart <= tolerance * max(1.0, np.abs(wanted[finite]).max()), f"{where}: {apart:.2g} apart"
