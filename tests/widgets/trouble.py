"""Troubles that every panel must come through: broken weights, a failing hook, full memory, Cancel and close."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from interp_widgets.compute.cache import results
from tests.widgets.opening import hooks_on


def complaint(panel: Any) -> str:
    """What a panel says is wrong or missing: a hint at a control, or the error in the status line, and never both."""
    hints = " ".join(panel.hints.values())
    assert bool(hints) != (panel.status.state == "failed"), (hints, panel.status.error)
    return hints or str(panel.status.error)


def told_of_broken_weights(panel: Any, model: Any, match: str) -> None:
    """A weight that is no number is an error; the last good result stays."""
    good = panel.result
    weight = model.tl_model.blocks[2].mlp.W_out
    kept = weight.data.clone()
    try:
        with torch.no_grad():
            weight[0, 0] = float("nan")
        with pytest.raises(ValueError, match=match):
            panel.run(fresh=True)
        assert panel.status.state == "failed"
        assert panel.result is good
    finally:
        with torch.no_grad():
            weight.copy_(kept)


def told_of_a_failing_hook(panel: Any, model: Any) -> None:
    """An exception in a hook of the user is told, leaves no hook behind, and the next run is well."""

    def broken(activation: Any, hook: Any) -> Any:
        raise RuntimeError("the user's hook failed")

    with model.tl_model.hooks(fwd_hooks=[("blocks.1.hook_resid_pre", broken)]):
        with pytest.raises(RuntimeError, match="the user's hook failed"):
            panel.run(fresh=True)
        assert "the user's hook failed" in panel.status.error
    assert hooks_on(model) == 0
    panel.run(fresh=True)
    assert panel.status.state == "done"


def told_of_full_memory(panel: Any, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """Memory that is full in the function ``where`` is a sentence; the last good result stays."""
    good = panel.result

    def full(*args: Any, **kwargs: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(where, full)
    with pytest.raises(Exception, match=r"(?i)memory"):
        panel.run(fresh=True)
    assert "memory" in panel.status.error.lower()
    assert panel.result is good


def cancelled_and_closed(panel: Any, monkeypatch: pytest.MonkeyPatch, change: Callable[[], None]) -> None:
    """A run that `change` asks for and that has no end stops on Cancel and on close; the good result stays."""
    good = panel.result
    entered, stopped = threading.Event(), threading.Event()

    def endless(request: Any, model: Any, *, progress: Any, check: Any, on_partial: Any) -> Any:
        entered.set()
        try:
            while True:
                progress(1, 10)
                check()
        finally:
            stopped.set()

    monkeypatch.setattr(panel, "compute", endless)
    results.clear()  # other tests have asked the same of this model
    change()
    panel.go()
    assert entered.wait(120)
    panel.cancel()
    assert stopped.wait(120)
    assert panel.wait(120)
    assert panel.status.state == "cancelled"
    assert panel.result is good
    entered.clear()
    stopped.clear()
    panel.go()
    assert entered.wait(120)
    panel.close()
    assert stopped.wait(120), "closing must stop the run"
    assert all(hooks_on(model) == 0 for model in panel.models)
    with pytest.raises(RuntimeError, match="is closed"):
        panel.run()
