"""Runs the examples in docstrings: those of public names as a reader would, after the lines of the package's own."""

from __future__ import annotations

import doctest
import os
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

import interp_widgets

MODELS = ("pair", "base", "tuned", "model")


@cache
def start() -> dict[str, Any]:
    """What the lines in the package's docstring define; the models are loaded once per process."""
    names: dict[str, Any] = {"__name__": "__main__"}
    for example in doctest.DocTestParser().get_examples(interp_widgets.__doc__ or ""):
        exec(example.source, names)
    return names


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Give an example its names: a public one nothing of its module, any other one the models that it mentions."""
    if not isinstance(item, pytest.DoctestItem):
        return
    test = item.dtest
    owner = test.name.removeprefix(test.globs.get("__name__", "") + ".").partition(".")[0]
    if owner in interp_widgets.__all__ and test.globs.get(owner) is getattr(interp_widgets, owner):
        test.globs.clear()
        test.globs.update(start())
    elif any(name in example.source for example in test.examples for name in MODELS):
        test.globs.update({name: start()[name] for name in MODELS})


@pytest.fixture(autouse=True)
def own_cache(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What an example keeps between sessions is not kept in the user's folder."""
    if not isinstance(request.node, pytest.DoctestItem):
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", os.fspath(tmp_path_factory.getbasetemp() / "cache"))
        yield
