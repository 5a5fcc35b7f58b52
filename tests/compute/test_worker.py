"""The worker: the newest request wins, nothing stale arrives, cancelling works, errors arrive, the thread ends."""

from __future__ import annotations

import itertools
import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from interp_widgets.compute.worker import PROGRESS_INTERVAL, Cancelled, Job, Owner, Worker, worker_for
from tests.waiting import LIMIT, join, provoke


class Clock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def worker() -> Iterator[Worker]:
    made = Worker("test", Clock())
    yield made
    made._shut_down()


def held(gate: threading.Event, value: Any = None, entered: threading.Event | None = None) -> Any:
    """A computation that says when it runs and waits for the gate, checking for a cancel all the while."""

    def work(job: Job) -> Any:
        if entered is not None:
            entered.set()
        while not gate.wait(0.005):
            job.check()
        return value

    return work


def test_result_and_states_arrive_in_order(worker: Worker) -> None:
    owner, seen = Owner(worker=worker), []
    job = owner.submit(lambda job: 6 * 7, on_result=lambda v: seen.append(v), on_state=seen.append)
    assert job.wait(120)
    with owner.lock:
        assert seen == ["queued", "running", 42, "done"]


def test_newest_of_200_requests_wins(worker: Worker) -> None:
    owner, gate, entered = Owner(worker=worker), threading.Event(), threading.Event()
    got: list[int] = []
    jobs = [owner.submit(held(gate, -1, entered), on_result=got.append)]
    assert entered.wait(120)
    jobs += [owner.submit(held(gate, k), on_result=got.append) for k in range(200)]
    gate.set()
    assert all(job.wait(120) for job in jobs)
    assert got == [199]


def test_owners_do_not_replace_each_other(worker: Worker) -> None:
    got: list[int] = []
    jobs = [Owner(worker=worker).submit(lambda job, k=k: k, on_result=got.append) for k in range(3)]
    assert all(job.wait(120) for job in jobs)
    assert got == [0, 1, 2]


def test_a_replaced_run_that_never_checks_delivers_nothing(worker: Worker) -> None:
    owner, gate, entered = Owner(worker=worker), threading.Event(), threading.Event()
    seen: list[Any] = []

    def deaf(job: Job) -> str:
        entered.set()
        gate.wait(120)
        return "stale"

    callbacks = {"on_result": seen.append, "on_error": seen.append, "on_partial": seen.append}
    old = owner.submit(deaf, **callbacks)
    assert entered.wait(120)
    new = owner.submit(lambda job: "new", **callbacks)
    gate.set()
    assert old.wait(120)
    assert new.wait(120)
    assert seen == ["new"]


def test_cancel_of_a_running_request(worker: Worker) -> None:
    owner, entered, states, got = Owner(worker=worker), threading.Event(), [], []
    job = owner.submit(
        held(threading.Event(), 1, entered), on_state=states.append, on_result=got.append, on_error=got.append
    )
    assert entered.wait(120)
    assert owner.cancel()
    assert job.wait(120), "the computation checks, so it must end although its gate never opens"
    assert states == ["queued", "running", "cancelling", "cancelled"]
    assert not got
    assert not owner.cancel()


def test_cancel_of_a_queued_request_ends_it_at_once(worker: Worker) -> None:
    first, second, gate, states = Owner(worker=worker), Owner(worker=worker), threading.Event(), []
    running = first.submit(held(gate))
    waiting = second.submit(lambda job: 1, on_state=states.append)
    second.cancel()
    assert waiting.wait(0)
    assert states == ["queued", "cancelled"]
    gate.set()
    assert running.wait(120)


@pytest.mark.parametrize("error", [ValueError("bad"), SystemExit(3), MemoryError()])
def test_exceptions_are_delivered(worker: Worker, error: BaseException) -> None:
    owner, seen = Owner(worker=worker), []

    def fail(job: Job) -> None:
        raise error

    job = owner.submit(fail, on_error=seen.append, on_state=seen.append)
    assert job.wait(120)
    assert seen == ["queued", "running", error, "failed"]
    again = owner.submit(lambda job: 1, on_result=seen.append)
    assert again.wait(120), "the thread must survive"
    assert seen[-1] == 1


def test_an_exception_while_painting_is_delivered(worker: Worker) -> None:
    owner, seen = Owner(worker=worker), []

    def paint(value: int) -> None:
        raise RuntimeError("cannot paint")

    assert owner.submit(lambda job: 1, on_result=paint, on_error=lambda e: seen.append(str(e))).wait(120)
    assert seen == ["cannot paint"]


def test_an_exception_that_nobody_takes_is_logged(worker: Worker, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, "interp_widgets"):
        assert Owner(worker=worker).submit(lambda job: 1 / 0).wait(120)
    assert "ZeroDivisionError" in caplog.text


def test_progress_is_throttled_and_tells_the_seconds_left(worker: Worker) -> None:
    owner, seen, clock = Owner(worker=worker), [], worker.clock
    assert isinstance(clock, Clock)
    total = 1000

    def work(job: Job) -> None:
        for done in range(total):
            job.progress(done, total)
            clock.now += 0.01

    assert owner.submit(work, on_progress=seen.append).wait(120)
    assert 50 <= len(seen) <= total * 0.01 / PROGRESS_INTERVAL + 1
    assert seen[0].seconds_left is None
    assert seen[-1].seconds_left == pytest.approx((total - seen[-1].done) * 0.01)


def test_partial_results_arrive_while_wanted(worker: Worker) -> None:
    owner, seen = Owner(worker=worker), []

    def work(job: Job) -> str:
        job.partial("half")
        return "whole"

    assert owner.submit(work, on_partial=seen.append, on_result=seen.append).wait(120)
    assert seen == ["half", "whole"]


def test_run_in_the_calling_thread(worker: Worker) -> None:
    owner = Owner(worker=worker)
    assert owner.run(lambda job: threading.current_thread()) is threading.current_thread()
    assert not worker.alive
    with pytest.raises(ZeroDivisionError):
        owner.run(lambda job: 1 / 0)
    assert not owner.busy


def test_run_waits_for_the_device_or_says_that_it_is_busy(worker: Worker) -> None:
    first, second = Owner(worker=worker), Owner(worker=worker)
    gate, entered = threading.Event(), threading.Event()
    job = first.submit(held(gate, None, entered))
    assert entered.wait(120)
    with pytest.raises(RuntimeError, match="device test is busy"):
        second.run(lambda job: 1, wait=False)
    gate.set()
    assert second.run(lambda job: 2) == 2
    assert job.wait(120)


def test_run_replaced_by_a_newer_request_is_cancelled(worker: Worker) -> None:
    owner = Owner(worker=worker)

    def work(job: Job) -> int:
        owner.submit(lambda job: 1)
        return 2

    with pytest.raises(Cancelled):
        owner.run(work)


def test_the_thread_ends_with_the_last_owner_and_comes_back(worker: Worker) -> None:
    first, second = Owner(worker=worker), Owner(worker=worker)
    assert first.submit(lambda job: 1).wait(120)
    thread = worker._thread
    assert thread is not None
    assert thread.name.startswith("interp-widgets")
    first.close()
    assert second.submit(lambda job: 1).wait(120)
    assert worker._thread is thread, "one thread serves all owners of a device"
    second.close()
    join(thread)
    third, got = Owner(worker=worker), []
    assert third.submit(lambda job: 3, on_result=got.append).wait(120)
    assert got == [3]


def test_closing_during_a_run_delivers_nothing_and_ends_the_thread(worker: Worker) -> None:
    owner, entered, seen = Owner(worker=worker), threading.Event(), []
    job = owner.submit(held(threading.Event(), 1, entered), on_result=seen.append, on_error=seen.append)
    assert entered.wait(120)
    thread = worker._thread
    assert thread is not None
    owner.close()
    assert job.wait(120)
    join(thread)
    assert not seen
    with pytest.raises(RuntimeError, match="closed"):
        owner.submit(lambda job: 1)


@pytest.mark.seconds
def test_nothing_is_kept_of_a_delivered_result(worker: Worker) -> None:
    import gc
    import weakref

    class Large:
        pass

    owner, refs = Owner(worker=worker), []
    job = owner.submit(lambda job: Large(), on_result=lambda value: refs.append(weakref.ref(value)))
    assert job.wait(120)
    del job
    assert Owner(worker=worker).submit(lambda job: None).wait(120)
    gc.collect()
    assert refs[0]() is None


def test_a_long_job_gives_way(worker: Worker) -> None:
    """Short requests and callers of `run` get the device before a long job ends; another long job does not."""
    owners = [Owner(worker=worker) for _ in range(4)]
    entered, go, caller = threading.Event(), threading.Event(), threading.Event()
    order: list[str] = []

    def long(job: Job) -> str:
        entered.set()
        while not (caller.is_set() and {"short", "called"} <= set(order)):
            assert go.wait(120)
            job.give_way()
        return "long"

    first = owners[0].submit(long, on_result=order.append, preemptible=True)
    assert entered.wait(120)
    assert worker.current is first
    jobs = [
        owners[1].submit(lambda job: "other long", on_result=order.append, preemptible=True),
        owners[2].submit(lambda job: "short", on_result=order.append),
    ]

    def call() -> None:
        order.append(owners[3].run(lambda job: "called"))
        caller.set()

    thread = threading.Thread(target=call)
    thread.start()
    go.set()
    assert first.wait(120)
    assert jobs[0].wait(120)
    join(thread)
    assert set(order[:2]) == {"short", "called"}
    assert order[2:] == ["long", "other long"]
    assert not worker.busy


def test_owners_in_sight_go_first(worker: Worker) -> None:
    """What is in the background waits for them, also if it was there first; it keeps its own order."""
    gate, entered, order = threading.Event(), threading.Event(), list[str]()
    owners = {name: Owner(worker=worker) for name in ("first", "hidden", "hidden later", "left", "seen", "back")}
    jobs = [owners["first"].submit(held(gate, "first", entered), on_result=order.append)]
    assert entered.wait(120)
    owners["hidden"].in_background = owners["hidden later"].in_background = owners["back"].in_background = True
    for name in ("hidden", "hidden later", "left", "seen", "back"):
        jobs.append(owners[name].submit(lambda job, name=name: name, on_result=order.append))
    owners["left"].in_background, owners["back"].in_background = True, False
    gate.set()
    assert all(job.wait(120) for job in jobs)
    assert order == ["first", "seen", "back", "hidden", "hidden later", "left"]


def test_what_runs_in_between_may_fail_or_be_cancelled(worker: Worker) -> None:
    long_owner, short_owner = Owner(worker=worker), Owner(worker=worker)
    entered, go = threading.Event(), threading.Event()
    heard: list[Any] = []

    def long(job: Job) -> str:
        entered.set()
        assert go.wait(120)
        job.give_way()
        return "long"

    first = long_owner.submit(long, on_result=heard.append, preemptible=True)
    assert entered.wait(120)
    short_owner.submit(lambda job: 1 / 0, on_error=lambda error: heard.append(type(error)))
    go.set()
    assert first.wait(120)
    assert heard == [ZeroDivisionError, "long"]
    second = long_owner.submit(lambda job: job.give_way() or "again", on_result=heard.append, preemptible=True)
    assert second.wait(120)
    assert heard[-1] == "again"
    assert second.yielded_seconds == 0.0


def test_one_worker_per_device() -> None:
    assert worker_for("test:0") is worker_for("test:0")
    assert worker_for("test:0") is not worker_for("test:1")


def test_two_owners_that_share_a_lock_paint_in_turn() -> None:
    lock, inside, overlaps = threading.RLock(), threading.Event(), []
    workers = [Worker("one"), Worker("two")]
    owners = [Owner(worker=worker, lock=lock) for worker in workers]

    def paint(value: int) -> None:
        overlaps.append(inside.is_set())
        inside.set()
        provoke()
        inside.clear()

    jobs = []
    for owner, _ in itertools.product(owners, range(20)):
        jobs.append(owner.submit(lambda job: 1, on_result=paint))
    assert all(job.wait(120) for job in jobs)
    for owner in owners:
        owner.close()
    assert overlaps
    assert not any(overlaps)


def test_leaving_python_during_a_run_is_quiet() -> None:
    code = (
        "import threading\n"
        "from interp_widgets.compute.worker import Owner\n"
        "entered = threading.Event()\n"
        "def work(job):\n"
        "    entered.set()\n"
        "    while True:\n"
        "        job.progress(1, 2)\n"
        "Owner('cpu').submit(work)\n"
        "assert entered.wait(120)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=LIMIT, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
