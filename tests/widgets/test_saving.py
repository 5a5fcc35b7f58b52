"""Saving and copying."""

from __future__ import annotations

import base64
import csv
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from interp_widgets.widgets.base.code import CodeBox, call, cell
from interp_widgets.widgets.base.saving import formats, free_name


def test_table_from_python(toy: Any, tmp_path: Path) -> None:
    path = toy.save(tmp_path / "numbers.csv")
    assert pd.read_csv(path).to_dict("list") == {"n": [3], "square": [9]}
    path = toy.save(str(tmp_path / "numbers.parquet"))
    assert pd.read_parquet(path).to_dict("list") == {"n": [3], "square": [9]}


def test_pictures(make: Callable[..., Any], model: Any, classes: Any, tmp_path: Path) -> None:
    from interp_widgets.figures.static import heatmap_scene

    class Drawn(classes.Toy):
        def scene(self) -> Any:
            return heatmap_scene([[0.0, 1.0], [2.0, 3.0]])

    panel = make(model, kind=Drawn)
    assert formats(panel) == (".csv", ".parquet", ".svg", ".pdf", ".png", ".html")
    assert panel.save(tmp_path / "map.svg").read_text().lstrip().startswith("<svg")
    assert panel.save(tmp_path / "map.pdf").read_bytes().startswith(b"%PDF")
    assert panel.save(tmp_path / "map.png").read_bytes().startswith(b"\x89PNG")


def test_the_width_of_a_picture(make: Callable[..., Any], model: Any, classes: Any, tmp_path: Path) -> None:
    from interp_widgets.figures.static import curves_scene, stack_scenes, strip_scene

    class Drawn(classes.Toy):
        def scene(self) -> Any:
            chart = curves_scene([("a", [0.0, 1.0], True)], title="t", x_label="x", y_label="y", width=400)
            return stack_scenes([strip_scene(["a", "b"]), stack_scenes([chart, chart], columns=2)])

    panel = make(model, kind=Drawn)

    def across(width: Any) -> float:
        svg = panel.save(tmp_path / "map.svg", width=width).read_text()
        return float(re.search(r'<svg [^>]*width="([\d.]+)pt"', svg)[1]) / 0.75

    widths = {None: 900, "page": 880, "slide": 720, "column": 420, 500: 500}
    assert {width: round(across(width)) for width in widths} == widths
    assert panel.scene().width == 900, "the width of one file is not that of the next"
    assert b"/MediaBox [ 0 0 315 " in panel.save(tmp_path / "map.pdf", width="column").read_bytes()
    for wrong in (319, 901, 420.0, "narrow", True):
        with pytest.raises(ValueError, match=r"'column', 'page', 'slide' or a number of pixels from 320 to 900, got"):
            panel.save(tmp_path / "map.svg", width=wrong)
    with pytest.raises(ValueError, match=r"only a picture \(.svg, .pdf, .png\) has a width, not 'map.csv'"):
        panel.save(tmp_path / "map.csv", width="page")


def test_what_cannot_be_saved_is_said(toy: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"must end in .csv, .parquet, .html"):
        toy.save(tmp_path / "x.svg")
    with pytest.raises(ValueError, match="does not exist"):
        toy.save(tmp_path / "nowhere" / "x.csv")


class Bytes:
    def __fspath__(self) -> bytes:
        return b"numbers.csv"


@pytest.mark.parametrize(
    ("path", "error", "message"),
    [
        ("a\0b.csv", ValueError, "must not contain a NUL"),
        ("\ud800.csv", ValueError, "valid Unicode"),
        ("y" * 5000 + ".csv", ValueError, "shorten it"),
        ("d/" * 2500 + "x.csv", ValueError, "shorten it"),
        ("", ValueError, "got an empty one"),
        (" ", ValueError, "got an empty one"),
        ("a_folder.csv", ValueError, "it is a folder"),
        ("no_suffix", ValueError, "must end in .csv, .parquet, .html"),
        ("~no-such-user/x.csv", ValueError, "no home folder to start in: write it without ~"),
        (None, TypeError, "path must be a str or a Path, got None"),
        (5, TypeError, "path must be a str or a Path, got 5"),
        (b"x.csv", TypeError, "got an object of type bytes"),
        (Bytes(), TypeError, "got an object of type Bytes"),
    ],
)
def test_a_path_that_no_file_can_have_is_refused(
    path: Any, error: type[Exception], message: str, toy: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a_folder.csv").mkdir()
    with pytest.raises(error, match=message) as caught:
        toy.save(path)
    assert "\n" not in str(caught.value)
    assert [one.name for one in tmp_path.iterdir()] == ["a_folder.csv"]


def test_a_closed_panel_saves_nothing(toy: Any, tmp_path: Path) -> None:
    toy.close()
    with pytest.raises(RuntimeError, match="this Toy is closed: open a new one"):
        toy.save(tmp_path / "x.csv")


@pytest.mark.parametrize("text", ["</script><script>alert(1)</script>", "<!--<script>", "\u2028\u2029", "a\0b & <b>"])
def test_no_text_leaves_its_place_in_a_page(text: str, model: Any, make: Any, classes: Any, tmp_path: Path) -> None:
    from interp_widgets.widgets.views import TokenStrip

    def elements(shown: str) -> list[str]:
        tags: list[str] = []
        parser = HTMLParser()
        parser.handle_starttag = lambda tag, _: tags.append(tag)  # type: ignore[method-assign]

        class Titled(classes.Toy):
            title = shown

            def build(self) -> None:
                super().build()
                self.plot.children = [self.label, TokenStrip(tokens=[shown], label=shown)]

        parser.feed(make(model, kind=Titled).save(tmp_path / "page.html").read_text(encoding="utf-8"))
        return tags

    assert elements(text) == elements("plain")


def test_nothing_to_save(make: Callable[..., Any], model: Any, tmp_path: Path) -> None:
    panel = make(model, seconds=500.0)
    with pytest.raises(ValueError, match="nothing to save yet"):
        panel.save(tmp_path / "x.csv")


def test_save_writes_beside_the_notebook(toy: Any, wire: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save = toy.save_row
    assert "iw-hidden" in save.row._dom_classes
    wire.choose(toy.menu, "Save")
    assert "iw-hidden" not in save.row._dom_classes
    wire.click(save.write)
    assert (tmp_path / "toy.csv").exists()
    assert toy.status.text.startswith(f"Saved {tmp_path / 'toy.csv'} (")
    wire.click(save.write)
    assert (tmp_path / "toy-2.csv").exists(), "a click must not overwrite a file"
    wire.type(save.name, value="../escape")
    wire.click(save.write)
    assert save.not_saved.sentence == "the file name must not contain slashes, got '../escape'"
    assert toy.status.error == ""
    wire.type(save.name, value="mine.csv")
    wire.click(save.write)
    assert (tmp_path / "mine.csv").exists()


def test_free_name(tmp_path: Path) -> None:
    (tmp_path / "a.csv").touch()
    (tmp_path / "a-2.csv").touch()
    assert free_name(tmp_path / "a.csv").name == "a-3.csv"


def test_code_of_a_call() -> None:
    assert call("f", "model", x=1) == "f(model, x=1)"
    long = call("prompt_saliency", "model", repr("word " * 30), method="exact")
    assert long.splitlines()[0] == "prompt_saliency("
    assert eval(long, {"prompt_saliency": lambda *a, **k: (a, k), "model": 1})[1] == {"method": "exact"}


def test_code_of_a_cell() -> None:
    demo = SimpleNamespace(name="demo-base", device="cpu", dtype="torch.float32", backend="hooked")
    code = cell(["prompt_saliency"], [demo], ["result = prompt_saliency(model, 'x')"])
    assert code.splitlines() == [
        "from interp_widgets import load_model, prompt_saliency",
        "",
        "model = load_model('demo-base')",
        "result = prompt_saliency(model, 'x')",
    ]
    own = SimpleNamespace(name="mine", source="/data/mine", device="cuda:0", dtype="torch.float16", backend="bridge")
    memory = SimpleNamespace(name="adopted")
    lines = cell([], [own, memory], []).splitlines()
    assert lines[0] == "import torch"
    assert lines[-2] == "base = load_model('/data/mine', device='cuda:0', dtype=torch.float16, backend='bridge')"
    assert lines[-1] == "tuned = tuned  # the model that the widget was opened on: adopted"
    compile("\n".join(lines), "cell", "exec")


def test_code_box(wire: Any) -> None:
    box = CodeBox()
    assert not box.visible
    box.show("1 + 1")
    assert wire.states(box, "code")[-1] == "1 + 1"
    box.close()
    assert wire.open() == 0


def test_page(make: Callable[..., Any], model: Any, classes: Any, tmp_path: Path) -> None:
    from interp_widgets.widgets.views import TokenStrip

    class Stripped(classes.Toy):
        def build(self) -> None:
            super().build()
            self.plot.children = [*self.plot.children, TokenStrip(tokens=["one", "two"])]

    page = make(model, kind=Stripped).save(tmp_path / "page.html").read_text()
    assert "<h1>Toy: fake</h1>" in page
    assert '"one", "two"' in page
    assert "square" in page, "the numbers are in it as a table"


@pytest.mark.parametrize(
    "text", ["=1+1", "+1", "-", "@SUM(A1)", "\tx", "\r=1", "'=1", "''-", "'quoted'", "plain", "\r", "a\r\nb"]
)
def test_no_text_is_a_formula_in_a_table(
    make: Callable[..., Any], model: Any, classes: Any, tmp_path: Path, text: str
) -> None:
    from interp_widgets.widgets.views import TokenStrip

    class Worded(classes.Toy):
        def build(self) -> None:
            super().build()
            self.plot.children = [*self.plot.children, TokenStrip(tokens=["one"])]

        def frame(self) -> Any:
            return pd.DataFrame(
                {"token": [text], "=head": ["x"], "n": [-1], "x": [-0.5], "mixed": pd.Series([-2.5], dtype=object)}
            )

    panel = make(model, kind=Worded)
    with panel.save(tmp_path / "numbers.csv").open(newline="", encoding="utf-8") as file:
        head, cells = csv.reader(file)
    assert head == ["token", "'=head", "n", "x", "mixed"]
    assert cells[1:] == ["x", "-1", "-0.5", "-2.5"]
    assert cells[0] == (text if text in ("plain", "'quoted'", "a\r\nb") else "'" + text)
    assert pd.read_csv(tmp_path / "numbers.csv", dtype=str).token[0] == cells[0]
    page = panel.save(tmp_path / "page.html").read_text()
    link = re.search(r"data:text/csv;charset=utf-8;base64,([^\"]+)", page)
    assert link is not None
    assert base64.b64decode(link[1]) == (tmp_path / "numbers.csv").read_bytes()
