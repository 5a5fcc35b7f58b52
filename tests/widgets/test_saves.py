"""Every save goes through the one writer: what was there before survives a full disk, and writers share no draft."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError

from interp_widgets import LogitLensExplorer, load_translators, save_translators
from interp_widgets.analysis._core.result import Result, Results
from interp_widgets.models.mixture_of_depths.checkpoint import load_state, save_state
from tests.models.mixtures import random_state
from tests.shipped import demo_pair

FORMATS = (".csv", ".parquet", ".svg", ".pdf", ".png", ".html", ".npz")


@contextmanager
def little_room(most: int) -> Iterator[None]:
    """In a block of this process no file may grow beyond so many bytes, as on a full disk."""
    import resource

    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def panel() -> Iterator[Any]:
    made = LogitLensExplorer(demo_pair().base, prompt="Paris is in")
    assert made.wait(60)
    yield made
    made.close()


@pytest.mark.parametrize("suffix", FORMATS)
def test_a_full_disk_leaves_the_earlier_file(suffix: str, panel: Any, tmp_path: Path) -> None:
    path = panel.save(tmp_path / f"saved{suffix}")
    before = contents(tmp_path)
    assert len(before[path.name]) > 600, "so that the limit is met half way"
    with little_room(500), pytest.raises((OSError, ValueError), match=r"(?i)large|written|error"):
        panel.save(path)
    assert contents(tmp_path) == before
    assert contents(panel.save(path).parent).keys() == before.keys()


def test_a_full_disk_leaves_earlier_translators_and_mixtures(tmp_path: Path) -> None:
    weights, biases = [torch.eye(16)] * 2, [torch.zeros(16)] * 2
    path = save_translators(tmp_path / "lens.safetensors", weights, biases)
    save_state(random_state("llama", 2), tmp_path / "mixture")
    before = contents(tmp_path)
    for save in (
        lambda: save_translators(path, weights, biases),
        lambda: save_state(random_state("llama", 2), tmp_path / "mixture"),
    ):
        with little_room(300), pytest.raises((OSError, SafetensorError), match=r"(?i)large|written|error"):
            save()
        assert contents(tmp_path) == before
    assert load_translators(path).d_model == 16
    assert load_state(tmp_path / "mixture").k == 2


def test_three_writers_of_one_name_and_a_reader(tmp_path: Path) -> None:
    path = tmp_path / "saved.npz"
    parts = [Results([f"writer {number}"] * 40, [Results([], [])] * 40) for number in range(3)]
    parts[0].save(path)
    stop, wrong = threading.Event(), []

    def write(one: Results) -> None:
        try:
            for _ in range(12):
                one.save(path)
        except Exception as error:
            wrong.append(error)

    def read() -> None:
        while not stop.is_set():
            try:
                assert len(set(Result.load(path).names)) == 1
            except Exception as error:
                wrong.append(error)

    threads = [threading.Thread(target=write, args=(one,)) for one in parts]
    reader = threading.Thread(target=read)
    reader.start()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    stop.set()
    reader.join(60)
    assert wrong == []
    assert [one.name for one in tmp_path.iterdir()] == ["saved.npz"]


def killed_at(call: int) -> None:
    """End this process at one of its calls that change files."""
    calls = 0

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def counting(*args: Any, **options: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == call:
                os._exit(9)
            return function(*args, **options)

        return counting

    os.fsync = counted(os.fsync)
    Path.replace = counted(Path.replace)  # type: ignore[method-assign]
    Path.unlink = counted(Path.unlink)  # type: ignore[method-assign]


@pytest.mark.seconds
def test_a_killed_save_of_a_checkpoint_leaves_the_old_or_the_new_one(tmp_path: Path) -> None:
    seen: set[int] = set()
    ends: set[int] = set()
    old, new = random_state("llama", 2), random_state("llama", 3)
    for at in range(1, 15):
        folder = save_state(old, tmp_path / str(at))
        child = os.fork()  # each import of torch would take seconds
        if child == 0:
            killed_at(at)
            save_state(new, folder)
            os._exit(0)
        ends.add(os.waitpid(child, 0)[1])
        seen.add(load_state(folder).k)
        save_state(old, folder)  # what the killed one had put in its place is cleared away
        assert len([name for name in contents(folder) if not name.startswith(".")]) == 2
    assert ends == {0, 9 << 8}
    assert seen == {2, 3}, "some were killed before the new one was whole, and some after"
