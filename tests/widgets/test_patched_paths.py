"""The tab of paths without a browser: what it asks for, draws, selects, saves, and takes amiss."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from interp_widgets import PatchingPanel, PathPatchingResult, Workbench, path_patching
from interp_widgets.widgets.patching.options import CLEAN, CORRUPTED, part
from interp_widgets.widgets.patching.paths import in_words, p_of, place_of
from tests.models.tiny import tiny_model
from tests.shipped import demo_pair
from tests.waiting import LIMIT
from tests.widgets.opening import opening, settle
from tests.widgets.trouble import cancelled_and_closed, complaint

pytestmark = pytest.mark.slow
LINES = [
    f"The capital of {one} is | The capital of {other} is"
    for one, other in (("France", "Italy"), ("Spain", "Germany"), ("Japan", "China"))
]


@pytest.fixture(scope="module")
def pair() -> Any:
    return demo_pair()


@pytest.fixture
def patch(wire: Any) -> Iterator[Callable[..., PatchingPanel]]:
    """Opens panels on the tab; afterwards every worker and comm they opened must be gone."""
    with opening(PatchingPanel, tab="paths") as build:
        yield build
    assert wire.open() <= 2, "what the kernel shares (Bokeh's code) may stay, nothing else"


def matrix(panel: Any, which: int = 0) -> Any:
    return panel.maps.pairs["paths"].views[which].matrix


def test_the_map_the_table_and_the_words_are_those_of_the_function(pair: Any, patch: Any) -> None:
    panel = patch(pair.tuned)
    tab = panel["paths"]
    assert (tab.status.state, panel.hints) == ("done", {}), tab.status.error
    found = path_patching(pair.tuned, CLEAN, CORRUPTED, None, ["logits"], " Paris", foil=" Rome")
    effect = dict(zip(found.senders, found.effect.tolist(), strict=True))
    heads = [[effect[f"head {layer}.{head}"] for head in range(6)] for layer in range(6)]
    np.testing.assert_allclose(matrix(tab)[:, :6], heads, atol=1e-5)
    np.testing.assert_allclose(matrix(tab)[:, 6], [effect[f"mlp {layer}"] for layer in range(6)], atol=1e-5)
    assert tab.maps.maps["paths"].column_labels == [*"012345", "MLP"]
    best = max(effect, key=lambda name: abs(effect[name]))
    assert tab.table.rows[0] == [best, pytest.approx(effect[best], abs=1e-5)]
    assert f"<b>{part(effect[best])}</b>, {best}" in tab.verdict.value
    assert "One pair of prompts has no interval" in tab.verdict.value


def test_what_is_clicked_is_selected_everywhere(pair: Any, wire: Any) -> None:
    bench = Workbench(pair.tuned, prompt=CLEAN)
    panel = settle(PatchingPanel(bench, tab="paths"))
    tab = panel["paths"]
    heat = tab.maps.maps["paths"]
    try:
        wire.type(heat, pinned=[2, 4])
        assert (bench.layer, bench.head, panel.picked_part) == (2, 4, "head 2.4")
        wire.type(heat, pinned=[5, 6])
        assert (bench.layer, bench.head, panel.picked_part, heat.pinned) == (5, 4, "mlp 5", [5, 6])
        assert tab.table.selected == tab.listed.index("mlp 5")
        wire.type(tab.table, selected=0)
        assert panel.picked_part == tab.listed[0]
        assert "Largest" in tab.verdict.value
        assert tab.described().sentences == (), "the panel says it once"
    finally:
        panel.close()
        bench.close()


def test_estimates_stand_where_nothing_is_patched_yet_and_stay_on_cancel(
    pair: Any, patch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    panel = patch(*pair, view="B", receivers="head_q 5.2")
    tab = panel["paths"]
    whole = panel.result[1]
    few = np.where(np.arange(len(whole.senders)) % 7, np.nan, whole.effect)
    part_of = replace(whole, effect=few, each=few[None], estimated=whole.effect / 2, partial=True)
    entered = threading.Event()

    def endless(request: Any, model: Any, *, progress: Any, check: Any, on_partial: Any) -> Any:
        on_partial(part_of)
        if model is pair.base:
            return panel_results[0]
        entered.set()
        while True:
            check()

    panel_results = panel.result
    monkeypatch.setattr(tab, "compute", endless)
    panel.receivers = "head_q 5.1"
    panel.go()
    assert entered.wait(LIMIT)
    panel.cancel()
    assert panel.wait(LIMIT)
    assert panel.status.state == "cancelled"
    heat = tab.maps.pairs["paths"].views[0]
    for at, name in enumerate(whole.senders):
        layer, head = place_of(name)
        cell = [layer, head if head >= 0 else 6]
        assert (cell in heat.crossed) == np.isfinite(few[at]), name
        shown = few[at] if np.isfinite(few[at]) else whole.effect[at] / 2
        assert heat.matrix[tuple(cell)] == pytest.approx(shown, abs=1e-5)
        assert heat.notes[cell[0] * 7 + cell[1]] == name + ", estimated" * bool(np.isnan(few[at]))
    assert heat.title.endswith("partial")
    known = np.isfinite(few).sum()
    assert f"<b>{known} of {len(few)}</b> senders patched (crosses)" in tab.verdict.value
    best = whole.senders[int(np.nanargmax(np.abs(few)))]
    assert re.search(rf"Largest so far: <b>[^<]+</b>, {best};", tab.verdict.value)
    assert [row[1] is None for row in tab.table.rows] == [False] * min(known, 20) + [True] * (20 - min(known, 20))
    assert in_words(replace(part_of, effect=few * np.nan), None).startswith(f"<b>0 of {len(few)}</b> senders")


def test_chosen_senders_and_several_receivers(pair: Any, patch: Any) -> None:
    panel = patch(pair.tuned, senders="0.1, mlp 0, attn 1", receivers="head_q 3.2, logits")
    tab = panel["paths"]
    found = path_patching(
        pair.tuned, CLEAN, CORRUPTED, [(0, 1), ("mlp", 0), ("attn", 1)], [("head_q", 3, 2), "logits"], " Paris",
        foil=" Rome", separate=True,
    )  # fmt: skip
    assert matrix(tab).shape == (2, 4)
    assert np.isnan(matrix(tab)).sum() == 5
    assert matrix(tab)[0, 1] == pytest.approx(found.effect[0], abs=1e-5)
    assert [column["label"] for column in tab.table.columns] == ["sender", "together", "to head_q 3.2", "to logits"]
    for row in tab.table.rows:
        assert row[2:] == pytest.approx(found.paths[found.senders.index(row[0])].tolist(), abs=1e-5)
    tab._pinned("paths", 1, 0)
    assert panel.picked_part == "", "it is no sender"


def test_over_pairs_what_is_not_beyond_chance_has_no_colour(pair: Any, patch: Any) -> None:
    panel = patch(pair.tuned, pairs=LINES, pairs_from="pairs", senders="0.1, mlp 0, 5.0")
    tab = panel["paths"]
    texts = [[line.split(" | ")[at] for line in LINES] for at in range(2)]
    found = path_patching(pair.tuned, *texts, ["0.1", "mlp 0", "5.0"], ["logits"])
    np.testing.assert_allclose(tab.result.each, found.each, atol=1e-5)
    p = p_of(tab.result)
    assert f"<b>{int((p < 0.05).sum())} of 3</b> senders differ from 0 beyond chance over 3 pairs" in tab.verdict.value
    assert len(tab.maps.maps["paths"].muted) == int((p >= 0.05).sum()) == 3, "three pairs are too few for any"
    assert "95% interval" in tab.maps.maps["paths"].notes[1]
    assert tab.table.columns[2]["label"] == "95%"


@pytest.mark.parametrize(
    ("options", "field", "sentence"),
    [
        ({"receivers": "logit"}, "receivers", "or a name such as 'head_q 4.2', got 'logit'"),
        ({"receivers": "head_k 2.9"}, "receivers", "key/value head must be in -3..2"),
        ({"receivers": "head_q 0.1"}, "receivers", "there is no path to head_q 0.1"),
        ({"receivers": " "}, "receivers", "there is no receiver yet"),
        ({"senders": "head 9.1"}, "senders", "layer must be in -6..5"),
        ({"senders": "0.1, embeddings"}, "senders", "leave embeddings out"),
        ({"senders": "4.1", "receivers": "mlp 2"}, "senders", "there is no path from head 4.1"),
        ({"corrupted": "The capital of the Italy is"}, "corrupted", "must have equally many tokens"),
    ],
)
def test_what_does_not_fit_is_a_hint_at_its_box(pair: Any, patch: Any, options: Any, field: str, sentence: str) -> None:
    panel = patch(pair.tuned, **{"prompt": CLEAN, "corrupted": CORRUPTED, **options})
    assert list(panel.hints) == [field]
    assert sentence in complaint(panel)


def test_two_models(pair: Any, patch: Any) -> None:
    panel = patch(pair, view="difference")
    tab = panel["paths"]
    a, b = (result.effect for result in tab.results)
    assert matrix(tab)[0, 1] == pytest.approx(float(b[1] - a[1]), abs=1e-5)
    panel.view = "beside"
    assert [column["label"] for column in tab.table.columns] == ["sender", "A to logits", "B to logits"]
    assert [heat.vmax for heat in tab.maps.pairs["paths"].shown] == [tab.maps.maps["paths"].vmax] * 2


def test_a_model_with_shared_keys(patch: Any) -> None:
    model = tiny_model("llama", "bridge")
    panel = patch(model, prompt="ab", corrupted="ac", target=" the", foil=" a", receivers="head_k 1.1")
    assert (panel.hints, panel.status.state) == ({}, "done"), panel.status.error
    assert matrix(panel["paths"]).shape == (1, model.n_heads + 1)
    small = replace(panel.result, effect=panel.result.effect * 0 + 0.0004)
    assert "No path carries as much as 0.05 of the difference. Largest: <b>4×10⁻⁴</b>" in in_words(small, None)


def test_it_is_saved_and_its_code_gives_the_same(pair: Any, patch: Any, tmp_path: Path) -> None:
    panel = patch(pair.tuned, receivers="mlp 2")
    for suffix in ("csv", "svg", "html", "npz"):
        assert panel.save(tmp_path / f"paths.{suffix}").stat().st_size > 200, suffix
    assert PathPatchingResult.load(tmp_path / "paths.npz").equals(panel.result)
    names: dict[str, Any] = {}
    exec(panel.current.code(panel.current.request()), names)
    np.testing.assert_allclose(names["result"].effect, panel.result.effect, atol=1e-5)


def test_troubles(pair: Any, patch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tab = patch(pair.base, senders="mlp 0")["paths"]
    cancelled_and_closed(tab, monkeypatch, lambda: setattr(tab, "senders", "mlp 1"))
