"""Files say which release wrote them, and one of a newer release is refused in one sentence that says what to do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from interp_widgets import ModelEdit, open_sealed, read_sweep, seal_circuit, sweep
from interp_widgets.analysis._core.arrays import Floats
from interp_widgets.analysis._core.result import Result, record, with_axes
from interp_widgets.data.instruction_task import InstructionTask, make_instruction_task
from interp_widgets.models.edits import LayerEdit
from interp_widgets.models.mixture_of_depths.checkpoint import load_state, save_state
from interp_widgets.releases import refusal
from interp_widgets.tuning.clusters import runs
from interp_widgets.version import __version__
from interp_widgets.widgets.workbench.session import Session, read_session
from tests.models.mixtures import random_state


@record
class Numbers(Result):
    numbers: Floats = with_axes("numbers")


def square(number: int) -> dict[str, int]:
    return {"square": number**2}


def session(path: Path) -> Path:
    return Session([], {}, "A", [], []).save(path)


def training(path: Path) -> Path:
    path.mkdir()
    runs.write_header(path, {"settings": {}, "checkpoints": [], "history": [], "done": True})
    return path


def edit(path: Path) -> Path:
    zero = torch.zeros(1, 4)
    return ModelEdit("none", {0: LayerEdit(torch.tensor([0]), zero, zero, torch.zeros(4))}, {}, {}, None).save(path)


class Kind(NamedTuple):
    """A kind of file: how one is written and read, and what a newer release changes."""

    write: Callable[[Path], Any]
    read: Callable[[Path], Any]
    changed: str
    to: Any = 9


KINDS = {
    "result": Kind(lambda path: Numbers([1.0]).save(path), Numbers.load, "tests.test_releases.Numbers.VERSION"),
    "session": Kind(session, read_session, "interp_widgets.widgets.workbench.session.Session.VERSION"),
    "sweep": Kind(
        lambda path: sweep(square, [1, 2], out=path), read_sweep, "interp_widgets.sweeps.store._VERSION"
    ),
    "task": Kind(
        lambda path: make_instruction_task(seed=1).save(path), InstructionTask.load,
        "interp_widgets.data.instruction_task._VERSION",
    ),
    "training": Kind(training, runs.read_header, "interp_widgets.tuning.clusters.runs.VERSION"),
    "edit": Kind(edit, ModelEdit.load, "interp_widgets.models.edits._FORMAT", "interp_widgets edit 9"),
    "circuit": Kind(
        lambda path: seal_circuit("induction", path, "four words of yours"), open_sealed,
        "interp_widgets.models.circuits.sealed_folder._VERSION",
    ),
    "mixture": Kind(
        lambda path: save_state(random_state("llama", 2), path), load_state,
        "interp_widgets.models.mixture_of_depths.checkpoint.VERSION",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", KINDS)
def test_a_file_of_a_newer_release_is_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, path = KINDS[name], tmp_path / "file.npz"
    with monkeypatch.context() as newer:
        newer.setattr("interp_widgets.releases.__version__", "999.1")
        newer.setattr(kind.changed, kind.to)
        kind.write(path)
    with pytest.raises(ValueError) as refused:
        kind.read(path)
    assert str(refused.value) == (
        f"{path} was written by interp_widgets 999.1, which is newer than this one, {__version__}, and cannot be read "
        "by it: update interp_widgets"
    )


def test_a_file_of_a_newer_release_that_has_changed_nothing_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as newer:
        newer.setattr("interp_widgets.releases.__version__", "999.1")
        path = Numbers([1.0]).save(tmp_path / "numbers")
    assert Numbers.load(path).numbers.tolist() == [1.0]


@pytest.mark.parametrize("release", [None, 3, "", "0.1", __version__, "<b>999</b>", "9" * 1000, "999.0\n"])
def test_only_a_newer_release_is_blamed(release: Any) -> None:
    assert refusal("a.npz", {"interp_widgets": release}, "as it is") == "as it is"
    assert refusal("a.npz", [release], "as it is") == "as it is"
    assert "999.0.dev1" in refusal("a.npz", {"interp_widgets": "999.0.dev1"}, "as it is")
