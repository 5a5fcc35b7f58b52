"""Readers refuse paths of every kind in one sentence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import interp_widgets as iw
from tests.refusals import ODD, complaint

READERS: dict[str, Callable[[Any], Any]] = {
    "load_model": iw.load_model,
    "read_concepts": iw.read_concepts,
    "read_problems": iw.read_problems,
    "read_word_vectors": iw.read_word_vectors,
    "load_translators": iw.load_translators,
    "load": iw.LogitLensResult.load,
}


@pytest.mark.parametrize("name", READERS)
def test_odd_paths(name: str) -> None:
    """Among them names that are too long for a file, and the home of a user who is not there."""
    odd = [*(one for one in ODD if isinstance(one, str)), "~nobody/there", "/" + "x" * 500, "x" * 5000]
    found = {path: complaint(lambda path=path: READERS[name](path)) for path in odd}  # type: ignore[misc]
    assert {path[:20]: fault for path, fault in found.items() if fault is not None} == {}
