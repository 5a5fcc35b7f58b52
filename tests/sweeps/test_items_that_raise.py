"""One item ends nothing but itself, whatever it is, holds or raises; Ctrl+C ends a sweep."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from interp_widgets import read_sweep, sweep
from interp_widgets.sweeps import backends
from tests.sweeps.jobs import NoText, Sly, raises_anything, square
from tests.waiting import LIMIT

ERRORS = (
    "", "SystemExit: 3", "KeyboardInterrupt: ", "GeneratorExit: ", "Stop: enough",
    "NoText: (its text raises RuntimeError)", "SystemExit: the end", "",
)  # fmt: skip


@pytest.mark.parametrize("backend", [None, 1, "threads"])
def test_whatever_an_item_raises_is_the_error_of_its_row(backend: Any, tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        result = sweep(raises_anything, range(8), backend=pool if backend == "threads" else backend, out=tmp_path / "o")
    assert result.errors == ERRORS
    assert read_sweep(tmp_path / "o").errors == ERRORS


@pytest.mark.parametrize("backend", [None, 1])
@pytest.mark.parametrize("method", ["repr", "str", "getstate", "setstate"])
def test_items_whose_methods_raise(backend: int | None, method: str) -> None:
    """As a value, as a key and as an entry."""
    sly = Sly(method)
    items = [{"n": 1}, {"n": 2, "sly": sly}, {"n": 3, sly: 1}, {"n": 4, "list": [sly]}, {"n": 5}]
    result = sweep(square, items, arguments=["n"], backend=backend)
    assert len(result.rows) == 5
    assert [result.errors[row] for row in (0, 4)] == ["", ""]
    for row in (1, 2, 3):
        assert result.errors[row] == "" or "SystemExit" in result.errors[row]
    good = [row for row, error in enumerate(result.errors) if not error]
    assert result.numbers("square")[good].tolist() == [(row + 1) ** 2 for row in good]


def test_a_dask_cluster_with_items_that_exit() -> None:
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(1, processes=False, threads_per_worker=1, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
    ):
        assert sweep(raises_anything, range(8), backend=client).errors == ERRORS


ODD = [
    np.longdouble(1.5), np.float16(0.5), np.clongdouble(1), 1j, np.datetime64("2020-01-01"), np.void(b"abc"), b"bytes",
    np.bool_(True), 10**400, -(2**63), "half \ud800", object(), Sly("repr"), [1, [2]], float("inf"), None, Ellipsis,
]  # fmt: skip


@pytest.mark.parametrize("out", [False, True])
def test_odd_values_as_items_keys_and_results(out: bool, tmp_path: Path) -> None:
    def give(index: int) -> Any:
        return ODD[index]

    def folder(name: str) -> Path | None:
        return tmp_path / name if out else None

    as_items = sweep(lambda item: 1, ODD, out=folder("items"))
    assert as_items.errors == ("",) * len(ODD)
    as_columns = sweep(lambda row: 1, [{"a": value, n: 1} for n, value in enumerate(ODD)], out=folder("columns"))
    assert as_columns.errors == ("",) * len(ODD)
    as_results = sweep(give, range(len(ODD)), out=folder("results"))
    refused = {2, 3, 4, 5, 6, 8, 11, 12, 13, 16}
    assert {row for row, error in enumerate(as_results.errors) if error} == refused
    names = sweep(lambda n: {("half \ud800", "\udfff")[n]: n}, range(2), out=folder("names"))
    assert names.number_names[-2:] == ("half \\ud800", "\\udfff")
    surrogate = sweep(lambda row: 1, [{"half \ud800": 2}], out=folder("key"))
    assert surrogate.numbers("half \\ud800").tolist() == [2]
    mixed = [True, 1.5, None, 3]
    assert sweep(lambda n: mixed[n], range(4), out=folder("mixed")).numbers("value") == pytest.approx(
        [1, 1.5, np.nan, 3], nan_ok=True
    )


def test_names_that_clash_later_are_errors_of_their_rows() -> None:
    results: list[dict[Any, Any]] = [{"m": 1}, {"n": 2}, {1: 1, "1": 2}, {"m": 4}]
    result = sweep(lambda row: results[row["n"]], [{"n": n} for n in range(4)])
    assert result.errors[0] == result.errors[3] == ""
    assert "'n' is both a measure and a column of the data" in result.errors[1]
    assert "two columns are named '1'" in result.errors[2]


def test_an_error_whose_text_raises_ends_no_sweep() -> None:
    def fail(n: int) -> int:
        raise NoText

    assert sweep(fail, range(2)).errors == ("NoText: (its text raises RuntimeError)",) * 2


# Ctrl+C ---------------------------------------------------------------------------------------------------------------


def swallowing(n: int) -> int:
    if n == 2:
        signal.raise_signal(signal.SIGINT)
    return n


def turning(n: int) -> int:
    try:
        return swallowing(n)
    except BaseException as error:
        raise ValueError("a library failed") from error


def hiding(n: int) -> int:
    try:
        return swallowing(n)
    except BaseException:
        return -1


@pytest.fixture
def heard() -> Iterator[None]:
    """Ctrl+C is heard, also in a job that a shell runs in the background, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("heard")
@pytest.mark.parametrize("function", [swallowing, turning, hiding])
@pytest.mark.parametrize("threads", [False, True])
def test_ctrl_c_ends_a_sweep_whatever_the_item_makes_of_it(
    function: Callable[[int], int], threads: bool, tmp_path: Path
) -> None:
    before = signal.getsignal(signal.SIGINT)

    class Here:
        def submit(self, call: Callable[..., Any], *arguments: Any) -> Future[Any]:
            future: Future[Any] = Future()
            future.set_result(call(*arguments))
            return future

    with pytest.raises(KeyboardInterrupt):
        sweep(function, range(3), out=tmp_path / "out", backend=Here() if threads else None)
    assert signal.getsignal(signal.SIGINT) is before
    kept = read_sweep(tmp_path / "out") if (tmp_path / "out" / "sweep.json").exists() else None
    assert kept is None or kept.numbers("value").tolist() in ([0, 1], [])


def test_a_sweep_in_a_thread_leaves_the_signals_alone() -> None:
    before = signal.getsignal(signal.SIGINT)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(sweep, square, range(3)).result(60).n_failed == 0
    assert signal.getsignal(signal.SIGINT) is before


def test_a_copy_of_the_process_that_an_item_makes_ends_alone(tmp_path: Path) -> None:
    """`sys.exit` in a forked child ends that child, and the folder stays that of its parent."""
    seen: list[int] = []

    def forks(n: int) -> int:
        child = os.fork() if n == 1 else None
        if child == 0:
            try:
                raise SystemExit(0)
            finally:
                threading.Timer(LIMIT, os._exit, [1]).start()
        if child is not None:
            seen.append(child)
            assert (tmp_path / "out" / "sweep.lock").exists()
        return n

    try:
        result = sweep(forks, range(3), out=tmp_path / "out")
    except SystemExit:  # the child
        os._exit(0)
    os.waitpid(seen[0], 0)
    assert result.numbers("value").tolist() == [0, 1, 2]


# clusters without workers ---------------------------------------------------------------------------------------------


class Cluster:
    """As Dask's client."""

    def __init__(self, workers: int, after: int) -> None:
        self.workers, self._after = workers, after

    def nthreads(self) -> dict[str, int]:
        return {str(number): 1 for number in range(self.workers)}

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Any:
        self.workers = self._after
        return Slow(lambda: function(*arguments))


class Slow:
    """A future that is done after a few looks."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call, self._looks = call, 0

    def done(self) -> bool:
        self._looks += 1
        return self._looks > 5

    def result(self) -> Any:
        return self._call()

    def cancel(self) -> None: ...


@pytest.mark.parametrize("before", [0, 2])
def test_a_cluster_without_workers_is_left_with_a_sentence(before: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_WAIT", "_LOOK_AT_WORKERS", "_WITHOUT_WORKERS"):
        monkeypatch.setattr(backends, name, 0.0)
    with pytest.raises(RuntimeError, match=r"has had no worker for \d+ seconds.*run the same line again to go on"):
        sweep(square, range(3), backend=Cluster(before, after=0))
    assert sweep(square, range(3), backend=Cluster(before, after=1)).n_failed == 0  # slow items, and workers


class KilledWorker(Exception):
    """As Dask's, which has run the item several times."""


@pytest.mark.parametrize(("error", "failures", "runs"), [(OSError, 1, 2), (OSError, 2, 2), (KilledWorker, 1, 1)])
def test_an_item_is_run_once_more_if_the_backend_fails(error: type[Exception], failures: int, runs: int) -> None:
    submitted: list[int] = []

    class Losing:
        def nthreads(self) -> dict[str, int]:
            return {"worker": 1}

        def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
            future: Future[Any] = Future()
            item = arguments[-1].value()
            submitted.append(item)
            if item == 1 and submitted.count(1) <= failures:
                future.set_exception(error("the result was lost"))
            else:
                future.set_result(function(*arguments))
            return future

    found = sweep(square, range(3), backend=Losing())
    assert submitted.count(1) == runs
    assert (found.n_failed == 0) == (failures < runs)
    assert ("the result was lost" in found.errors[1]) == (failures >= runs)
    assert found.numbers("square")[[0, 2]].tolist() == [0, 4]


def test_an_executor_that_was_shut_down_is_refused_with_a_sentence() -> None:
    pool = ThreadPoolExecutor(1)
    pool.shutdown()
    with pytest.raises(RuntimeError, match=r"the backend accepts no more items .*with a new executor"):
        sweep(square, range(3), backend=pool)
