"""A session file: results with the state in which they were computed, and nothing that a stranger could use."""

from __future__ import annotations

import copy
import dataclasses
import functools
import importlib
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tokenizers.normalizers import Lowercase

from interp_widgets import DataSetExplorer, LogitLensExplorer, Workbench, load_model
from interp_widgets.analysis._core.result import _RECORDS, Record, Unreadable
from interp_widgets.compute.cache import results as cache
from interp_widgets.models import Model
from interp_widgets.renamed import OLD_MODULES, module_in_files
from interp_widgets.widgets.base.fields import hidden
from interp_widgets.widgets.base.panel import Panel
from interp_widgets.widgets.base.request import File
from interp_widgets.widgets.base.shipped import request_text
from interp_widgets.widgets.bias.edit_comparison import SavedEdit
from interp_widgets.widgets.ffn_concepts.notes import Notes, edited
from interp_widgets.widgets.workbench import session as sessions
from interp_widgets.widgets.workbench.tools import TOOLS
from tests.models.state_edits import in_place
from tests.shipped import demo_pair

pytestmark = pytest.mark.slow

PROMPT, RESPONSE = "The Eiffel Tower is in the city of", " Paris."


@pytest.fixture(scope="module")
def base() -> Model:
    return load_model("demo-base")  # not shared: it is edited here


@pytest.fixture
def opened(wire: Any) -> Iterator[Callable[..., Workbench]]:
    """Opens workbenches, new ones or sessions, with the lens alone."""
    benches: list[Workbench] = []

    def build(*models: Any, path: Path | None = None, **options: Any) -> Workbench:
        bench = Workbench.load(path, *models, **options) if path else Workbench(*models, **options)
        benches.append(bench)
        assert bench.screen.wait(120)
        return bench

    yield build
    for bench in benches:
        bench.close()


@pytest.fixture(scope="module")
def file(base: Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A session with a lens and, unused so far, tabs with personal options."""
    bench = Workbench(base, prompt=PROMPT, response=RESPONSE, live_seconds=float("inf"))
    screen = bench.screen
    screen.shown = ("logit_lens",)
    for name in ("ffn_concepts", "data_set"):
        assert screen[name] is not None
    assert screen.wait(120)
    path = bench.save(tmp_path_factory.mktemp("session") / "lens.npz")
    bench.close()
    return path


def crafted(file: Path, path: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """A session whose header is changed."""
    with np.load(file) as archive:
        arrays = dict(archive)
    header = json.loads(arrays.pop("header.json").tobytes())
    change(header["fields"])
    text = np.frombuffer(json.dumps(header).encode(), dtype=np.uint8)
    np.savez(path, **{"header.json": text}, **arrays)
    return path


def tool(fields: dict[str, Any], name: str = "logit_lens") -> dict[str, Any]:
    found: dict[str, Any] = next(one["fields"] for one in fields["tools"] if one["fields"]["name"] == name)
    return found


def options(fields: dict[str, Any], name: str) -> dict[str, Any]:
    items: dict[str, Any] = tool(fields, name)["options"]["items"]
    return items


def answer(fields: dict[str, Any]) -> dict[str, Any]:
    """The saved answer of the lens."""
    found: dict[str, Any] = tool(fields)["panels"][0]["fields"]["answers"][0]["fields"]
    return found


# ---- the state in which a result was computed


def test_a_session_saved_after_an_edit_keeps_the_state_of_its_results(
    base: Model, opened: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = opened(base, prompt=PROMPT, response=RESPONSE, live_seconds=float("inf"))
    bench.screen.show("logit_lens")
    assert bench.screen.wait(120)
    before = bench.screen["logit_lens"].result
    undo = in_place(base)
    path = bench.save(tmp_path / "late.npz")
    bench.close()
    try:
        edited = opened(base, path=path).screen
        assert "Computed anew" in edited.note.value
        assert "other weight hash" in edited.note.value
        assert edited["logit_lens"].result is not None
        assert not edited["logit_lens"].result.equals(before)
        assert edited["logit_lens"].result.provenance["weight_hash"] == base.weight_hash
        edited.workbench.close()
    finally:
        undo()
    cache.clear()
    monkeypatch.setattr(Panel, "compute", lambda *_, **__: pytest.fail("the model ran"))
    again = opened(base, path=path).screen
    assert again["logit_lens"].result.equals(before)
    assert hidden(again.note)


@pytest.mark.parametrize("what", ["adds_bos", "chat_template"])
def test_results_under_another_reading_of_texts_are_computed_anew(
    what: str, base: Model, file: Path, opened: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if what == "adds_bos":
        monkeypatch.setattr(base, "prepend_bos", False)
    else:
        monkeypatch.setattr(base.tokenizer, "chat_template", "another")
    screen = opened(base, path=file).screen
    assert f"other {what.replace('_', ' ')}" in screen.note.value
    assert len(screen["logit_lens"].result.tokens) > 0


@pytest.mark.parametrize("what", ["weights", "tokenizer"])
def test_another_model_of_the_same_shape_computes_anew(what: str, base: Model, file: Path, opened: Any) -> None:
    other = load_model("demo-tuned" if what == "weights" else "demo-base")
    if what == "tokenizer":
        other.tokenizer.backend_tokenizer.normalizer = Lowercase()
    cache.clear()
    screen = opened(other, path=file).screen
    panel = screen["logit_lens"]
    assert f"other {'weight hash' if what == 'weights' else 'tokenizer'}" in screen.note.value
    fresh = panel.run(fresh=True)
    assert panel.result.equals(fresh)
    plain = opened(base, prompt=PROMPT, response=RESPONSE, live_seconds=float("inf"))
    plain.show("logit_lens")
    assert plain.screen.wait(120)
    assert not plain.screen["logit_lens"].result.to_frame().equals(fresh.to_frame())


REOPENED = """
import sys
from pathlib import Path
from interp_widgets import Workbench, load_model

base = load_model("demo-base")
for path in sys.argv[1:]:
    bench = Workbench.load(path, base)
    tool = bench.screen[Path(path).stem]
    assert bench.screen.wait(120)
    panel = tool["neurons"]
    assert panel.results, bench.screen.status_line.error
    print(panel._shown.opened, panel.table_of(panel.result).to_csv(index=False)[:400])
    bench.close()
"""


def test_results_of_several_steps_open_in_a_new_process(base: Model, opened: Any, tmp_path: Path) -> None:
    """Their requests name the class that holds the results of the steps."""
    paths, expected = [], []
    for name in ("ffn_concepts", "bias"):
        bench = opened(base, prompt=PROMPT, response=RESPONSE, live_seconds=float("inf"))
        bench.screen.show(name)
        tool = bench.screen[name]
        tool.tab = "neurons"
        panel = tool["neurons"]
        if not panel.wait(120) or not panel.results:
            panel.go()
        assert bench.screen.wait(300)
        expected.append(f"True {panel.table_of(panel.result).to_csv(index=False)[:400]}")
        paths.append(str(bench.save(tmp_path / f"{name}.npz")))
    done = subprocess.run([sys.executable, "-c", REOPENED, *paths], capture_output=True, text=True, timeout=300)
    assert done.stdout.split() == "\n".join(expected).split(), done.stderr[-2000:]


def test_panels_are_counted_before_they_are_read(
    base: Model, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Any] = []
    monkeypatch.setattr(sessions.SavedPanel, "__post_init__", lambda self: read.append(self))
    path = crafted(file, tmp_path / "many.npz", lambda f: tool(f).update(panels=tool(f)["panels"] * 3000))
    with pytest.raises(ValueError, match="two panels of its tab 'logit_lens' have one name"):
        Workbench.load(path, base)
    assert len(read) < 5  # those of other tabs


def test_results_from_a_file_are_used_by_no_other_panel(
    base: Model, file: Path, opened: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Anyone may have written them, with a checksum."""

    def forge(fields: dict[str, Any]) -> None:
        answer(fields)["value"]["fields"]["tokens"][0] = "forged"
        answer(fields)["checksum"] = "theirs"

    cache.clear()
    monkeypatch.setattr(sessions, "_checksum", lambda *_: "theirs")
    screen = opened(base, path=crafted(file, tmp_path / "forged.npz", forge)).screen
    assert screen["logit_lens"].result.tokens[0] == "forged"
    assert "from the session" in screen.status_line.text
    plain = opened(base, prompt=PROMPT, response=RESPONSE)
    plain.show("logit_lens")
    assert plain.screen.wait(120)
    assert plain.screen["logit_lens"].result.tokens[0] != "forged"


# ---- results in the place of others


Arrays = dict[str, Any]


@pytest.fixture(scope="module")
def pair_file(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Sessions of two models about a prompt, with the lens and the modules that it needs."""
    folder = tmp_path_factory.mktemp("pair")

    @functools.cache
    def save(prompt: str) -> Path:
        bench = Workbench(demo_pair(), prompt=prompt, response=RESPONSE, live_seconds=float("inf"))
        bench.screen.shown = ("logit_lens", "ablation")
        assert bench.screen.wait(120)
        path = bench.save(folder / f"{len(prompt)}.npz")
        bench.close()
        return path

    return save


def read(path: Path) -> tuple[dict[str, Any], Arrays]:
    with np.load(path) as archive:
        arrays = dict(archive)
    header: dict[str, Any] = json.loads(arrays.pop("header.json").tobytes())
    return header, arrays


def lens_arrays(header: dict[str, Any], model: int) -> str:
    """The beginning of the names of the lens's arrays."""
    names = [one["fields"]["name"] for one in header["fields"]["tools"]]
    return f"tools.{names.index('logit_lens')}.panels.0.answers.{model}.value."


def other_numbers(header: dict[str, Any], arrays: Arrays, other: Any) -> None:
    name = lens_arrays(header, 0) + "entropy"
    arrays[name] = arrays[name] * np.float32(0.5)


def other_dtype(header: dict[str, Any], arrays: Arrays, other: Any) -> None:
    name = lens_arrays(header, 1) + "entropy"
    arrays[name] = arrays[name].astype(np.float64)


def nans(header: dict[str, Any], arrays: Arrays, other: Any) -> None:
    name = lens_arrays(header, 1) + "entropy"
    arrays[name] = np.full_like(arrays[name], np.nan)


def swapped_arrays(header: dict[str, Any], arrays: Arrays, other: Any) -> None:
    first, second = lens_arrays(header, 0), lens_arrays(header, 1)
    for name in [one for one in arrays if one.startswith(first)]:
        twin = second + name.removeprefix(first)
        arrays[name], arrays[twin] = arrays[twin], arrays[name]


def both_answers(header: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = tool(header["fields"])["panels"][0]["fields"]["answers"]
    return found


def swapped_results(header: dict[str, Any], arrays: Arrays, other: Any) -> None:
    first, second = (one["fields"] for one in both_answers(header))
    first["value"], second["value"] = second["value"], first["value"]


def of_another_prompt(header: dict[str, Any], arrays: Arrays, other: tuple[dict[str, Any], Arrays]) -> None:
    """With its own checksums."""
    both_answers(header)[:] = copy.deepcopy(both_answers(other[0]))
    for model in (0, 1):
        start = lens_arrays(header, model)
        arrays.update({name: value for name, value in other[1].items() if name.startswith(start)})


def of_another_panel(header: dict[str, Any], arrays: Arrays, other: Any) -> None:
    panel = tool(header["fields"], "ablation")["panels"][0]["fields"]
    both_answers(header)[:] = copy.deepcopy(panel["answers"])


def another_word(header: dict[str, Any], arrays: Arrays, other: Any) -> None:
    both_answers(header)[0]["fields"]["value"]["fields"]["tokens"][1] = "another"


def no_checksum(header: dict[str, Any], arrays: Arrays, other: Any) -> None:
    for one in both_answers(header):
        del one["fields"]["checksum"]


@pytest.mark.parametrize(
    "change",
    [
        other_numbers, other_dtype, nans, swapped_arrays, swapped_results, of_another_prompt, of_another_panel,
        another_word, no_checksum,
    ],
)  # fmt: skip
def test_results_in_the_place_of_others_are_computed_anew(
    change: Callable[..., None], pair_file: Callable[[str], Path], opened: Any, tmp_path: Path
) -> None:
    header, arrays = read(pair_file(PROMPT))
    change(header, arrays, read(pair_file("The Louvre is in the old city of")))
    text = np.frombuffer(json.dumps(header).encode(), dtype=np.uint8)
    np.savez(tmp_path / "changed.npz", **{"header.json": text}, **arrays)
    cache.clear()
    screen = opened(demo_pair(), path=tmp_path / "changed.npz").screen
    assert "Computed anew (Logit lens): the result in the session is not as it was saved." in screen.note.value
    assert screen.status_line.error == ""
    panel = screen["logit_lens"]
    for shown, fresh in zip(panel.results, panel.run(fresh=True), strict=True):
        pd.testing.assert_frame_equal(shown.to_frame(), fresh.to_frame(), rtol=1e-4, atol=1e-6)


def test_panels_in_the_place_of_others_are_computed_anew(
    pair_file: Callable[[str], Path], opened: Any, tmp_path: Path
) -> None:
    """A panel by itself in the place of a stack, and a stack in its place."""

    def swap(fields: dict[str, Any]) -> None:
        lens, modules = tool(fields), tool(fields, "ablation")
        lens["panels"], modules["panels"] = modules["panels"], lens["panels"]

    screen = opened(demo_pair(), path=crafted(pair_file(PROMPT), tmp_path / "swapped.npz", swap)).screen
    for name in ("logit_lens", "ablation"):
        assert len(screen[name].current_panel.results) == 2
    assert screen.status_line.error == ""
    assert hidden(screen.note)


def test_a_session_as_it_was_saved_opens_with_its_results(
    pair_file: Callable[[str], Path], opened: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = pair_file(PROMPT)
    cache.clear()
    monkeypatch.setattr(Panel, "compute", lambda *_, **__: pytest.fail("the model ran"))
    screen = opened(demo_pair(), path=path).screen
    assert hidden(screen.note)
    assert all(screen[name].results for name in screen.shown)


def test_a_long_request_is_known_too() -> None:
    hashes = {sessions._request_hash(("prompt", "word " * 2**18 + end)) for end in "ab"}
    assert len(hashes - {""}) == 2


# ---- versions


def test_a_result_of_another_version_is_computed_anew(
    base: Model, file: Path, opened: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (kind,) = {type(one) for one in (opened(base, path=file).screen["logit_lens"].result,)}
    written = kind.VERSION
    monkeypatch.setattr(kind, "VERSION", written + 1)
    screen = opened(base, path=file).screen
    expected = f"it holds version {written} of {kind.__name__}, this program reads version {written + 1}"
    assert expected in screen.note.value
    assert screen["logit_lens"].result is not None
    assert screen.status_line.error == ""


def test_a_session_of_an_earlier_release_is_computed_anew(base: Model, file: Path, opened: Any, tmp_path: Path) -> None:
    def earlier(fields: dict[str, Any]) -> None:
        for one in fields["tools"]:
            for panel in one["fields"]["panels"]:
                panel["fields"].pop("request")
                panel["fields"]["answers"] = [each["fields"]["value"] for each in panel["fields"]["answers"]]

    screen = opened(base, path=crafted(file, tmp_path / "earlier.npz", earlier)).screen
    assert screen["logit_lens"].result is not None
    assert screen.status_line.error == ""


def test_the_classes_of_results_are_those_of_the_tabs_that_are_opened(
    base: Model, file: Path, opened: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new process has not imported them when it reads the file."""
    here = _RECORDS.pop("LogitLensResult")

    def load(name: str) -> Any:
        _RECORDS["LogitLensResult"] = here
        return loads[name]()

    loads = {name: tab.load for name, tab in TOOLS.items()}
    tabs = {name: dataclasses.replace(tab, load=functools.partial(load, name)) for name, tab in TOOLS.items()}
    monkeypatch.setattr("interp_widgets.widgets.workbench.screen.TOOLS", tabs)
    cache.clear()
    monkeypatch.setattr(LogitLensExplorer, "compute", lambda *_, **__: pytest.fail("the model ran"))
    try:
        screen = opened(base, path=file).screen
    finally:
        _RECORDS["LogitLensResult"] = here
    assert "from the session" in screen.status_line.text
    assert hidden(screen.note)


def test_a_measure_is_an_option_before_there_is_a_result(base: Model, wire: Any) -> None:
    panel = DataSetExplorer(base, measure="target_probability", live_seconds=0.0)
    assert panel.measure == panel.controls["measure"].value == "target_probability"
    panel.close()


def test_a_part_of_a_result_is_read_again_too() -> None:
    """The classes inside a result that is no record may not have been imported either."""
    late = Unreadable("it holds a part of an unknown class", lambda: ("read", 3))
    assert sessions.unpacked({"a": late}) == {"a": ("read", 3)}
    with pytest.raises(ValueError, match="it is damaged"):
        sessions.unpacked([Unreadable("", lambda: Unreadable("it is damaged", list))])


def test_options_by_other_keys_than_texts_are_as_they_were() -> None:
    notes = Notes().changed(("A", 1), {(5, 0): edited(None, description="moods")}, "description")
    assert sessions.unpacked(sessions.packed(notes)).of(("A", 1))[5, 0].description == "moods"
    assert sessions.unpacked(sessions.packed({3: ("a", {(1, 2): "b"})})) == {3: ("a", {(1, 2): "b"})}


def test_a_panel_without_results_shades_no_texts(
    base: Model, file: Path, opened: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Drawing the results of a file may have failed halfway."""

    def draw(self: Any, *_: Any) -> None:
        raise IndexError("list index out of range")

    monkeypatch.setattr(LogitLensExplorer, "draw", draw)
    monkeypatch.setattr(LogitLensExplorer, "shade_texts", lambda self, *_: self.results[0] is None)
    screen = opened(base, path=file).screen
    screen.describe()
    assert screen["logit_lens"].results == ()
    assert screen.texts._error == ""


def test_a_number_that_the_panel_cannot_have_is_told(base: Model, opened: Any, tmp_path: Path) -> None:
    bench = opened(base, prompt=PROMPT, response=RESPONSE, live_seconds=float("inf"))
    bench.screen.show("saliency")
    path = bench.save(tmp_path / "saliency.npz")
    bench.close()
    outside = crafted(path, tmp_path / "odd.npz", lambda fields: options(fields, "saliency").update(threshold=99.0))
    screen = opened(base, path=outside).screen
    assert "Opened as usual" in screen.note.value
    assert "threshold must be in 0..10 here, got 99.0" in screen.note.value
    assert screen["saliency"].threshold == 0


IN_KEYS = {
    "interp_widgets.analysis.bias.comparison": "compare_debiasing",
    "interp_widgets.widgets.bias.judge": "compare_edits",
    "interp_widgets.widgets.clusters.training": "training_clusters",
}
"""A function of each module that has a new name."""


@pytest.mark.parametrize("old", OLD_MODULES)
def test_functions_of_a_module_with_a_new_name_are_as_in_earlier_files(old: str) -> None:
    function = getattr(importlib.import_module(OLD_MODULES[old]), IN_KEYS[old])
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module(old)
    assert module_in_files(function) == old
    assert request_text((function,)) == f"({old}.{IN_KEYS[old]},)"


def test_a_class_of_a_module_with_a_new_name_is_as_in_earlier_files() -> None:
    edit = SavedEdit(File("a.safetensors", 1, 2), (0,))
    packed = sessions.packed(edit)
    assert packed[sessions._CLASS] == "interp_widgets.widgets.bias.judge:SavedEdit"
    assert sessions.unpacked(packed) == edit


def test_options_saved_under_old_names_are_read(base: Model, file: Path, opened: Any, tmp_path: Path) -> None:
    def with_old_names(fields: dict[str, Any]) -> None:
        texts, lens = options(fields, "texts"), options(fields, "logit_lens")
        del texts["generated_by"], texts["regenerate"], lens["lens_layer"]
        texts.update(writer="A", write_anew=False)
        lens.update(reading=3)

    screen = opened(base, path=crafted(file, tmp_path / "old.npz", with_old_names)).screen
    assert (screen.texts.generated_by, screen.texts.regenerate) == ("A", False)
    assert screen["logit_lens"].lens_layer == 3
    assert hidden(screen.note)


def test_tabs_that_have_not_been_opened_again_are_saved_as_they_were(
    base: Model, opened: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = opened(base, prompt=PROMPT, response=RESPONSE, live_seconds=float("inf"))
    bench.screen["logit_lens"].threshold = 0.75
    bench.screen.shown = ("logit_lens",)
    assert bench.screen.wait(120)
    before = bench.screen["logit_lens"].result
    bench.screen.shown = ("ablation",)
    assert bench.screen.wait(120)
    path = bench.save(tmp_path / "first.npz")
    for again in ("second.npz", "third.npz"):
        path = opened(base, path=path).save(tmp_path / again)
    cache.clear()
    monkeypatch.setattr(LogitLensExplorer, "compute", lambda *_, **__: pytest.fail("the model ran"))
    last = opened(base, path=path)
    last.screen.shown = ("logit_lens",)
    assert last.screen.wait(120)
    assert last.screen["logit_lens"].result.equals(before)
    assert last.screen["logit_lens"].threshold == 0.75


# ---- results that a panel cannot draw


@pytest.mark.parametrize("hook", ["draw", "draw_selection", "describe_selection", "shade_texts"])
@pytest.mark.parametrize(
    "error", [IndexError("list index out of range"), ValueError("operands could not be broadcast")]
)
def test_a_result_of_a_file_that_cannot_be_drawn_is_computed_anew(
    error: Exception, hook: str, base: Model, file: Path, opened: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once or at the first click; a file may hold anything."""
    late, drawn, failed = [False], getattr(LogitLensExplorer, hook), []

    def draws(self: Any, *args: Any) -> Any:
        if late[0] and self._shown.opened:
            failed.append(hook)
            raise error
        return drawn(self, *args)

    monkeypatch.setattr(LogitLensExplorer, hook, draws)
    for late[0] in (True, False):
        cache.clear()
        screen = opened(base, path=file).screen
        panel = screen["logit_lens"]
        if not late[0]:
            late[0] = True
            assert "from the session" in screen.status_line.text
            panel.threshold = 0.5
            screen.workbench.select(response_token=0, layer=2)
            assert screen.wait(120)
        assert "the result in the session does not fit the panel" in screen.note.value
        assert screen.status_line.error == ""
        assert panel.result is not None
        assert not panel._shown.opened
        assert failed.pop() == hook


# ---- a stranger's file


def test_options_that_name_files_addresses_or_keys_are_personal() -> None:
    """A session neither holds nor sets them."""
    loose = []
    for tab in TOOLS.values():
        kind = tab.load()
        declared = kind.fields()
        for name in kind.options():
            named = re.search(r"file|folder|path|url|key|endpoint|translators|vectors|notes$|mixtures", name)
            field = declared.get(name)
            shown = field is not None and re.search(
                r"\bfiles?\b|\.json|\.csv|folder|address", f"{field.label} {field.placeholder}".lower()
            )
            if (named or shown) and (field is None or not field.is_personal("a text")):
                loose.append(f"{kind.__name__}.{name}")
    assert loose == []


def test_a_session_sets_nothing_personal(
    base: Model, file: Path, opened: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = {
        "base_url": "http://elsewhere.example/v1", "key_variable": "A_SECRET", "endpoint_model": "x",
        "annotator": "endpoint", "vectors": "/etc/hostname", "word_file": "/etc/hostname", "notes": "/etc/hostname",
    }  # fmt: skip

    def change(fields: dict[str, Any]) -> None:
        options(fields, "ffn_concepts").update(theirs)
        options(fields, "data_set")["rows"] = "/etc/hostname.csv"

    monkeypatch.setattr("interp_widgets.sweeps.items.read_content", lambda *_: pytest.fail("a file was read"))
    screen = opened(base, path=crafted(file, tmp_path / "theirs.npz", change)).screen
    panel = screen["ffn_concepts"]
    assert {name: getattr(panel, name) for name in theirs} == {
        "base_url": "", "key_variable": "OPENAI_API_KEY", "endpoint_model": "", "annotator": "rules", "vectors": "",
        "word_file": "", "notes": None,
    }  # fmt: skip
    assert screen["data_set"].rows == ()


def test_a_personal_option_is_not_written_and_the_screen_says_so(base: Model, opened: Any, tmp_path: Path) -> None:
    bench = opened(base, prompt=PROMPT, response=RESPONSE)
    bench.screen["ffn_concepts"].base_url = "http://mine.example/v1"
    path = bench.save(tmp_path / "mine.npz")
    with np.load(path) as archive:
        assert b"mine.example" not in archive["header.json"].tobytes()
    screen = opened(base, path=path).screen
    assert screen["ffn_concepts"].base_url == ""
    assert "Address is not part of a session" in screen.note.value


def model_facts(fields: dict[str, Any]) -> dict[str, Any]:
    facts: dict[str, Any] = fields["models"][0]["items"]
    return facts


def test_a_name_of_the_hub_is_fetched_only_when_asked(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def load(source: str, **_: Any) -> Any:
        asked.append(source)
        raise ValueError("no network here")

    monkeypatch.setattr(sessions, "load_model", load)
    path = crafted(file, tmp_path / "hub.npz", lambda fields: model_facts(fields).update(source="somebody/a-model"))
    with pytest.raises(ValueError, match=r"load_model\('somebody/a-model'\)\), or .*fetch=True"):
        Workbench.load(path)
    assert asked == []
    with pytest.raises(ValueError, match="no network here"):
        Workbench.load(path, fetch=True)
    assert asked == ["somebody/a-model"]


def test_a_mixture_here_whose_base_is_on_the_hub_is_fetched_only_when_asked(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "load_model", lambda *_, **__: pytest.fail("a model was loaded"))
    monkeypatch.setattr("interp_widgets.models.mixture_of_depths.opening.MixtureFolders.also_reads", lambda *_: "a/b")
    path = crafted(file, tmp_path / "hub.npz", lambda fields: model_facts(fields).update(source="demo-base-mixture"))
    with pytest.raises(ValueError, match="fetched from the Hugging Face hub"):
        Workbench.load(path)


def test_models_are_counted_before_one_is_loaded(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "load_model", lambda *_, **__: pytest.fail("a model was loaded"))
    for count, words in ((0, "0 models"), (1000, "1,000 models")):
        path = crafted(file, tmp_path / "many.npz", lambda fields: fields.update(models=fields["models"] * count))  # noqa: B023
        with pytest.raises(ValueError, match=f"it holds {words}, and a workbench has one or two"):
            Workbench.load(path)


REFUSED: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "a model that is no mapping": (lambda f: f.update(models=[5]), "it describes a model by"),
    "a model without a source": (lambda f: model_facts(f).pop("dtype"), "the dtype of a model is"),
    "a source that is a number": (lambda f: model_facts(f).update(source=3), "the source of a model is"),
    "a source that no path can have": (
        lambda f: model_facts(f).update(source="x" * 5000),
        "the source of a model is 'x",
    ),
    "an unknown shared name": (lambda f: f["shared"]["items"].update(x=1), "does not share 'x'"),
    "a layer that is a text": (lambda f: f["shared"]["items"].update(layer="x"), "layer"),
    "a layer out of range": (lambda f: f["shared"]["items"].update(layer=77), "layer must be in 0..5"),
    "a prompt that is a chat of numbers": (
        lambda f: f["shared"]["items"].update(prompt={"kind": "mapping", "items": {"messages of a chat": 5}}),
        "for the messages of a chat",
    ),
    "two tabs of one name": (lambda f: f["tools"].append(copy.deepcopy(f["tools"][0])), "have one name"),
    "two panels of one tab": (lambda f: tool(f)["panels"].append(tool(f)["panels"][0]), "two panels of its tab"),
    "a class that is a list": (lambda f: f["tools"][0].update({"class": []}), "it is damaged"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_damaged_session_is_refused_in_a_sentence(case: str, base: Model, file: Path, tmp_path: Path) -> None:
    change, words = REFUSED[case]
    with pytest.raises(ValueError, match=re.escape(words)):
        Workbench.load(crafted(file, tmp_path / "damaged.npz", change), base)


def _class(name: str) -> dict[str, Any]:
    return {"kind": "mapping", "items": {"class of interp_widgets": name}}


OPENED: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "an unknown view": (lambda f: f.update(view="sideways"), ""),
    "an unknown tab is shown": (lambda f: f.update(shown=["nowhere", "logit_lens"]), ""),
    "an unknown option": (lambda f: options(f, "logit_lens").update(nonsense=1), ""),
    "an option of another type": (lambda f: options(f, "logit_lens").update(top="many"), "Opened as usual"),
    "an option with a class that is no option": (
        lambda f: options(f, "logit_lens").update(top=_class("interp_widgets.models.state:State")), "Opened as usual",
    ),
    "a module that would be imported": (
        lambda f: options(f, "logit_lens").update(top=_class("interp_widgets.demo.__main__:Build")), "no class of this",
    ),
    "a result of another class": (
        lambda f: answer(f).update(value={"kind": "record", "class": "Result", "fields": {}}), "is not as it was saved",
    ),
    "a result that is damaged": (lambda f: answer(f)["value"]["fields"].pop("tokens"), "damaged"),
    "a result of an unknown class": (lambda f: answer(f)["value"].update({"class": "Nobody"}), "unknown class Nobody"),
    "no states": (lambda f: answer(f).update(states=[]), "does not say in which state"),
    "states that are numbers": (lambda f: answer(f).update(states=[3]), "Computed anew"),
    "two results for one model": (lambda f: tool(f)["panels"][0]["fields"]["answers"].append(1), ""),
}  # fmt: skip


@pytest.mark.parametrize("case", OPENED)
def test_what_cannot_be_used_is_left_out_in_a_sentence(
    case: str, base: Model, file: Path, opened: Any, tmp_path: Path
) -> None:
    change, words = OPENED[case]
    cache.clear()  # results of this process go first
    screen = opened(base, path=crafted(file, tmp_path / "odd.npz", change)).screen
    said = f"{screen.note.value} {screen.status_line.error}"
    assert words in said
    assert not re.search(r"Error\b|NoneType|traceback", said)
    panel = screen["logit_lens"]
    if panel.result is None:
        panel.go()
        assert panel.wait(120)
    assert isinstance(panel.result, Record)
