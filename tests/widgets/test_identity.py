"""An ablation holds in one thread: what the worker computes meanwhile is the whole model's, in the cache too."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from interp_widgets.analysis.ablation import Ablation, ablation
from interp_widgets.models import Model, contents
from interp_widgets.models import reading as digests
from interp_widgets.models.state import facts, facts_of
from interp_widgets.widgets.base.identity import Identity
from tests.models.state_edits import EDITS, Undo, edited, numpy_element
from tests.models.tiny import tiny_model

IDS = (5, 17, 300, 44)
BACKENDS = [pytest.param("hooked", marks=pytest.mark.hooked), "bridge"]


@pytest.fixture
def reading(classes: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A panel that sums up the logits, and the requests that it has computed."""

    class Reading(classes.Toy):  # type: ignore[misc]
        computed: list[tuple[str, int]] = []  # noqa: RUF012

        def compute(self, request: Any, model: Any, **hooks: Any) -> float:
            self.computed.append((model.name, request.n))
            return float(model.run([*IDS, request.n]).logits.double().abs().sum())

    return Reading


def first_value_of_an_mlp(model: Model) -> Undo:
    """An edit of one value that leaves no trace in PyTorch."""
    values = model.tl_model.blocks[1].mlp.original_component.c_fc.original_component.weight.detach().numpy()
    before = float(values[0, 0])
    values[0, 0] += 1
    return lambda: values.__setitem__((0, 0), before)


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
        assert panel.wait(120)
        assert panel.result == pytest.approx(clean[4])
        assert panel.run() == pytest.approx(ablated[4])
    panel.n = 3
    assert panel.wait(120)
    assert panel.result == pytest.approx(clean[3])  # from the cache, where the ablated one is as well
    assert panel.run() == pytest.approx(clean[3])
    panel.n = 4
    assert panel.wait(120)
    assert panel.result == pytest.approx(clean[4])
    assert panel.status.text.endswith("(from cache)")
    assert abs(clean[3] - ablated[3]) > 0.1
    assert {thread is threading.main_thread() for thread in threads} == {True, False}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: edit.__name__)
def test_after_an_edit_a_panel_computes_again(
    edit: Callable[[Model], Undo], backend: str, make: Callable[..., Any], reading: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    model = tiny_model("llama", backend)
    monkeypatch.setattr(model, "gate", threading.Event(), raising=False)  # the fixture expects one
    panel = make(model, kind=reading)
    first, count = panel.run(), len(panel.computed)
    assert panel.run() == first
    assert len(panel.computed) == count, "the cache answers"
    with edited(model, edit):
        wanted = float(model.run([*IDS, 3]).logits.double().abs().sum())
        assert panel.run() == pytest.approx(wanted)
        assert len(panel.computed) == count + 1
        panel.n = 4
        assert panel.wait(120)
        panel.n = 3
        assert panel.wait(120)
        assert panel.result == pytest.approx(wanted)
    count = len(panel.computed)
    assert panel.run() == first
    assert len(panel.computed) == count, "the model is again what it was"


def test_a_run_reads_the_tokenizer_once_before_it_computes(
    make: Callable[..., Any], reading: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes half a second for a vocabulary of 262,144, and a picture waits for it."""
    model, counts, reads = tiny_model.__wrapped__("llama", "bridge"), list[int](), list[Any]()
    monkeypatch.setattr(model, "gate", threading.Event(), raising=False)  # the fixture expects one
    monkeypatch.setattr("interp_widgets.models.state._facts", {})  # of equal models in other tests
    usual = digests._tokenizer_text
    monkeypatch.setattr(digests, "_tokenizer_text", lambda tokenizer: reads.append(tokenizer) or usual(tokenizer))

    class Counting(reading):  # type: ignore[misc]
        def compute(self, request: Any, model: Any, **hooks: Any) -> float:
            counts.append(len(reads))
            return float(super().compute(request, model, **hooks))

    panel = make(model, kind=Counting)
    assert panel.wait(120)
    assert (counts, len(reads)) == ([1], 3), "the key before and after, and what a session says of the model"
    panel.n = 4
    assert panel.wait(120)
    assert (counts, len(reads)) == ([1, 4], 5)
    assert facts_of(model, panel.shown_states[0][0], wait=0) == facts(model)
    assert len(reads) == 6, "a session knows the model without reading it"


@pytest.mark.seconds
def test_one_model_is_never_answered_with_the_numbers_of_another(
    make: Callable[..., Any], reading: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two equal models, edited in as many steps, but differently."""
    models = [tiny_model.__wrapped__("gpt2", "bridge") for _ in range(2)]
    panels = []
    for model in models:
        monkeypatch.setattr(model, "gate", threading.Event(), raising=False)
        panels.append(make(model, kind=reading))
    assert panels[0].run() == panels[1].run()
    for model, factor in zip(models, (0.5, 2.0), strict=True):
        with torch.no_grad():
            model.tl_model.blocks[1].mlp.original_component.c_fc.original_component.weight.mul_(factor)
    values = [panel.run() for panel in panels]
    assert values[0] != pytest.approx(values[1])
    assert [panel.run() for panel in panels] == values


@pytest.mark.seconds
def test_the_cache_of_a_large_model_is_asked_by_the_worker(
    make: Callable[..., Any], reading: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The interface cannot read such a model at every key press; nothing stale is shown all the same."""
    monkeypatch.setattr(contents, "READ_BYTES", 0)
    model = tiny_model.__wrapped__("gpt2", "bridge")
    monkeypatch.setattr(model, "gate", threading.Event(), raising=False)
    panel = make(model, kind=reading)
    first, count = panel.run(), len(panel.computed)
    panel.n = 4
    assert panel.wait(120)
    assert len(panel.computed) == count + 1
    panel.n = 3
    assert panel.wait(120)
    assert panel.result == first
    assert len(panel.computed) == count + 1, "from the cache"
    assert panel.status.text.endswith("(from cache)")
    undo = first_value_of_an_mlp(model)
    panel.n = 4
    assert panel.wait(120)
    assert len(panel.computed) == count + 2
    undo()


def test_what_was_computed_while_the_model_was_edited_is_not_kept(
    make: Callable[..., Any], reading: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_model.__wrapped__("llama", "bridge")
    monkeypatch.setattr(model, "gate", threading.Event(), raising=False)
    panel = make(model, kind=reading)
    first = panel.run()
    plain, undo = reading.compute, list[Undo]()

    def meddled(self: Any, request: Any, model: Any, **hooks: Any) -> float:
        undo.append(numpy_element(model))
        return float(plain(self, request, model, **hooks))

    monkeypatch.setattr(reading, "compute", meddled)
    other = panel.run(fresh=True)
    undo.pop()()
    monkeypatch.setattr(reading, "compute", plain)
    assert other != first
    assert panel.run() == first
