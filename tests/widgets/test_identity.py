"""An ablation holds in one thread: what the worker computes meanwhile is the whole model's, in the cache too."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from interp_widgets.analysis.ablation import Ablation, ablation
from interp_widgets.widgets.identity import Identity
from tests.models.tiny import tiny_model

IDS = (5, 17, 300, 44)
BACKENDS = [pytest.param("hooked", marks=pytest.mark.hooked), "bridge"]


def in_thread(work: Callable[[], Any]) -> Any:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    thread.join()
    return found[0]


@pytest.mark.parametrize("backend", BACKENDS)
def test_only_the_thread_with_the_ablation_has_another_model(backend: str) -> None:
    model, identity = tiny_model("gpt2", backend), Identity()
    clean = identity.of(model)
    keys = []
    for kind in ("mlp", "attn_to_mlp", "mlp"):
        with ablation(model, [Ablation(kind, 1)]):  # type: ignore[arg-type]
            keys.append(identity.of(model))
            assert in_thread(lambda: identity.of(model)) == clean
        assert identity.of(model) == clean
    assert len({clean, *keys}) == 4


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_cache_never_mixes_the_whole_and_the_ablated_model(
    backend: str, classes: Any, make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Reading(classes.Toy):  # type: ignore[misc]
        """Sums up the logits, in whichever thread it is asked to."""

        def compute(self, request: Any, model: Any, **hooks: Any) -> float:
            threads.append(threading.current_thread())
            return float(model.run([*IDS, request.n]).logits.abs().sum())

    threads: list[threading.Thread] = []
    model = tiny_model("gpt2", backend)
    monkeypatch.setattr(model, "gate", threading.Event(), raising=False)  # the fixture expects one

    def wanted(n: int) -> float:
        return float(model.run([*IDS, n]).logits.abs().sum())

    clean = {n: wanted(n) for n in (3, 4, 5)}
    panel = make(model, kind=Reading)
    assert panel.result == pytest.approx(clean[3])
    with ablation(model, [Ablation("both", 1)]):
        ablated = {n: wanted(n) for n in (3, 4)}
        assert panel.run() == pytest.approx(ablated[3])  # computed here, not taken from the cache
        panel.n = 4  # the worker computes
        assert panel.wait(5)
        assert panel.result == pytest.approx(clean[4])
        assert panel.run() == pytest.approx(ablated[4])
    panel.n = 3
    assert panel.wait(5)
    assert panel.result == pytest.approx(clean[3])  # from the cache, where the ablated one is as well
    assert panel.run() == pytest.approx(clean[3])
    panel.n = 4
    assert panel.wait(5)
    assert panel.result == pytest.approx(clean[4])
    assert panel.status.text.endswith("(from cache)")
    assert abs(clean[3] - ablated[3]) > 0.1
    assert {thread is threading.main_thread() for thread in threads} == {True, False}
