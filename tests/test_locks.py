"""The order of the locks, device, model, screen: to wait against it is refused, so nothing waits for good."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from interp_widgets import locks
from interp_widgets.compute.worker import Owner, worker_for
from interp_widgets.locks import Rank, RankedLock, held_locks, may_wait_for
from interp_widgets.models.state import Watch, remembered
from interp_widgets.widgets.base.guard import ui_lock
from interp_widgets.widgets.base.workbench import WorkbenchState
from tests.shipped import demo_pair

LONG = 120
"""Seconds after which something that has to happen has not happened."""


@pytest.fixture(autouse=True)
def locks_in_order() -> None:
    """These tests take locks before their turn."""


def in_thread(work: Callable[[], Any]) -> Any:
    """What ``work`` returns, or the exception that it raises, in another thread."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(work())
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(LONG)
    assert found, "the thread waits"
    return found[0]


@contextmanager
def held_elsewhere(lock: Any) -> Iterator[None]:
    """Another thread holds the lock."""
    taken, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            taken.set()
            leave.wait(LONG)

    thread = threading.Thread(target=hold, daemon=True)
    thread.start()
    assert taken.wait(LONG)
    try:
        yield
    finally:
        leave.set()
        thread.join(LONG)


def package_locks() -> dict[str, Any]:
    """The locks that users meet, in their order."""
    pair = demo_pair()
    return {
        "the device cpu": worker_for("cpu").lock,
        "the model demo-base": pair.base.lock,
        "the screen": ui_lock,
    }


PAIRS = list(itertools.combinations(range(3), 2))


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_two_locks_of_the_package_are_taken_in_one_order(first: int, second: int) -> None:
    earlier, later = [list(package_locks().values())[number] for number in (first, second)]
    with earlier, later:
        assert held_locks()[-2:] == [earlier, later]
    assert not held_locks()
    with later, pytest.raises(RuntimeError, match=f"holds the lock of {later.name}.*must not wait for {earlier.name}"):
        earlier.acquire()
    assert not held_locks()


@pytest.mark.parametrize("strict", [False, True])
def test_the_wrong_order_is_refused_where_it_would_wait(strict: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "strict", strict)
    model, screen = RankedLock(Rank.MODEL, "a model"), RankedLock(Rank.SCREEN, "the screen")
    with held_elsewhere(model), screen:
        with pytest.raises(RuntimeError, match=r"a model.*jobs\.start"):
            model.acquire()
        assert held_locks() == [screen]
    with screen:
        if strict:
            with pytest.raises(RuntimeError, match="a model"):
                model.acquire()
        else:  # a free lock makes nobody wait
            with model:
                assert held_locks() == [screen, model]
    assert model.acquire()
    model.release()


def test_an_attempt_that_ends_is_allowed_in_any_order() -> None:
    model, screen = RankedLock(Rank.MODEL, "a model"), RankedLock(Rank.SCREEN, "the screen")
    with screen:
        assert model.acquire(blocking=False)
        model.release()
        assert model.acquire(timeout=0.001)
        model.release()
    with held_elsewhere(model), screen:
        assert not model.acquire(blocking=False)
        assert not model.acquire(timeout=0.001)
    assert not held_locks()


def test_a_lock_is_reentrant_in_any_order() -> None:
    model, screen = RankedLock(Rank.MODEL, "a model"), RankedLock(Rank.SCREEN, "the screen")
    with model, screen, model, screen:
        assert [lock.rank for lock in held_locks()] == [Rank.MODEL, Rank.SCREEN] * 2
        assert not may_wait_for(Rank.MODEL)
        assert not in_thread(lambda: model.acquire(blocking=False))
    assert may_wait_for(Rank.DEVICE)
    assert in_thread(lambda: model.acquire(blocking=False))


def test_only_the_holder_releases() -> None:
    lock = RankedLock(Rank.MODEL, "a model")
    with lock:
        assert isinstance(in_thread(lock.release), RuntimeError)
        assert held_locks() == [lock]
    with pytest.raises(RuntimeError, match="does not hold the lock of a model"):
        lock.release()


def test_a_condition_waits_on_a_ranked_lock() -> None:
    lock = RankedLock(Rank.MODEL, "a model")
    condition, ready = threading.Condition(lock), []  # type: ignore[arg-type]

    def notify() -> None:
        with condition:
            ready.append(True)
            condition.notify()

    with lock, condition:
        thread = threading.Thread(target=notify)
        thread.start()
        assert condition.wait_for(lambda: bool(ready), LONG)
        assert held_locks() == [lock, lock]
        thread.join(LONG)
    assert not held_locks()


def test_of_two_models_taken_in_two_orders_one_is_refused() -> None:
    """A pass of one model inside a pass of another is allowed in any order; a circle of waiting threads is not."""
    first, second = RankedLock(Rank.MODEL, "model 1"), RankedLock(Rank.MODEL, "model 2")
    with second, first:
        assert held_locks() == [second, first]
    both = threading.Barrier(2)

    def take(one: RankedLock, other: RankedLock) -> str:
        with one:
            both.wait(LONG)
            try:
                with other:
                    return "taken"
            except RuntimeError as error:
                return str(error)

    found: list[str] = []
    threads = [
        threading.Thread(target=lambda pair=pair: found.append(take(*pair)), daemon=True)
        for pair in ((first, second), (second, first))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG)
    assert len(found) == 2, "both threads wait"
    assert sum(text == "taken" for text in found) == 1
    assert any("two threads wait for each other" in text for text in found)
    assert not locks._waiting


def test_a_run_is_not_waited_for_while_its_model_is_held() -> None:
    """The worker may need the model, so that the two would wait for each other."""
    owner = Owner("cpu:test")
    try:
        with demo_pair().base.lock, pytest.raises(RuntimeError, match=r"the model demo-base.*the device cpu:test"):
            owner.run(lambda job: 0)
        assert owner.run(lambda job: 6 * 7) == 42
    finally:
        owner.close()


def test_two_workbenches_on_the_same_models_take_them_in_one_order(monkeypatch: pytest.MonkeyPatch) -> None:
    pair, orders = demo_pair(), list[list[str]]()
    for models in ((pair.base, pair.tuned), (pair.tuned, pair.base)):
        bench = WorkbenchState(*models)
        monkeypatch.setattr(bench, "_put_edits", lambda _: orders.append([lock.name for lock in held_locks()]))
        bench.put_edits(())
    assert orders[0] == orders[2]
    assert sorted(orders[0]) == ["the model demo-base", "the model demo-tuned"]


def test_what_is_remembered_of_a_changed_model_is_read_while_it_computes() -> None:
    """A handler gets the last answer at once; whoever may wait gets a new one."""
    model = SimpleNamespace(name="made up", tl_model=torch.nn.Linear(2, 2), lock=RankedLock(Rank.MODEL, "made up"))
    model._watch = Watch(model.tl_model)
    assert remembered(model, "number", lambda: 1) == 1
    model.tl_model.eps = 2.0
    with held_elsewhere(model.lock), ui_lock:
        assert remembered(model, "number", lambda: 2) == 1
    assert remembered(model, "number", lambda: 2) == 2
