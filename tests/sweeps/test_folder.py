"""The folder of a sweep: one owner at a time, and right rows or a sentence whatever happens to its files."""

from __future__ import annotations

import contextlib
import json
import os
import random
import resource
import shutil
import signal
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from interp_widgets import read_sweep, sweep
from interp_widgets.checksums import ROOM, sealed
from interp_widgets.sweeps import store
from tests.sweeps.jobs import square, wait_for, waits_for
from tests.waiting import until

FORK = get_context("fork")
N = 9
FAULTS = 40
"""Damaged folders that are tried; 340 passed."""
EVERY = 29
"""Of the steps of a sweep, those at which it is killed; every fifth passed."""


@pytest.fixture
def started() -> Iterator[Callable[..., Any]]:
    """Starts a function in a copy of this process, which is killed at the end of the test."""
    processes: list[Any] = []

    def start(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        processes.append(FORK.Process(target=function, args=arguments, kwargs=options))
        processes[-1].start()
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.join()


def logged(n: int, *, log: str) -> int:
    with open(log, "a") as file:
        file.write(f"{n}\n")
    return n * n


def rows_of(call: Callable[[int], Any], out: Path, n: int = N) -> list[float]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return sweep(call, range(n), out=out).numbers("value").tolist()


# one owner ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pool", [lambda: ProcessPoolExecutor(3, mp_context=FORK), lambda: ThreadPoolExecutor(3)],
                         ids=["processes", "threads"])  # fmt: skip
def test_equal_sweeps_into_one_folder_share_the_work(pool: Callable[[], Any], tmp_path: Path) -> None:
    call = partial(logged, log=str(tmp_path / "log"))
    with pool() as executor:
        results = [executor.submit(rows_of, call, tmp_path / "out", 40) for _ in range(3)]
        assert [result.result(120) for result in results] == [[n * n for n in range(40)]] * 3
    assert sorted(map(int, (tmp_path / "log").read_text().split())) == list(range(40)), "every item runs once"
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["rows.parquet", "sweep.json"]


@pytest.mark.seconds
def test_an_equal_sweep_waits_and_another_is_refused(started: Callable[..., Any], tmp_path: Path) -> None:
    running, go_on, out = tmp_path / "running", tmp_path / "go on", tmp_path / "out"
    call = partial(waits_for, started=str(running), go_on=str(go_on))
    first = started(sweep, call, range(N), out=out)
    wait_for(running)
    with pytest.raises(ValueError, match=r"holds a sweep with another function .*give another out="):
        sweep(square, range(N), out=out)
    assert len(read_sweep(out).rows) == 0
    looks: list[int] = []

    def check() -> None:
        looks.append(1)
        if len(looks) == 3:
            go_on.touch()

    with pytest.warns(UserWarning, match=r"another sweep writes into .*: this one goes on when that ends"):
        result = sweep(call, range(N), out=out, check=check)
    assert result.numbers("value").tolist() == [n * n for n in range(N)]
    first.join(60)
    assert first.exitcode == 0


def test_a_wait_can_be_cancelled(started: Callable[..., Any], tmp_path: Path) -> None:
    running, out = tmp_path / "running", tmp_path / "out"
    call = partial(waits_for, started=str(running), go_on=str(tmp_path / "never"))
    started(sweep, call, range(N), out=out)
    wait_for(running)

    def check() -> None:
        raise TimeoutError("cancelled")

    with pytest.raises(TimeoutError, match="cancelled"):
        sweep(call, range(N), out=out, check=check)


def outlived(n: int, *, child: str, go_on: str) -> int:
    """The first item makes a copy of the process, which lives on."""
    if not os.path.exists(go_on) and os.fork() == 0:
        Path(child).write_text(str(os.getpid()))
        signal.pause()
        os._exit(0)
    wait_for(Path(go_on))
    return n * n


def test_a_dead_owner_keeps_nobody_out(started: Callable[..., Any], tmp_path: Path) -> None:
    """Not even if a copy of it lives on."""
    child, go_on, out = tmp_path / "child", tmp_path / "go on", tmp_path / "out"
    call = partial(outlived, child=str(child), go_on=str(go_on))
    owner = started(sweep, call, range(N), out=out)
    wait_for(child)
    until(child.read_text, "the number of the copy")
    try:
        owner.kill()
        owner.join()
        (out / f".{'0' * 16}.parquet").write_bytes(b"half a file")  # a draft
        go_on.touch()
        assert rows_of(call, out) == [n * n for n in range(N)]
    finally:
        os.kill(int(child.read_text()), signal.SIGKILL)


def test_a_folder_with_nothing_but_remains_is_free(tmp_path: Path) -> None:
    """Of a sweep that was killed before its first row, whichever it was."""
    with store.Folder(tmp_path, {"function": "another"}, {}).owned(lambda: None):
        remains = [(path.name, path.read_bytes()) for path in tmp_path.iterdir()]
    assert {name for name, _ in remains} == {"sweep.json", "sweep.lock"}
    assert not list(tmp_path.iterdir())
    for name, content in [*remains, (f".{'0' * 16}.parquet", b"half"), (f".{'1' * 16}.json", b"")]:
        (tmp_path / name).write_bytes(content)
    assert sweep(square, range(3), out=tmp_path).n_failed == 0


def test_a_sweep_into_the_folder_of_the_one_that_calls_it_is_refused(tmp_path: Path) -> None:
    result = sweep(lambda n: len(sweep(square, range(2), out=tmp_path).rows), range(2), out=tmp_path)
    assert all("is the folder of the sweep that makes this call: give another out=" in error for error in result.errors)
    assert sweep(lambda n: len(sweep(square, range(2), out=tmp_path / str(n)).rows), range(2)).n_failed == 0


@pytest.mark.seconds
@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="semaphores are no files here")
def test_a_killed_group_of_processes_leaves_no_semaphores(started: Callable[..., Any], tmp_path: Path) -> None:
    running = tmp_path / "running"

    def run() -> None:
        os.setsid()
        sweep(partial(waits_for, started=str(running), go_on=str(tmp_path / "never")), range(3), backend=1)

    process = started(run)
    wait_for(running)
    pattern = f"sem.loky-{process.pid}-*"
    assert list(Path("/dev/shm").glob(pattern))
    os.killpg(process.pid, signal.SIGKILL)
    process.join()
    until(lambda: not list(Path("/dev/shm").glob(pattern)), "the end of its semaphores")


# damage ---------------------------------------------------------------------------------------------------------------


def value(n: int) -> dict[str, Any]:
    return {"value": n * n, "text": f"item {n}"}


@pytest.fixture(scope="module")
def unfinished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with merged rows, parts, and two items to do."""
    out = tmp_path_factory.mktemp("sweep") / "out"
    sweep(value, range(3), out=out)
    folder = store.Folder(out, _header(out), {})
    for n in range(3, N - 2):
        folder.add(next(_items(n)), value(n), "", 0.0)
        folder.write()
    assert len(list(out.glob("part-*"))) == 4
    return out


def _header(out: Path) -> dict[str, Any]:
    names = ("function", "uses", "options", "arguments", "measure")
    return {name: store.read_header(out)[name] for name in names}


def _items(n: int) -> Iterator[Any]:
    from interp_widgets.sweeps.items import number_items

    return (item for item in number_items(range(N), None) if item.row == n)


def flip(path: Path, draw: random.Random) -> None:
    content = bytearray(path.read_bytes())
    bit = draw.randrange(8 * len(content))
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


def truncate(path: Path, draw: random.Random) -> None:
    path.write_bytes(path.read_bytes()[: draw.randrange(path.stat().st_size)])


def fill(path: Path, draw: random.Random) -> None:
    start = draw.randrange(path.stat().st_size)
    content = path.read_bytes()
    path.write_bytes((content[:start] + b"\0" * 512 + content[start + 512 :])[: len(content)])


def remove(path: Path, draw: random.Random) -> None:
    path.unlink()


def swap(path: Path, draw: random.Random) -> None:
    other = draw.choice([one for one in path.parent.iterdir() if one != path])
    content = path.read_bytes()
    path.write_bytes(other.read_bytes())
    other.write_bytes(content)


def take_from_another(path: Path, draw: random.Random) -> None:
    """The file of another sweep, of the same name."""
    with contextlib.suppress(ValueError):
        sweep(square, range(N), out=path.parent.parent / "other")
    source = "sweep.json" if path.suffix == ".json" else "rows.parquet"
    shutil.copy(path.parent.parent / "other" / source, path)


def replace_by_a_folder(path: Path, draw: random.Random) -> None:
    path.unlink()
    path.mkdir()


def replace_by_a_link_to_nothing(path: Path, draw: random.Random) -> None:
    path.unlink()
    path.symlink_to(path.parent / "gone")


def foreign_table(path: Path, draw: random.Random) -> None:
    pd.DataFrame({"a": [1, 2]}).to_parquet(path)


DAMAGES = [
    flip, flip, flip, truncate, fill, remove, swap, take_from_another, foreign_table, replace_by_a_folder,
    replace_by_a_link_to_nothing,
]  # fmt: skip


def damaged(unfinished: Path, out: Path, seed: int) -> str:
    """A copy of the folder with one or two damages."""
    draw = random.Random(seed)
    shutil.copytree(unfinished, out)
    done = []
    for _ in range(draw.randint(1, 2)):
        damage, path = draw.choice(DAMAGES), draw.choice(sorted(path for path in out.iterdir() if path.is_file()))
        damage(path, draw)
        done.append(f"{damage.__name__} {path.name}")
    return ", ".join(done)


def outcome(call: Callable[[], Any]) -> tuple[Any, str]:
    """What a call returns, or the sentence with which it refuses."""
    try:
        return call(), ""
    except (ValueError, OSError) as error:
        return None, str(error)


@pytest.mark.seconds
def test_after_any_damage_rows_are_right_or_a_sentence_says_what_is_wrong(unfinished: Path, tmp_path: Path) -> None:
    refused = 0
    for seed in range(FAULTS):
        out = tmp_path / f"{seed}" / "out"
        what = damaged(unfinished, out, seed)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            read, reading = outcome(lambda out=out: read_sweep(out))
            result, running = outcome(lambda out=out: sweep(value, range(N), out=out))
        sentences = [reading, running, *(str(warning.message) for warning in caught)]
        assert all(str(out) in sentence for sentence in sentences if sentence), f"{seed} {what}: {sentences}"
        if read is not None and "value" in read.number_names:  # else no row is left, or header and rows are another's
            assert (read.numbers("value") == read.rows**2).all(), f"{seed} {what}"
        if running:
            assert "another" in running or "cannot be" in running, f"{seed} {what}: {running}"
            refused += 1
            continue
        assert result.numbers("value").tolist() == [n * n for n in range(N)], f"{seed} {what}"
        assert result.texts("text") == tuple(f"item {n}" for n in range(N)), f"{seed} {what}"
        assert result.measured == ("value", "text"), f"{seed} {what}"
        assert read_sweep(out).equals(sweep(value, range(N), out=out)), f"{seed} {what}"
    assert refused < FAULTS / 4


def test_a_part_that_is_a_link_to_nothing_is_damaged(unfinished: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shutil.copytree(unfinished, out)
    replace_by_a_link_to_nothing(sorted(out.glob("part-*"))[1], random.Random(0))
    with pytest.warns(UserWarning, match="it is a link to a file that is not there"):
        assert read_sweep(out).rows.tolist() == [0, 1, 2, 3, 5, 6]
    with pytest.warns(UserWarning, match="its rows are computed again"):
        assert sweep(value, range(N), out=out).numbers("value").tolist() == [n * n for n in range(N)]


def test_rows_computed_again_replace_those_of_renamed_parts(unfinished: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shutil.copytree(unfinished, out)
    for number, part in enumerate(sorted(out.glob("part-*"))):
        part.rename(part.with_name(f"part-000000-{number}.parquet"))
    result = sweep(value, range(100, 100 + N), out=out)
    assert result.numbers("value").tolist() == [n * n for n in range(100, 100 + N)]


def test_rows_of_other_items_are_no_rows_of_this_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "_MAX_ROWS", 1)

    def with_a_stranger(n: int, out: Path = tmp_path / "out") -> int:
        if n == 104:
            (part,) = out.glob("part-000000-*")
            table = pd.read_parquet(part).assign(hash="0" * 16)
            table.attrs = {"part": 50}  # as of an earlier release, without a checksum
            table.to_parquet(out / "part-000050-x.parquet")
        return n * n

    with pytest.raises(RuntimeError, match="1 of 9 rows have been lost from"):
        sweep(with_a_stranger, range(100, 100 + N), out=tmp_path / "out")


def test_a_damaged_part_is_named_and_set_aside(unfinished: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shutil.copytree(unfinished, out)
    part = sorted(out.glob("part-*"))[1]
    content = part.read_bytes()
    part.write_bytes(content[:-7])
    with pytest.warns(UserWarning, match=f"{part} is damaged .*: run the sweep again to compute its rows"):
        assert read_sweep(out).rows.tolist() == [0, 1, 2, 3, 5, 6]
    with pytest.warns(UserWarning, match=f"{part} is damaged .*: it is now named {part.name}.damaged-.*computed again"):
        assert sweep(value, range(N), out=out).numbers("value").tolist() == [n * n for n in range(N)]
    (aside,) = out.glob("*.damaged-*")
    assert aside.read_bytes() == content[:-7]


@pytest.mark.parametrize("damage", [remove, truncate])
def test_a_lost_header_is_written_again(damage: Callable[..., None], unfinished: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shutil.copytree(unfinished, out)
    damage(out / "sweep.json", random.Random(0))
    with pytest.raises(ValueError, match="its rows are not known to be of this sweep: give another out="):
        sweep(square, range(N), out=out)
    ran: list[int] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = sweep(value, range(N), out=out, progress=lambda done, total: ran.append(done))
    assert ran == [N - 1, N], "only the two items that were left run"
    assert result.measured == ("value", "text")


def test_rows_that_are_lost_while_a_sweep_runs_are_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "_MAX_ROWS", 1)

    def removing(n: int, out: Path = tmp_path / "out") -> int:
        if n == 4:
            next(out.glob("part-*")).unlink()
        return n * n

    with pytest.raises(RuntimeError, match=r"1 of 9 rows have been lost from .*: run the same line again"):
        sweep(removing, range(N), out=tmp_path / "out")
    assert sweep(removing, range(N), out=tmp_path / "out").numbers("value").tolist() == [n * n for n in range(N)]


def test_reading_while_the_parts_are_merged_loses_nothing(
    unfinished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, reads = store._read, []

    def reading(file: Path, sweep: str | None) -> Any:
        reads.append(file.name)
        if len(reads) == at:
            store.Folder(out, header, {}).finish()
        return whole(file, sweep)

    for at in range(1, 7):
        out = tmp_path / str(at)
        shutil.copytree(unfinished, out)
        header = _header(out)
        reads.clear()
        monkeypatch.setattr(store, "_read", reading)
        assert read_sweep(out).numbers("value").tolist() == [n * n for n in range(N - 2)]


def test_a_file_of_an_older_release_is_read(tmp_path: Path) -> None:
    """Without checksums."""
    sweep(value, range(N), out=tmp_path / "out")
    frame = pd.read_parquet(tmp_path / "out" / "rows.parquet")
    frame.attrs = {}
    frame.to_parquet(tmp_path / "out" / "rows.parquet", index=False)
    ran: list[int] = []
    again = sweep(value, range(N), out=tmp_path / "out", progress=lambda done, total: ran.append(done))
    assert (ran, again.numbers("value").tolist()) == ([], [n * n for n in range(N)])


@pytest.mark.parametrize("name", ["sweep.json", "part-*"])
@pytest.mark.parametrize("label", [b"interp_widgets sha257 ", b"interp_widgets sha256 g"])
def test_a_file_that_lost_its_checksum_is_damaged(label: bytes, name: str, unfinished: Path, tmp_path: Path) -> None:
    """One changed character of the checksum itself, under which a header could be changed."""
    out = tmp_path / "out"
    shutil.copytree(unfinished, out)
    path = sorted(out.glob(name))[0]
    content = path.read_bytes()
    start = content.index(b"interp_widgets sha256 ")
    path.write_bytes(content[:start] + label + content[start + len(label) :])
    with pytest.warns(UserWarning, match="is damaged .*checksum"):
        result = sweep(value, range(N), out=out)
    assert (result.rows.tolist(), result.numbers("value").tolist()) == ([*range(N)], [n * n for n in range(N)])


def odd_file(path: Path, change: Callable[[pd.DataFrame], Any]) -> None:
    """Rows that another program has written, with a checksum of their own."""
    table = pd.read_parquet(path)
    attrs = dict(table.attrs)
    table = change(table)
    table.attrs = {**attrs, **table.attrs, "checksum": ROOM}
    path.write_bytes(sealed(table.to_parquet(index=False)))


def with_attrs(table: pd.DataFrame, **attrs: Any) -> pd.DataFrame:
    table.attrs.update(attrs)
    return table


ODD_ROWS: dict[str, Callable[[pd.DataFrame], Any]] = {
    "negative numbers": lambda table: table.assign(row=-1 - table["row"]),
    "numbers that are texts": lambda table: table.assign(row=table["row"].astype(str)),
    "no numbers": lambda table: table.assign(row=float("nan")),
    "hashes that are numbers": lambda table: table.assign(hash=5),
    "seconds that are texts": lambda table: table.assign(seconds="x"),
    "a part that is no number": lambda table: with_attrs(table, part=None),
    "columns that are no names": lambda table: with_attrs(table, columns=5),
}


@pytest.mark.parametrize("kind", ODD_ROWS)
def test_rows_that_no_sweep_writes_are_computed_again(kind: str, unfinished: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shutil.copytree(unfinished, out)
    odd_file(sorted(out.glob("part-*"))[1], ODD_ROWS[kind])
    with pytest.warns(UserWarning, match="is damaged"):
        assert read_sweep(out).rows.tolist() == [0, 1, 2, 3, 5, 6]
    with pytest.warns(UserWarning, match="its rows are computed again"):
        result = sweep(value, range(N), out=out)
    assert (result.rows.tolist(), result.numbers("value").tolist()) == ([*range(N)], [n * n for n in range(N)])


@pytest.mark.parametrize("change", [{"columns": None}, {"columns": [5]}, {"provenance": 5}])
def test_a_header_with_other_kinds_of_entries_is_written_again(
    change: dict[str, Any], unfinished: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    shutil.copytree(unfinished, out)
    header = {**store.read_header(out), **change, "checksum": ROOM}
    (out / "sweep.json").write_bytes(sealed(json.dumps(header).encode()))
    with pytest.raises(ValueError, match=r"is damaged .*run the sweep again"):
        read_sweep(out)
    with pytest.warns(UserWarning, match="it is written again"):
        assert sweep(value, range(N), out=out).measured == ("value", "text")


@pytest.mark.parametrize("name", ["part-000001-", "rows", "sweep.json"])
def test_a_pipe_instead_of_a_file_is_not_waited_for(name: str, unfinished: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shutil.copytree(unfinished, out)
    (path,) = (one for one in out.iterdir() if one.name.startswith(name))
    path.unlink()
    os.mkfifo(path)
    with pytest.warns(UserWarning, match=r"computed again|written again"):
        assert sweep(value, range(N), out=out).numbers("value").tolist() == [n * n for n in range(N)]


# a full disk and kills ------------------------------------------------------------------------------------------------


def limited(out: Path, size: int) -> None:
    """A sweep whose files may have only some bytes; ends with 3 where it says so."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
    store._MAX_ROWS = 2  # type: ignore[misc]
    try:
        sweep(value, range(N), out=out)
    except OSError as error:
        os._exit(3 if str(out) in str(error) and "cannot be written" in str(error) else 4)
    os._exit(0)


@pytest.mark.parametrize("size", [0, 100, 2000, 4800, 10**6])
def test_a_full_disk_loses_only_what_was_not_written(size: int, started: Callable[..., Any], tmp_path: Path) -> None:
    process = started(limited, tmp_path / "out", size)
    process.join(120)
    assert process.exitcode == (0 if size == 10**6 else 3)
    assert sweep(value, range(N), out=tmp_path / "out").numbers("value").tolist() == [n * n for n in range(N)]


def killed(out: Path, step: int) -> None:
    """A sweep whose process is killed at some step of writing its files."""
    steps = iter(range(10**6))
    store._MAX_ROWS, store._MAX_PARTS = 1, 3  # type: ignore[misc]

    def counting(call: Callable[..., Any]) -> Callable[..., Any]:
        def step_of(*arguments: Any, **options: Any) -> Any:
            if next(steps) == step:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*arguments, **options)

        return step_of

    for name in ("fsync", "open", "close", "unlink"):
        setattr(os, name, counting(getattr(os, name)))
    for name in ("replace", "unlink", "write_bytes", "rename", "exists"):
        setattr(Path, name, counting(getattr(Path, name)))
    sweep(value, range(N), out=out)
    os._exit(0)


@pytest.mark.seconds
def test_a_kill_at_any_step_loses_nothing_that_was_written(started: Callable[..., Any], tmp_path: Path) -> None:
    step, kept = 0, 0
    while True:
        out = tmp_path / str(step)
        process = started(killed, out, step)
        process.join(120)
        if process.exitcode == 0:
            break
        before = len(read_sweep(out).rows) if (out / "sweep.json").exists() else 0
        assert before >= kept - 1, f"step {step}"
        kept = before
        ran: list[int] = []
        result = sweep(value, range(N), out=out, progress=lambda done, total, ran=ran: ran.append(done))
        assert result.numbers("value").tolist() == [n * n for n in range(N)], f"step {step}"
        assert len(ran) == N - before
        step += EVERY
    assert step > 5 * EVERY
