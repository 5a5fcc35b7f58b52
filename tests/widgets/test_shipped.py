"""An answer that ships is taken for the demo models as they ship and for the same request only."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from interp_widgets import load_model
from interp_widgets.analysis._core.result import Result
from interp_widgets.analysis.ablation import Ablation, ablation
from interp_widgets.analysis.concepts import ConceptMap
from interp_widgets.compute.cache import results
from interp_widgets.data.concepts import Concept
from interp_widgets.models.build import BackendChoice
from interp_widgets.widgets.base import shipped
from interp_widgets.widgets.base.shipped import ShippedAnswer, file_name, find, note, recording
from tests.models.tiny import tiny_model
from tests.shipped import demo_pair


@dataclass(frozen=True)
class Asked:
    """A request."""

    concepts: tuple[Concept, ...]
    method: Any = "pca"
    layer: int | None = 3
    aside: Any = field(default=None, compare=False)


ASKED = Asked((Concept("a", ("x", "y"), ("z",), "group"),))


@pytest.fixture
def ships(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A folder of answers with the one to `ASKED` of the demo's base model."""
    caches: tuple[Any, ...] = shipped.shipped_names, shipped._panels, shipped._opened
    monkeypatch.setattr(shipped, "FOLDER", tmp_path)
    name = file_name("toys", ASKED, [demo_pair().base])
    ShippedAnswer("toys", (1.5, "text")).save(tmp_path / f"{name}.npz")
    for one in caches:
        one.cache_clear()
    yield tmp_path
    for one in caches:
        one.cache_clear()


def test_the_same_request_and_model(ships: Path) -> None:
    base = demo_pair().base
    assert find("toys", ASKED, [base]) == (1.5, "text")
    assert find("toys", Asked(ASKED.concepts, aside=object()), [base]) == (1.5, "text"), "no part of the request"


@pytest.mark.parametrize("backend", [pytest.param("hooked", marks=pytest.mark.hooked), "bridge"])
def test_either_backend(backend: BackendChoice, ships: Path) -> None:
    assert find("toys", ASKED, [load_model("demo-base", backend=backend)]) == (1.5, "text")


@pytest.mark.parametrize(
    "asked",
    [
        Asked(()),
        Asked((Concept("a", ("x", "y"), ("z",), "other"),)),
        Asked((Concept("a", ("x",), ("y", "z"), "group"),)),
        Asked(ASKED.concepts, "umap"),
        Asked(ASKED.concepts, ("pca",)),
        Asked(ASKED.concepts, layer=None),
        Asked(ASKED.concepts, load_model),
    ],
)
def test_no_other_request(asked: Any, ships: Path) -> None:
    base = demo_pair().base
    assert file_name("toys", asked, [base]) not in (None, file_name("toys", ASKED, [base]))
    assert find("toys", asked, [base]) is None


@pytest.mark.seconds
def test_no_other_panel_and_no_other_model(ships: Path) -> None:
    pair = demo_pair()
    assert find("other", ASKED, [pair.base]) is None
    assert find("toys", ASKED, [pair.tuned]) is None
    assert find("toys", ASKED, [pair.base, pair.tuned]) is None
    for model in (tiny_model("gpt2", "bridge"), load_model("demo-base", dtype=torch.float64)):
        assert find("toys", ASKED, [model]) is None
    assert find("toys", ASKED, [load_model("demo-base", processed=True)]) is None


def test_no_edited_model(ships: Path) -> None:
    model = load_model("demo-base")
    weight = model.tl_model.blocks[2].mlp.W_out
    before = float(weight.detach()[0, 0])
    with torch.no_grad():
        weight[0, 0] += 1
    assert find("toys", ASKED, [model]) is None
    weight.data[0, 0] = before
    assert find("toys", ASKED, [model]) == (1.5, "text")
    with ablation(model, [Ablation("mlp", 1)]):
        assert find("toys", ASKED, [model]) is None
    hook = model.tl_model.blocks[0].register_forward_hook(lambda *_: None)
    assert find("toys", ASKED, [model]) is None
    hook.remove()
    assert find("toys", ASKED, [model]) == (1.5, "text")


def test_the_interface_does_not_wait_for_a_model_that_computes(ships: Path) -> None:
    from tests.widgets.test_identity import in_thread

    base = demo_pair().base
    with base.lock:
        assert in_thread(partial(find, "toys", ASKED, [base], wait=0.01)) is None


def test_what_another_process_cannot_know_never_ships() -> None:
    base = demo_pair().base
    for value in (object(), lambda: 0, np.float32, frozenset({1}), Asked):
        assert file_name("toys", Asked((), value), [base]) is None
    long = Asked(tuple(Concept(str(i), ("x" * 1000,), (), "") for i in range(2 + shipped.LONGEST // 1000)))
    assert file_name("toys", long, [base]) is None
    with recording(Result), pytest.raises(ValueError, match="no name that is the same in every process"):
        note("toys", Asked((), object()), [base], ShippedAnswer("toys", 1))


@pytest.mark.seconds
def test_the_concept_browser_says_where_its_answer_is_from() -> None:
    from interp_widgets import ConceptBrowser

    results.clear()
    panel = ConceptBrowser(demo_pair())
    assert panel.result is not None, "the answer is there when the panel is"
    assert panel.status.text.endswith("(partly shipped with the demo)")
    assert len(panel.sets[0].names) == 222
    assert isinstance(panel.results[-1].map, ConceptMap)
    panel.close()


@pytest.mark.seconds
def test_no_draft_of_a_map_that_ships(monkeypatch: pytest.MonkeyPatch) -> None:
    from interp_widgets import ConceptBrowser
    from interp_widgets.widgets.concepts.direction_map import MapRequest

    drafted: list[str] = []
    draft = MapRequest.draft
    monkeypatch.setattr(MapRequest, "draft", lambda self, *rest: drafted.append(self.map_method) or draft(self, *rest))
    results.clear()
    with closing(ConceptBrowser(demo_pair())) as panel:
        panel.wait(60)
        assert not drafted
        for result in panel.results:
            assert result.map.method == "tsne"
            assert result.map.other_xy is not None
        panel.concepts = panel.concepts[:12]  # which do not ship: their directions and their map are made
        panel.go()
        assert panel.wait(120)
        assert [one.map.method for one in panel.results] == ["tsne", "tsne"], "a draft is no result's map"
        assert panel.results[0].map.equals(panel.results[1].map)
