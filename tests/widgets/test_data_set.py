"""The data set explorer without a browser: every question, own data, two models, groups, and what goes wrong."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import traitlets as T

from interp_widgets import (
    DataSetExplorer,
    LogitLensExplorer,
    SweepResult,
    Workbench,
    compare_sweeps,
    demo_prompts,
    logit_lens,
    sweep,
)
from interp_widgets.figures.strips import Strips
from interp_widgets.figures.theme import PALETTE8
from interp_widgets.widgets.data_set.analyses import ANALYSES, ChosenAnalysis
from interp_widgets.widgets.data_set.tables import same_rows, statistics_of
from tests.shipped import demo_pair
from tests.widgets.opening import opening, settle
from tests.widgets.trouble import told_of_broken_weights

pytestmark = pytest.mark.slow

SIZED = ("rows", "labels", "values", "errors", "seconds")
LENS_OF_ROWS = ChosenAnalysis("lens", "prompt", "target")

ROWS = [
    {"prompt": "The Eiffel Tower is in the city of", "target": " Paris", "subject": "Eiffel Tower", "where": "France"},
    {"prompt": "The Louvre is in the city of", "target": " Paris", "subject": "Louvre", "where": "France"},
    {"prompt": "The Colosseum is in the city of", "target": " Rome", "subject": "Colosseum", "where": "Italy"},
    {"prompt": "The capital of Italy is", "target": " Rome", "subject": "Italy", "where": "Italy"},
]


@pytest.fixture(scope="module")
def pair() -> Any:
    return demo_pair()


@pytest.fixture
def view(wire: Any) -> Iterator[Callable[..., DataSetExplorer]]:
    with opening(DataSetExplorer) as build:
        yield build


def labels(table: Any) -> list[str]:
    return [column["label"] for column in table.columns]


def column(table: Any, name: str) -> list[Any]:
    at = labels(table).index(name)
    return [row[at] for row in table.rows]


def test_it_opens_on_the_demos_facts(view: Any, pair: Any) -> None:
    panel = view(pair.base)
    assert "40 rows of the demo world" in panel.read.value
    assert panel.measure == "target_probability"
    assert len(panel.table.rows) == 40
    assert [row[0] for row in panel.summary.rows][:2] == ["target probability", "target rank"]
    assert labels(panel.summary)[1:3] == ["held out", "trained"]
    assert "p " in panel.strips.described["subtitle"]
    assert len(panel.strips.source.data["row"]) == 40


def test_rows_are_what_the_analysis_says(view: Any, pair: Any) -> None:
    panel = view(pair.base, rows=ROWS)
    alone = [logit_lens(pair.base, row["prompt"], target=row["target"]).measures() for row in ROWS]
    assert column(panel.table, "target probability") == pytest.approx([one["target_probability"] for one in alone])
    assert column(panel.table, "top token") == [one["top_token"] for one in alone]


@pytest.mark.parametrize("study", ANALYSES)
def test_every_question(view: Any, pair: Any, study: str) -> None:
    """Each has numbers, a picture, and code that gives the same result."""
    panel = view(pair.base, rows=ROWS[:2], study=study)
    assert panel.results[0].n_failed == 0, panel.results[0].errors
    assert panel.measure in panel.results[0].number_measures
    assert panel.strips.message == ""
    scope = {"rows": ROWS[:2]}
    exec(panel.code(panel.shown_request), scope)
    result: Any = scope["result"]
    assert result.values == pytest.approx(panel.results[0].values, nan_ok=True)


def test_two_models_are_compared_row_by_row(view: Any, pair: Any) -> None:
    panel = view(pair.base, pair.tuned, rows=ROWS, view="difference")
    a, b = panel.results
    expected = compare_sweeps(b, a, names=["B", "A"], resamples=1999)
    assert column(panel.summary, "difference") == pytest.approx(expected.difference.tolist())
    assert column(panel.table, "entropy") == pytest.approx((b.numbers("entropy") - a.numbers("entropy")).tolist())
    assert labels(panel.summary)[1:3] == ["B", "A"]
    assert {group for _, group, _ in panel.strips.source.data["x"]} == {"A: demo-base (n 4)", "B: demo-tuned (n 4)"}
    assert list(panel.frame()["model"].unique()) == ["A", "B"]
    scope = {"rows": ROWS}
    exec(panel.code(panel.shown_request).replace("\ncompare_sweeps(", "\nfound = compare_sweeps("), scope)
    found: Any = scope["found"]
    assert found["difference"].tolist() == pytest.approx(expected.difference.tolist())


def test_groups_of_rows_are_compared(view: Any, pair: Any) -> None:
    panel = view(pair.base, rows=ROWS, group="where")
    assert labels(panel.summary)[1:3] == ["France", "Italy"]
    assert "over 2 + 2 rows" in panel.summary.caption
    assert set(column(panel.summary, "p")) == {None}  # of two rows each nothing can be said
    assert "too few rows" in panel.strips.described["subtitle"]
    assert set(panel.strips.source.data["color"]) == {PALETTE8[0]}, "the model's, not the group's"
    panel.group = ""
    settle(panel)
    assert labels(panel.summary) == ["number", "mean", "95% interval"]
    ends = [end for interval in column(panel.summary, "95% interval") for end in interval.split(" to ")]
    assert len({len(end.partition(".")[2]) for end in ends}) == 1, ends


@pytest.mark.parametrize("kind", ["list", "frame", "csv", "upload", "texts"])
def test_ones_own_data(view: Any, pair: Any, tmp_path: Path, kind: str) -> None:
    frame = pd.DataFrame(ROWS)
    frame.to_csv(tmp_path / "rows.csv", index=False)
    if kind == "upload":
        panel = view(pair.base, rows=ROWS[:2])
        content = json.dumps(ROWS).encode()
        file = {"name": "rows.json", "content": content, "type": "", "size": len(content)}
        panel.controls["rows"].value = ({**file, "last_modified": datetime.now(tz=UTC)},)
        settle(panel)
    else:
        texts = [row["prompt"] for row in ROWS]
        panel = view(pair.base, rows={"list": ROWS, "frame": frame, "csv": tmp_path / "rows.csv", "texts": texts}[kind])
    assert len(panel.table.rows) == 4
    assert panel.target_column == ("" if kind == "texts" else "target")
    assert panel.group == ""


def test_a_row_that_fails_says_why(view: Any, pair: Any) -> None:
    panel = view(pair.base, rows=[*ROWS, {"prompt": "", "target": " x"}, {"target": " y"}])
    wrong = column(panel.table, "error")
    assert wrong[:4] == [""] * 4
    assert "special tokens" in wrong[4] or "empty" in wrong[4] or "token" in wrong[4]
    assert "'prompt' is not a text in this row" in wrong[5]
    assert "2 without a result" in panel.table.caption
    assert panel.status.state == "done"


def test_trouble_is_a_sentence(view: Any, pair: Any) -> None:
    panel = view(pair.base, rows=ROWS)
    good = panel.result

    def broken(activation: Any, hook: Any) -> Any:
        raise RuntimeError("the user's hook failed")

    with (
        pair.base.tl_model.hooks(fwd_hooks=[("blocks.1.hook_resid_pre", broken)]),
        pytest.raises(ValueError, match="no row has a result; row 0: RuntimeError: the user's hook failed"),
    ):
        panel.run(fresh=True)
    assert panel.result is good
    panel.run(fresh=True)
    assert panel.status.state == "done"


def test_broken_weights(view: Any) -> None:
    from interp_widgets import load_model

    model = load_model("demo-base")
    told_of_broken_weights(view(model, rows=ROWS), model, "no row has a result; row 0: ")


def test_bad_options_are_refused_or_hinted_at(view: Any, pair: Any) -> None:
    with pytest.raises(T.TraitError, match="rows: there is no file of rows at"):
        DataSetExplorer(pair.base, rows="nowhere.csv")
    with pytest.raises(T.TraitError, match="rows must be texts or mappings"):
        DataSetExplorer(pair.base, rows=[1, 2])
    panel = view(pair.base, rows=[{"n": "1"}, {"n": "2"}])
    assert panel.prompt_column == "n"
    panel = view(pair.base, rows=[{"prompt": row["prompt"]} for row in ROWS])
    panel.study = "tracing"
    assert panel.wait(60)
    assert "needs a column with the words of the prompt" in " ".join(panel.hints.values())


def test_a_click_opens_the_case_in_the_other_panels(wire: Any, pair: Any) -> None:
    bench = Workbench(pair.base)
    with opening(lambda kind, **options: kind(bench, **options)) as build:
        explorer, panel = build(LogitLensExplorer), build(DataSetExplorer, rows=ROWS)
        panel.table.selected = 2
        settle(explorer)
        assert explorer.prompt == ROWS[2]["prompt"]
        assert explorer.results[0].target_token == " Rome"
        panel.strips.source.selected.indices = [1]
        settle(explorer)
        assert explorer.prompt == ROWS[1]["prompt"]


def test_it_is_a_tab_of_the_screen(wire: Any, pair: Any) -> None:
    bench = Workbench(pair.base, prompt=ROWS[0]["prompt"], response=" Paris")
    try:
        screen = bench.screen
        screen.show("logit_lens", "data_set")
        assert screen.wait(120)
        assert len(screen["data_set"].table.rows) == 40
    finally:
        bench.close()


def test_what_is_shown_can_be_saved(view: Any, pair: Any, tmp_path: Path) -> None:
    panel = view(pair.base, rows=ROWS)
    for suffix in ("html", "svg", "png", "csv", "npz"):
        assert panel.save(tmp_path / f"data.{suffix}").stat().st_size > 500
    assert SweepResult.load(tmp_path / "data.npz").equals(panel.result)
    assert len(pd.read_csv(tmp_path / "data.csv")) == 4
    page = (tmp_path / "data.html").read_text()
    assert "The Louvre is in the city of" in page


def test_rows_are_drawn_as_they_come(view: Any, pair: Any) -> None:
    """Also those of the second model while it has not got to all of them."""
    panel = view(pair.base, pair.tuned, rows=ROWS)
    a, b = panel.results
    part = next(iter(same_rows([b, replace(a, **{name: getattr(a, name)[:2] for name in SIZED})])))
    panel.view = "difference"
    panel.draw((a, part), panel.shown_request)
    assert len(panel.table.rows) == 2
    seen: list[int] = []
    sweep(LENS_OF_ROWS.on(pair.base), ROWS, on_partial=lambda result: seen.append(len(result.rows)))
    assert seen == [1, 2, 3]


def test_the_demos_rows_are_facts() -> None:
    rows = demo_prompts(20)
    assert rows[:4] == demo_prompts(4)
    assert {row["wording"] for row in rows} == {"trained", "held out"}
    assert all(row["subject"] in row["prompt"] and row["target"].startswith(" ") for row in rows)
    with pytest.raises(ValueError, match=r"n must be in 1\.\.\d+, got 0"):
        demo_prompts(0)


def test_strips_without_groups_say_so() -> None:
    strips = Strips("s", "title", "number")
    strips.clear("nothing yet")
    assert strips.message == "nothing yet"
    with pytest.raises(ValueError, match="nothing yet"):
        strips.scene()
    assert not np.any(strips.source.data["score"])


def test_without_a_number_there_is_nothing_to_compare() -> None:
    def fails(row: str) -> dict[str, float]:
        raise ValueError(row)

    failed = [sweep(fails, ["a", "b"]) for _ in range(2)]
    for view, group in (("A", ""), ("difference", ""), ("A", "kind")):
        assert (statistics_of(failed, view, group).rows, statistics_of(failed, view, group).comparison) == ([], None)
