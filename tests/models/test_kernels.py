"""cuDNN's attention is off while a pass of the engine runs, and as it was afterwards."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import interp_widgets as iw
from interp_widgets.models.engine import kernels, native
from tests.models.tiny import tiny_model

enabled = torch.backends.cuda.cudnn_sdp_enabled


@pytest.fixture(params=[True, False], ids=["on", "off"])
def before(request: pytest.FixtureRequest) -> Iterator[bool]:
    at_first = enabled()
    torch.backends.cuda.enable_cudnn_sdp(request.param)
    yield request.param
    torch.backends.cuda.enable_cudnn_sdp(at_first)


def test_it_is_as_it_was_afterwards(before: bool) -> None:
    with kernels.no_plan_per_shape():
        with kernels.no_plan_per_shape():
            assert not enabled()
        assert not enabled()
    assert enabled() == before


def test_it_is_as_it_was_after_an_error(before: bool) -> None:
    def fail() -> None:
        with kernels.no_plan_per_shape():
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert enabled() == before


def test_the_last_of_two_threads_puts_it_back(before: bool) -> None:
    entered, leave = threading.Event(), threading.Event()

    def stay() -> None:
        with kernels.no_plan_per_shape():
            entered.set()
            assert leave.wait(60)

    other = threading.Thread(target=stay)
    with kernels.no_plan_per_shape():
        other.start()
        assert entered.wait(60)
    assert not enabled()
    leave.set()
    other.join()
    assert enabled() == before


def test_passes_of_the_engine_run_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []
    model = tiny_model("llama", "bridge")
    attend = native.Block.attend

    def watched(self: Any, *args: Any, **options: Any) -> torch.Tensor:
        seen.append(enabled())
        return attend(self, *args, **options)

    monkeypatch.setattr(native.Block, "attend", watched)
    iw.logit_lens(model, "The capital of France")
    assert seen
    assert not any(seen)
    assert enabled()
