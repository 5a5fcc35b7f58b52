"""Checkpoints that a tuning keeps of its own: a killed kernel loses less than a minute, and the disk does not fill."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from interp_widgets.models import ModModel
from interp_widgets.models.mixture_of_depths.checkpoint import save_state
from interp_widgets.tuning.mixture_of_depths import ModReport, auto_checkpoints, late_layer_losses, tune_mod
from interp_widgets.widgets.mixture_of_depths.live import Live
from tests.models.tiny import tiny_folder
from tests.tuning.test_mixture_of_depths import DATA, QUICK, same


class Killed(BaseException):
    """The kernel is gone: nothing is written any more."""


def tune(folder: Path | None, **options: Any) -> tuple[ModModel, ModReport]:
    return tune_mod(tiny_folder("llama"), DATA, **{**QUICK, "steps": 6, "checkpoints": folder, **options})


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "interp_widgets" / "tuning"


def killed_after(steps: int, folder: Path | None, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
    """Tune until the process would be gone: what was written by itself is all there is."""
    made = 0

    def on_step(_: Any) -> None:
        nonlocal made
        made += 1
        if made > steps:
            monkeypatch.setattr(auto_checkpoints.AutoCheckpoints, "write", lambda *_: False)
            raise Killed

    with monkeypatch.context(), pytest.raises(Killed):
        tune(folder, on_step=on_step, **options)


@pytest.mark.seconds
def test_a_killed_run_goes_on_with_the_same_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, report = tune(tmp_path / "unused")
    assert not (tmp_path / "unused").exists(), "a short run writes nothing"
    write = auto_checkpoints.AutoCheckpoints.write
    monkeypatch.setattr(auto_checkpoints, "SECONDS", 0.0)
    killed_after(3, tmp_path / "auto_checkpoints", monkeypatch)
    monkeypatch.setattr(auto_checkpoints.AutoCheckpoints, "write", write)
    assert len(list((tmp_path / "auto_checkpoints").iterdir())) == 1
    steps: list[int] = []
    again, second = tune(tmp_path / "auto_checkpoints", resume=True, on_step=lambda step: steps.append(step.step))
    assert steps == [3, 4, 5], "it goes on from the last checkpoint"
    assert same(again, whole)
    assert second.task.tolist() == report.task.tolist()
    assert list((tmp_path / "auto_checkpoints").iterdir()) == [], "a finished tuning leaves nothing"


@pytest.mark.seconds
def test_nothing_to_go_on_from_is_a_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto_checkpoints, "SECONDS", 0.0)
    write = auto_checkpoints.AutoCheckpoints.write
    killed_after(3, tmp_path, monkeypatch)
    monkeypatch.setattr(auto_checkpoints.AutoCheckpoints, "write", write)
    steps: list[int] = []
    told = lambda step: steps.append(step.step)
    for options in ({"seed": 1, "steps": 2}, {"steps": 2}):  # another run, and one that has more steps than asked for
        steps.clear()
        tune(tmp_path, resume=True, on_step=told, **options)
        assert steps == [0, 1]
    assert len(list(tmp_path.iterdir())) == 1
    (folder,) = tmp_path.iterdir()
    for file in folder.glob("weights-*"):
        file.write_bytes(b"damaged")
    steps.clear()
    tune(tmp_path, resume=True, on_step=told)
    assert steps == list(range(6))


@pytest.mark.seconds
def test_an_interrupt_keeps_every_step_and_says_where(home: Path) -> None:
    def check() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as early:
        tune_mod(tiny_folder("llama"), DATA, **QUICK, steps=6, check=check)
    assert not hasattr(early.value, "__notes__")
    assert not home.exists()
    done: list[Any] = []
    with pytest.raises(KeyboardInterrupt) as caught:
        tune_mod(
            tiny_folder("llama"), DATA, **QUICK, steps=6, on_step=done.append,
            check=lambda: check() if len(done) == 4 else None,
        )  # fmt: skip
    (folder,) = home.iterdir()
    assert caught.value.__notes__ == [f"The 4 steps made are in {folder}: resume=True goes on from there"]
    again, _ = tune_mod(tiny_folder("llama"), DATA, **QUICK, steps=6, resume=True, on_step=done.append)
    assert [step.step for step in done] == list(range(6))
    assert same(again, tune(None)[0])
    assert list(home.iterdir()) == []


def test_what_is_handed_over_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto_checkpoints, "SECONDS", 0.0)
    partial: list[Any] = []

    def stop(step: Any) -> None:
        if step.step == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tune(tmp_path, on_step=stop, on_partial=partial.append)
    assert len(partial) == 1
    assert list(tmp_path.iterdir()) == []


def test_no_checkpoints_where_none_are_wanted(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto_checkpoints, "SECONDS", 0.0)
    tune(None)
    assert not home.exists()


@pytest.mark.seconds
def test_a_full_disk_does_not_end_the_tuning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto_checkpoints, "SECONDS", 0.0)

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.warns(UserWarning, match=r"without checkpoints.*No space left") as said:
            mixture, _ = tune(tmp_path)
    assert len(said) == 1
    assert same(mixture, tune(None)[0])
    assert not any(path.is_file() for path in tmp_path.rglob("*"))


@pytest.mark.seconds
def test_the_disk_does_not_fill(tmp_path: Path) -> None:
    state = tune(None, steps=1)[0].state
    for number in range(12):
        one = auto_checkpoints.AutoCheckpoints(tmp_path, "hash", {"seed": number})
        assert one.write(state)
        assert one.write(state)
    assert len(list(tmp_path.iterdir())) == auto_checkpoints.MOST
    assert auto_checkpoints.AutoCheckpoints(tmp_path, "hash", {"seed": 0}).last(6) is None
    assert auto_checkpoints.AutoCheckpoints(tmp_path, "hash", {"seed": 11}).last(6) is not None
    size = sum(path.stat().st_size for path in one.folder.iterdir()) if one.folder else 0
    save_state(state, tmp_path / "other")
    assert size == sum(path.stat().st_size for path in (tmp_path / "other").iterdir()), "one checkpoint per folder"


def test_curves_of_a_run_that_went_on_begin_where_it_went_on(tmp_path: Path) -> None:
    live, whole = Live(None, (0, 1)), Live(None, (0, 1))
    steps: list[Any] = []
    tune(tmp_path, on_step=steps.append)
    for step in steps:
        whole.add(step)
        if step.step > 3:
            live.add(step)
    shown, known = live.curves(), whole.curves()
    assert shown.routes.shape == known.routes.shape
    assert np.isnan(shown.task[:4]).all()
    np.testing.assert_array_equal(shown.task[4:], known.task[4:])
    np.testing.assert_array_equal(shown.routes[4:], known.routes[4:])


@pytest.mark.seconds
def test_tunings_inside_of_studies_keep_none(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto_checkpoints, "SECONDS", 0.0)
    options: dict[str, Any] = {"k": 2, "steps": 1, "batch_size": 2}
    late_layer_losses(tiny_folder("llama"), DATA, **options)
    assert not home.exists()
