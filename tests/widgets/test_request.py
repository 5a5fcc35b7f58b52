"""What a panel asks: several calls in a row, arguments from an earlier result, from another model, from a file."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from interp_widgets.widgets.base.panel import Panel
from interp_widgets.widgets.base.request import File, FromModel, FromResult, Request, Steps
from tests.models.tiny import tiny_model

FOUND: list[str] = []


def measure(model: Any, *, n: int, check: Callable[[], None] | None = None) -> int:
    """A first call."""
    return 10 * n + len(model.name)


def scale(
    model: Any, times: int, *, by: int, usual: int = 1, on_partial: Any = None, progress: Any = None, check: Any = None
) -> int:
    """A second one."""
    on_partial(by)
    return times * by * usual


def both(measured: int, scaled: int) -> tuple[int, int]:
    return measured, scaled


def steps(n: int) -> Steps:
    """Made anew each time, as in a panel's `request`."""
    taken = FromResult("measured", "{} + 1", lambda value: value + 1)
    return Steps.of(both, {"measured": Request.of(measure, {"n": n}), "scaled": Request.of(scale, {"by": taken}, 2)})


def test_a_later_step_takes_what_an_earlier_one_brought() -> None:
    parts: list[Any] = []
    asked = steps(3)
    model: Any = SimpleNamespace(name="abcd")
    assert asked.answer(model, on_partial=parts.append, progress=None, check=None) == (34, 70)
    assert parts == [(34, 35)], "what the last step has so far stands beside the results before it"
    assert asked == steps(3) != steps(4)
    assert len({asked, steps(3), steps(4)}) == 2, "it is the key of a cache"


def test_copied_code_of_steps_repeats_them() -> None:
    lines = steps(3).lines([object(), object()])
    space: dict[str, Any] = {
        "measure": measure, "scale": lambda model, times, by: scale(model, times, by=by, on_partial=lambda _: None),
        "base": SimpleNamespace(name="abcd"), "tuned": SimpleNamespace(name="ab"),
    }  # fmt: skip
    exec("\n".join(lines), space)
    assert (space["measured_a"], space["scaled_a"]) == (34, 70)
    assert (space["measured_b"], space["scaled_b"]) == (32, 66)
    code = steps(3).code([SimpleNamespace(name="one")], "measured.bit_length()").splitlines()
    assert code[:2] == [
        "from interp_widgets import load_model", f"from {measure.__module__} import measure, scale"
    ]  # fmt: skip
    assert code[-1] == "measured.bit_length()"


def test_a_file_that_has_changed_is_another_argument(tmp_path: Path) -> None:
    path = tmp_path / "maps.bin"
    path.write_bytes(b"12345")
    first = Request.of(measure, {"n": File.at(str(path))})
    assert first == Request.of(measure, {"n": File.at(str(path))})
    assert first.read_by(SimpleNamespace())[1] == {"n": str(path)}  # type: ignore[arg-type]
    assert repr(str(path)) in first.lines([object()])[0]
    os.utime(path, (1, 1))
    assert first != Request.of(measure, {"n": File.at(str(path))})


@dataclass(frozen=True)
class NameLength(FromModel):
    """As long as the model's name."""

    def find(self, model: Any, check: Callable[[], None]) -> int:
        check()
        FOUND.append(model.name)
        return len(model.name)

    def code(self) -> tuple[list[str], str]:
        return [f"length = len({self.variable}.name)"], "length"


class Measured(Panel):
    """Measures both models by the name of the second."""

    title, analysis = "Measured", staticmethod(measure)

    def request(self) -> Request:
        return Request.of(measure, {"n": NameLength(1, "tuned")})


@pytest.fixture
def models() -> list[Any]:
    """A model and two others to set it against."""
    found = [tiny_model("gpt2", seed=seed) for seed in range(3)]
    for model, name in zip(found, ("first", "second!", "third"), strict=True):
        model.name = name
    return found


@pytest.mark.seconds
def test_what_another_model_finds_is_found_once_for_both(wire: Any, models: list[Any]) -> None:
    FOUND.clear()
    panel = Measured(models[0], models[1])
    assert panel.run() == (75, 77)
    assert FOUND == ["second!"]
    panel.run()
    assert FOUND == ["second!"], "the answers are in the cache"
    other = Measured(models[0], models[2])
    assert other.run() == (55, 55), "a result that another model's number is in is kept for that model only"
    code = panel.code(panel.request())
    assert code.count("length = len(tuned.name)") == 1
    assert "result_a = measure(base, n=length)" in code
    panel.close()
    other.close()
