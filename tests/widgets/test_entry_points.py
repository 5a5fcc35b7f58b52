"""Panels that installed packages register: found by name, loaded on demand, and broken ones are reported."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from interp_widgets import Workbench
from interp_widgets.widgets.workbench import entry_points as entry_points_module
from tests.models.tiny import tiny_model

MODULE = """
from interp_widgets import Layer, Model, Table, probe

@probe
def layers(model: Model, layer: Layer = 1) -> Table:
    return Table(["layer"], [[layer]])

number = 3
"""


UNREADABLE = """
class Unreadable(Exception):
    def __str__(self):
        raise RuntimeError

raise Unreadable
"""


@pytest.fixture
def registered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Installs a package whose entry points are these lines."""

    def install(lines: str, name: str = "my_probes") -> None:
        (tmp_path / f"{name}.py").write_text(MODULE)
        (tmp_path / f"{name}_broken.py").write_text("import does_not_exist_anywhere")
        (tmp_path / f"{name}_exits.py").write_text("import sys\nsys.exit(3)")
        (tmp_path / f"{name}_unreadable.py").write_text(UNREADABLE)
        folder = tmp_path / f"{name}-1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (folder / "entry_points.txt").write_text(f"[interp_widgets.probes]\n{lines}\n")
        importlib.invalidate_caches()

    monkeypatch.syspath_prepend(str(tmp_path))
    yield install
    for name in [name for name in sys.modules if name.startswith(("my_probes", "other_probes"))]:
        del sys.modules[name]


def test_announced_panels_are_loaded_when_asked_for(registered: Any, wire: Any) -> None:
    registered("layers = my_probes:layers\nbroken = my_probes_broken:layers")
    bench = Workbench(tiny_model("gpt2"))
    found = bench.probes()
    assert (list(found), len(found), "layers" in found) == (["broken", "layers"], 2, True)
    assert repr(found) == "EntryPointPanels(broken, layers)"
    assert "my_probes" not in sys.modules, "only the names were read"
    panel = bench.open("layers", layer=2)
    assert panel.wait(60)
    assert isinstance(panel, found["layers"])
    assert (bench.panels, bench.layer, panel.result.rows) == ((panel,), 2, ((2,),))
    bench.close()


def test_an_announced_panel_that_cannot_be_loaded_is_named(registered: Any, model: Any) -> None:
    there = "absent = my_probes:absent\nnumber = my_probes:number\nlayers = my_probes:layers"
    registered(
        f"broken = my_probes_broken:layers\nexits = my_probes_exits:x\nunreadable = my_probes_unreadable:x\n{there}"
    )
    bench = Workbench(model)
    with pytest.raises(
        ImportError,
        match=r"^the probe 'broken' \(my_probes_broken:layers of my_probes\) cannot be loaded: ModuleNotFoundError: No",
    ):
        bench.open("broken")
    with pytest.raises(ImportError, match=r"'absent' .* cannot be loaded: AttributeError: module 'my_probes' has no"):
        bench.open("absent")
    with pytest.raises(ImportError, match=r"'exits' .* cannot be loaded: SystemExit: 3"):
        bench.open("exits")
    with pytest.raises(ImportError, match=r"'unreadable' .* cannot be loaded: Unreadable: no message"):
        bench.open("unreadable")
    with pytest.raises(ImportError, match=r"'number' .* is not a panel: decorate the function with @probe"):
        bench.open("number")
    with pytest.raises(KeyError, match=r"no package registers a probe 'layer'; did you mean 'layers'\?"):
        bench.open("layer")
    assert bench.probes()["layers"].__name__ == "layers", "the others are as they were"
    registered("layers = other_probes:layers", name="other_probes")
    with pytest.raises(
        ImportError, match="is registered by two packages, as my_probes:layers and as other_probes:layers"
    ):
        bench.open("layers")


def test_where_nothing_is_announced(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry_points_module, "entry_points", lambda group: [])
    bench = Workbench(model)
    assert len(bench.probes()) == 0
    with pytest.raises(KeyError, match="no package registers a probe 'layers'; none"):
        bench.open("layers")
