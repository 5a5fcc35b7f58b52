"""Sweeps: every item once, whatever fails, dies or is stopped; and what is kept of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pandas as pd
import psutil
import pytest
import torch

from interp_widgets import HeadMap, Model, load_model, logit_lens, read_sweep, sweep
from interp_widgets.sweeps import store
from interp_widgets.sweeps.items import Item, item_hash
from tests.sweeps.jobs import dies_at, fails_at_two, square, threads, waits_for
from tests.waiting import LIMIT, until

PROMPTS = ["The Eiffel Tower is in the city of", "The capital of Italy is", "She gave the book to"]


# what comes back ------------------------------------------------------------------------------------------------------


def test_a_row_per_item_in_their_order() -> None:
    result = sweep(square, range(5))
    frame = result.to_frame()
    assert frame["square"].tolist() == [0, 1, 4, 9, 16]
    assert result.texts("parity") == ("even", "odd", "even", "odd", "even")
    assert list(frame.columns) == ["row", "item", "square", "parity", "error", "seconds"]
    assert result.measured == ("square", "parity")
    assert (frame["seconds"] >= 0).all()


def test_an_item_that_fails_is_kept_with_its_error() -> None:
    result = sweep(fails_at_two, range(4))
    assert result.errors == ("", "", "ValueError: two is refused", "")
    assert result.to_frame()["square"].dropna().tolist() == [0, 1, 9]
    assert result.n_failed == 1


def test_a_table_whose_every_item_fails_still_comes() -> None:
    result = sweep(fails_at_two, [2, 2])
    assert result.n_failed == 2
    assert result.number_measures == ()
    assert len(result.summary()) == 0


def test_rows_of_all_kinds_of_data(tmp_path: Path) -> None:
    rows = [{"prompt": "a", "n": 1}, {"prompt": "bb", "n": 2}]
    frame = pd.DataFrame(rows)
    frame.to_csv(tmp_path / "rows.csv", index=False)
    frame.to_parquet(tmp_path / "rows.parquet")
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    datasets = pytest.importorskip("datasets")
    sources: list[Any] = [rows, iter(rows), frame, datasets.Dataset.from_list(rows)]
    sources += [tmp_path / f"rows.{suffix}" for suffix in ("csv", "parquet", "json", "jsonl")]
    for source in sources:
        result = sweep(lambda text: {"length": len(text)}, source, arguments={"text": "prompt"})
        assert result.numbers("length").tolist() == [1, 2], source
        assert result.texts("prompt") == ("a", "bb"), source


def test_lines_of_a_text_file(tmp_path: Path) -> None:
    (tmp_path / "prompts.txt").write_text("one\n\ntwo\n")
    assert sweep(len, str(tmp_path / "prompts.txt")).texts("item") == ("one", "two")


@pytest.mark.seconds
def test_measures_of_a_result_are_its_row() -> None:
    model = load_model("demo-base")
    result = sweep(partial(logit_lens, model), [*PROMPTS, ""])
    for i, prompt in enumerate(PROMPTS):
        alone = logit_lens(model, prompt).measures()
        assert result.texts("top_token")[i] == alone["top_token"]
        assert result.numbers("entropy")[i] == alone["entropy"]
    assert "the prompt holds only special tokens" in result.errors[3]
    assert result.provenance["weight_hash"] == model.weight_hash


def test_a_result_without_measures_stops_at_once() -> None:
    with pytest.raises(TypeError, match="HeadMap has no measures for a row of a table: give measure="):
        sweep(lambda n: HeadMap([[float(n)]]), range(3))
    result = sweep(lambda n: HeadMap([[float(n)]]), range(3), measure=lambda one: {"top": one.values.max()})
    assert result.numbers("top").tolist() == [0, 1, 2]


def test_a_result_that_makes_no_row_stops_no_sweep_that_has_rows(tmp_path: Path) -> None:
    for odd in (0, 2):
        result = sweep(lambda n, odd=odd: [n] if n == odd else n, range(4), out=tmp_path / str(odd))
        assert [row for row, error in enumerate(result.errors) if "must return numbers or strings" in error] == [odd]
        assert result.n_failed == 1


def test_progress_counts_every_item_once(tmp_path: Path) -> None:
    sweep(len, ["a", "b", "c"], out=tmp_path / "out")
    seen: list[tuple[int, int]] = []
    sweep(len, ["a", "B", "C"], out=tmp_path / "out", progress=lambda *done: seen.append(done))
    assert seen == [(2, 3), (3, 3)]


@pytest.fixture(scope="module")
def another_process() -> Iterator[ProcessPoolExecutor]:
    """One that starts as on any system, and once: it imports all that a model needs."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        yield pool


@pytest.mark.seconds
def test_models_and_checkpoints_are_items(another_process: ProcessPoolExecutor, tmp_path: Path) -> None:
    models = [load_model("demo-base"), load_model("demo-tuned")]
    alone = [logit_lens(model, PROMPTS[0]).measures()["entropy"] for model in models]
    for number, backend in enumerate((None, ThreadPoolExecutor(1), another_process)):
        result = sweep(lambda model: logit_lens(model, PROMPTS[0]), models, backend=backend, out=tmp_path / str(number))
        assert result.errors == ("", "")
        assert result.texts("item") == ("demo-base", "demo-tuned")
        assert result.numbers("entropy") == pytest.approx(alone, rel=1e-4)
    assert sweep(str, [tmp_path]).texts("item") == (str(tmp_path),)


def test_limit_and_progress() -> None:
    seen: list[tuple[int, int]] = []
    assert len(sweep(square, range(100), limit=3, progress=lambda *done: seen.append(done)).rows) == 3
    assert seen == [(1, 3), (2, 3), (3, 3)]


# what is kept ---------------------------------------------------------------------------------------------------------


def test_resume_does_what_is_missing_and_what_failed(tmp_path: Path) -> None:
    log = tmp_path / "log"

    def logged(n: int, log: str, fail: str) -> dict[str, Any]:
        with open(log, "a") as file:
            file.write(f"{n}\n")
        if n == 2 and os.path.exists(fail):
            raise ValueError("not yet")
        return square(n)

    call = partial(logged, log=str(log), fail=str(tmp_path / "fail"))
    (tmp_path / "fail").touch()
    first = sweep(call, range(4), out=tmp_path / "out")
    assert first.n_failed == 1
    (tmp_path / "fail").unlink()
    again = sweep(call, range(6), out=tmp_path / "out")
    assert again.n_failed == 0
    assert again.numbers("square").tolist() == [0, 1, 4, 9, 16, 25]
    assert log.read_text().split() == ["0", "1", "2", "3", "2", "4", "5"]
    assert read_sweep(tmp_path / "out").to_frame().equals(again.to_frame())
    assert len(sweep(call, range(2), out=tmp_path / "out").rows) == 2


def test_an_item_that_has_changed_is_done_again(tmp_path: Path) -> None:
    sweep(len, ["a", "bb"], out=tmp_path / "out")
    assert sweep(len, ["a", "cccc"], out=tmp_path / "out").numbers("value").tolist() == [1, 4]


def test_what_is_done_before_a_stop_is_kept(tmp_path: Path) -> None:
    def stop_after(limit: int) -> Callable[[], None]:
        count = iter(range(1000))

        def check() -> None:
            if next(count) >= limit:
                raise KeyboardInterrupt

        return check

    with pytest.raises(KeyboardInterrupt):
        sweep(square, range(100), out=tmp_path / "out", check=stop_after(7))
    kept = read_sweep(tmp_path / "out")
    assert kept.numbers("square").tolist() == [0, 1, 4, 9, 16, 25, 36]


def test_many_small_files_become_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "_MAX_ROWS", 1)
    monkeypatch.setattr(store, "_MAX_PARTS", 5)
    result = sweep(square, range(23), out=tmp_path / "out")
    assert result.numbers("square").tolist() == [n * n for n in range(23)]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["rows.parquet", "sweep.json"]


def test_columns_that_change_their_kind(tmp_path: Path) -> None:
    mixed = [1, "two", None, 4.5]
    result = sweep(lambda value: {"given": value}, mixed, out=tmp_path / "out")
    assert result.texts("given") == ("1", "two", "", "4.5")


@pytest.mark.parametrize(
    ("function", "items", "message"),
    [
        (partial(pow, 3), range(2), r"another base \(2, now 3\)"),
        (lambda n: {"square": n}, range(2), "another function"),
    ],
)
def test_another_sweep_is_refused(tmp_path: Path, function: Any, items: Any, message: str) -> None:
    sweep(partial(pow, 2), range(2), out=tmp_path / "out")
    with pytest.raises(ValueError, match=message):
        sweep(function, items, out=tmp_path / "out")


@pytest.mark.seconds
def test_other_weights_are_another_sweep(tmp_path: Path) -> None:
    sweep(partial(logit_lens, load_model("demo-base")), PROMPTS[:1], out=tmp_path / "out")
    with pytest.raises(ValueError, match=r"holds a sweep with another model of model .demo-base, now demo-tuned."):
        sweep(partial(logit_lens, load_model("demo-tuned")), PROMPTS[:1], out=tmp_path / "out")


SHIFT = 1
"""What a function of the tests uses; some of them change it."""


def shifted(n: int) -> int:
    return n + SHIFT


class Reader:
    """A function with a model inside."""

    def __init__(self, model: Model) -> None:
        self.model = model

    def __call__(self, prompt: str) -> Any:
        return logit_lens(self.model, prompt)

    def reads(self, prompt: str) -> Any:
        return self(prompt)


@pytest.mark.seconds
def test_a_model_that_was_edited_is_another_sweep_wherever_the_function_has_it_from(tmp_path: Path) -> None:
    model = load_model("demo-base")
    functions: list[Any] = [
        partial(logit_lens, model),
        lambda prompt: logit_lens(model, prompt),
        Reader(model),
        Reader(model).reads,
        partial(model.generate, max_new_tokens=1),
        partial(lambda prompt, models: logit_lens(models[0], prompt), models=[model]),
    ]

    def run() -> None:
        for number, function in enumerate(functions):
            sweep(function, PROMPTS[:1], out=tmp_path / str(number))

    run()
    run()
    with torch.no_grad():
        model.tl_model.blocks[1].mlp.W_out[0, 0] += 1
    for number, function in enumerate(functions):
        with pytest.raises(ValueError, match="holds a sweep with another"):
            sweep(function, PROMPTS[:1], out=tmp_path / str(number))


def test_what_a_function_uses_is_part_of_the_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"

    def through(n: int) -> int:
        return shifted(n) if n in {3, 1, 2} else 0

    for function in (shifted, through):
        assert sweep(function, [1], out=out / function.__name__).values[0, -1] == 2
    monkeypatch.setattr("tests.sweeps.test_sweep.SHIFT", 2)
    with pytest.raises(ValueError, match=r"another SHIFT \(1, now 2\)"):
        sweep(shifted, [1], out=out / "shifted")
    with pytest.raises(ValueError, match="another shifted"):
        sweep(through, [1], out=out / "through")


def test_what_cannot_be_told_is_known_by_its_kind(tmp_path: Path) -> None:
    for _ in range(2):
        lock = threading.Lock()
        assert sweep(lambda n, lock=lock: n, [1], out=tmp_path / "out").numbers("value").tolist() == [1]


@pytest.mark.seconds
def test_a_sweep_is_known_in_another_session(tmp_path: Path) -> None:
    """Sets are in another order there."""
    code = (
        "from interp_widgets import sweep\n"
        "def f(word, known=frozenset({'a', 'b'})):\n"
        "    return word in known or word in {'c', 'd', 'e', 'f'}\n"
        f"print(sweep(f, ['a', 'c', 'g'], out={str(tmp_path / 'out')!r}).n_failed)\n"
    )
    for seed in "12":
        subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONHASHSEED": seed})


def test_two_processes_at_one_sweep_lose_nothing_of_each_other(tmp_path: Path) -> None:
    folders = [store.Folder(tmp_path, {}, {}) for _ in range(2)]
    for row, folder in enumerate(folders):
        folder.add(Item(row, row, {"item": row}, str(row)), {"value": row}, "", 0.0)
        folder.write()
    assert read_sweep(tmp_path).numbers("value").tolist() == [0, 1]


def test_out_is_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    for out in (tmp_path / "file", tmp_path / "file" / "inside"):
        with pytest.raises(ValueError, match=r"out must be a folder, got .*where a file is"):
            sweep(square, [1], out=out)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert sweep(square, [1], out="~/kept").folder == str(tmp_path / "kept")
    assert read_sweep("~/kept").numbers("square").tolist() == [1]
    for _ in range(2):  # items without a column
        sweep(lambda row: len(row), [{}], out=tmp_path / "empty")


def test_any_number_and_text_is_kept(tmp_path: Path) -> None:
    items = ["half a character: \ud800", 2**70, "日本🙂", "x" * 100_000]
    values = [True, None, 2**70, "\udfff"]
    result = sweep(lambda row: {"v": values[row["n"]]}, [{"id": item, "n": n} for n, item in enumerate(items)],
                   out=tmp_path / "out")  # fmt: skip
    assert result.n_failed == 0
    assert result.texts("id") == ("half a character: \\ud800", str(2**70), "日本🙂", "x" * 100_000)
    assert result.texts("v") == ("True", "", str(float(2**70)), "\\udfff")
    assert read_sweep(tmp_path / "out").labels == result.labels
    maybe = sweep(lambda n: None if n else True, range(2), out=tmp_path / "bools")
    assert maybe.numbers("value").tolist() == pytest.approx([1, float("nan")], nan_ok=True)


def test_a_folder_of_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(ValueError, match="holds other files: give out= a new folder"):
        sweep(square, range(2), out=tmp_path)


def test_hashes_do_not_depend_on_the_session() -> None:
    assert item_hash("a") == "ac8d8342bbb2362d"
    assert item_hash({"prompt": "a", "ids": [1, 2]}) == item_hash({"ids": [1, 2], "prompt": "a"})
    assert item_hash("a") != item_hash("b")


# bad input ------------------------------------------------------------------------------------------------------------


class ClosedClient:
    """As Dask's, when its cluster is gone."""

    status = "closed"
    submit = None


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: sweep(square, []), "items must have at least one item, got none"),
        (lambda: sweep(square, 3), "items must be a list, a table, a data set or a file, got 3"),
        (lambda: sweep(square, {"a": 1}), "items must be a list of rows"),
        (lambda: sweep(square, "no.csv"), "no file of rows at no.csv"),
        (lambda: sweep(square, "no.xlsx"), "the name must end in .txt, .csv, .json, .jsonl, .parquet"),
        (lambda: sweep(square, [1], backend=0), "backend must be 1 process or more, got 0"),
        (lambda: sweep(square, [1], backend="dask"), "backend must be None .* got 'dask'"),
        (lambda: sweep(square, [1], limit=0), "limit must be"),
        (lambda: sweep(square, [1], backend=ClosedClient()), "client that has been closed"),
        (lambda: sweep(square, [{"row": 1}]), "row 0 has a column 'row'"),
        (lambda: sweep(lambda r: r, [{"a": 1}]), "'a' is both a measure and a column of the data"),
        (lambda: sweep(lambda r: {"a": [1]}, [1]), "must return numbers or strings by name"),
    ],
)
def test_bad_input_gets_a_sentence(call: Callable[[], object], message: str) -> None:
    with pytest.raises((ValueError, TypeError, FileNotFoundError), match=message):
        call()


def test_a_missing_column_is_the_error_of_its_row() -> None:
    result = sweep(lambda prompt: len(prompt), [{"prompt": "a"}, {"text": "b"}], arguments=["prompt"])
    assert result.errors == ("", "ValueError: the row has no column 'prompt': it has 'text'")


# elsewhere ------------------------------------------------------------------------------------------------------------


@pytest.mark.seconds
def test_processes_give_what_this_one_gives(tmp_path: Path) -> None:
    here = sweep(fails_at_two, range(20)).to_frame().drop(columns="seconds")
    there = sweep(fails_at_two, range(20), backend=2, out=tmp_path / "out").to_frame().drop(columns="seconds")
    assert there.equals(here)


def test_processes_share_the_cores() -> None:
    found = sweep(threads, range(2), backend=2).numbers("threads")
    assert set(found) == {max(1, (os.cpu_count() or 1) // 2)}


@pytest.mark.seconds
def test_a_killed_worker_loses_nothing(tmp_path: Path) -> None:
    """Killed once in the middle: all items are done; one that always kills is recorded and the others are done."""
    once = tmp_path / "once"
    once.touch()
    result = sweep(partial(dies_at, bad=(11,), once=str(once)), range(30), backend=2, out=tmp_path / "a")
    assert not once.exists()
    assert result.n_failed == 0
    assert result.numbers("square").tolist() == [n * n for n in range(30)]
    result = sweep(partial(dies_at, bad=(5,)), range(9), backend=2, out=tmp_path / "b")
    assert [row for row, error in enumerate(result.errors) if "its process died" in error] == [5]
    assert result.n_failed == 1


@pytest.mark.seconds
def test_an_item_that_was_alone_when_its_process_was_killed_goes_again(tmp_path: Path) -> None:
    once = tmp_path / "once"
    once.touch()
    result = sweep(partial(dies_at, bad=(0,), once=str(once)), [0], backend=1)
    assert not once.exists()
    assert result.numbers("square").tolist() == [0]


@pytest.mark.seconds
def test_a_dead_executor_of_the_users_says_how_to_go_on(tmp_path: Path) -> None:
    once = tmp_path / "once"
    once.touch()
    call = partial(dies_at, bad=(20,), once=str(once))
    with (
        ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool,
        pytest.raises(RuntimeError, match="run the same line again to go on"),
    ):
        sweep(call, range(30), backend=pool, out=tmp_path / "out")
    kept = read_sweep(tmp_path / "out")
    assert len(kept.rows) >= 10
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        assert sweep(call, range(30), backend=pool, out=tmp_path / "out").n_failed == 0


def test_an_executor_that_died_before_an_item_was_sent_says_how_to_go_on() -> None:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        with pytest.raises(BrokenProcessPool):
            pool.submit(os._exit, 1).result()
        with pytest.raises(RuntimeError, match="run the same line again to go on"):
            sweep(len, ["a", "bc"], backend=pool)


def test_a_sweep_that_stops_ends_its_processes_in_silence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while calls wait that no process has taken."""
    running, raised = tmp_path / "running", []
    monkeypatch.setattr(threading, "excepthook", lambda arguments: raised.append(arguments.exc_value))

    def stop_once_it_runs() -> None:
        if running.exists():
            raise KeyError("enough")

    call = partial(waits_for, started=str(running), go_on=str(tmp_path / "never"))
    with pytest.raises(KeyError, match="enough"):
        sweep(call, range(20), backend=2, check=stop_once_it_runs)
    assert raised == []


@pytest.mark.seconds
def test_a_forked_process_does_not_wait_for_threads_that_it_has_not() -> None:
    """Those of torch are started here first, and are gone in a copy of this process."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        model = load_model("demo-base")
        torch.ones(600, 600) @ torch.ones(600, 600)
        with ProcessPoolExecutor(1, mp_context=get_context("fork")) as pool:
            killer = threading.Timer(LIMIT, lambda: [process.kill() for process in pool._processes.values()])
            killer.start()
            result = sweep(partial(logit_lens, model), PROMPTS, backend=pool)
            killer.cancel()
    finally:
        torch.set_num_threads(before)
    assert result.n_failed == 0


def alive(pid: int) -> bool:
    """Whether a process still runs: one that has ended stays listed until its parent takes notice."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.seconds
def test_processes_end_with_the_one_that_started_them(tmp_path: Path) -> None:
    code = (
        "import os, pathlib, threading\n"
        "from interp_widgets import sweep\n"
        f"folder = pathlib.Path({str(tmp_path)!r})\n"
        "def slow(n, folder=folder):\n"
        "    (folder / f'pid-{os.getpid()}').touch()\n"
        "    threading.Event().wait(0.2)\n"
        "    return n\n"
        "sweep(slow, range(1000), backend=1, out=folder / 'out')\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code])
    until(lambda: list(tmp_path.glob("out/part-*")), "the first part of the sweep")
    parent.kill()
    parent.wait()
    pids = [int(path.name.partition("-")[2]) for path in tmp_path.glob("pid-*")]
    assert pids
    until(lambda: not any(alive(pid) for pid in pids), "the end of its processes")
    assert len(read_sweep(tmp_path / "out").rows) > 0


class Slow:
    """An executor whose futures are not those of concurrent.futures, as submitit's jobs."""

    class Job:
        def __init__(self, call: Callable[[], Any]) -> None:
            self._call, self._looks = call, 0

        def done(self) -> bool:
            self._looks += 1
            return self._looks > 1

        def result(self) -> Any:
            return self._call()

        def cancel(self) -> None: ...

    def submit(self, function: Callable[..., Any], *inputs: Any) -> Any:
        return self.Job(lambda: function(*inputs))


@pytest.mark.seconds
@pytest.mark.parametrize("make", [lambda: ThreadPoolExecutor(2), Slow], ids=["threads", "jobs"])
def test_any_executor_serves(make: Callable[[], Any]) -> None:
    executor = make()
    model = load_model("demo-base")
    result = sweep(partial(logit_lens, model), PROMPTS, backend=executor)
    assert result.texts("top_token") == sweep(partial(logit_lens, model), PROMPTS).texts("top_token")


def test_few_items_are_sent_ahead() -> None:
    """Of an endless data set only what is asked for is read."""
    read: list[int] = []

    def endless() -> Iterator[int]:
        while True:
            read.append(len(read))
            yield read[-1]

    class Eager:
        def submit(self, function: Callable[..., Any], *inputs: Any) -> Future[Any]:
            future: Future[Any] = Future()
            future.set_result(function(*inputs))
            return future

    sweep(square, endless(), limit=200, backend=Eager())
    assert len(read) <= 201


@pytest.mark.seconds
def test_a_model_goes_to_other_processes_by_name(another_process: ProcessPoolExecutor) -> None:
    model = load_model("demo-base")
    here = sweep(partial(logit_lens, model, target=" Paris"), PROMPTS)
    there = sweep(partial(logit_lens, model, target=" Paris"), PROMPTS, backend=another_process)
    assert there.texts("top_token") == here.texts("top_token")
    assert there.values == pytest.approx(here.values, rel=1e-4, nan_ok=True)


def memory_only(model: Model) -> Model:
    model.source = None
    return model


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (memory_only, "was not loaded from a file, so no other process can load it: save it with save_pretrained"),
        (lambda model: (model.tl_model.unembed.W_U.data.mul_(2.0), model)[1], "was edited after it was loaded"),
    ],
    ids=["memory", "weights"],
)
@pytest.mark.hooked
def test_a_model_that_no_other_process_can_load_is_refused(change: Callable[[Model], Model], message: str) -> None:
    model = change(load_model("demo-base"))
    with pytest.raises(ValueError, match=message):
        sweep(partial(logit_lens, model), PROMPTS, backend=1)
