"""What ships of the panels' answers is what the code computes now, and is found by what the panels ask."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from interp_widgets import (
    BiasWorkbench,
    circuit_scoreboard,
    demo_task_texts,
    load_demo_pair,
    mossa,
    tune_control_models,
)
from interp_widgets.analysis._core.result import Record
from interp_widgets.analysis.bias import BiasActivity, BiasProbes, DebiasComparison
from interp_widgets.analysis.bias.debiasing_comparison import DebiasScores
from interp_widgets.analysis.circuits import CircuitScoreboard
from interp_widgets.analysis.clusters import HiddenClusters
from interp_widgets.analysis.concepts import ConceptMap, ConceptSet
from interp_widgets.analysis.head_words import HeadWordChance
from interp_widgets.analysis.layer_similarity import MossaResult
from interp_widgets.compute.worker import _workers
from interp_widgets.demo.answers import COMMAND, OPENINGS, computed, main, recorded, run
from interp_widgets.widgets.base.request import Request
from interp_widgets.widgets.base.shipped import FOLDER, ShippedAnswer, find, shipped_names
from interp_widgets.widgets.bias.debias import Debiased
from interp_widgets.widgets.layer_similarity.options import (
    BATCH,
    STEPS,
    TUNED_ON,
    TUNED_SEED,
    TaskList,
    TunedControls,
)
from tests.maps_alike import unlike_maps
from tests.waiting import until

STALE = f"what ships is not what the panels compute: run {COMMAND}"
NEAR, OF_LARGEST = 2e-3, 1e-4
"""How far two right computations on two processors are apart, a test on few stimuli by one pair of them; and what small
numbers may differ by beside large ones of the same array."""
LARGEST = 2_000_000
UNLIKE = ("provenance", "fingerprint", "seconds")
"""What says when and where an answer was computed."""


@pytest.fixture(autouse=True)
def idle_workers() -> None:
    """Nothing of another file's tests is under way: beside a run, a panel opens in the background."""
    for worker in list(_workers.values()):
        until(lambda worker=worker: not worker.busy, f"the end of the run on {worker.device}")


def differences(first: Any, second: Any, path: str = "") -> list[str]:
    """Where two answers are not the same, but for rounding and for what says when and where they were computed."""
    if isinstance(first, ConceptMap) and first.method in ("umap", "tsne") and isinstance(second, ConceptMap):
        return unlike_maps(first, second, path)
    if isinstance(first, HeadWordChance) and isinstance(second, HeadWordChance):
        return unlike_counts(first, second, path)
    if isinstance(first, HiddenClusters) and isinstance(second, HiddenClusters):
        return unlike_clusters(first, second, path)
    if isinstance(first, CircuitScoreboard) and isinstance(second, CircuitScoreboard):
        return unlike_boards(first, second, path)
    if isinstance(first, BiasProbes) and isinstance(second, BiasProbes):
        return unlike_probes(first, second, path)
    if isinstance(first, BiasActivity) and isinstance(second, BiasActivity):
        swapped = int(np.abs(first.neurons - second.neurons).sum())
        return differences(first.mean, second.mean, f"{path}.mean") if not swapped else [path] * (swapped > 4)
    if isinstance(first, Debiased) and isinstance(second, Debiased):
        return unlike_edits(first, second, path)
    if isinstance(first, DebiasScores) and isinstance(second, DebiasScores):
        ends = [[(one.ss, one.lms) for one in own.stereoset] for own in (first, second)]
        same = first.name == second.name and np.allclose(ends[0], ends[1], atol=8) and first.perplexity is not None
        return [] if same and np.isclose(first.perplexity, second.perplexity, rtol=0.05) else [path]  # type: ignore[arg-type]
    if isinstance(first, Record):
        names = [item.name for item in dataclasses.fields(first) if item.name not in UNLIKE]  # type: ignore[arg-type]
        return [
            text
            for name in names
            for text in differences(getattr(first, name), getattr(second, name, None), f"{path}.{name}")
        ]
    if isinstance(first, tuple | list):
        if not isinstance(second, tuple | list) or len(first) != len(second):
            return [path]
        return [text for i, part in enumerate(first) for text in differences(part, second[i], f"{path}.{i}")]
    if isinstance(first, dict):
        if not isinstance(second, dict) or first.keys() != second.keys():
            return [path]
        return [text for key in first for text in differences(first[key], second[key], f"{path}.{key}")]
    if isinstance(first, np.ndarray | float):
        one, other = np.asarray(first), np.asarray(second if second is not None else np.nan)
        if one.shape != other.shape:
            return [path]
        finite = np.abs(one[np.isfinite(one)]).max(initial=0.0) if one.dtype.kind in "fiu" else 0.0
        near = max(NEAR, OF_LARGEST * finite)
        return [] if np.allclose(one, other, equal_nan=True, rtol=NEAR, atol=near) else [path]
    return [] if first == second else [path]


def unlike_boards(first: CircuitScoreboard, second: CircuitScoreboard, path: str) -> list[str]:
    """Rounding lets parts of nearly equal numbers change places, in a few of the rankings."""
    names = ("methods", "circuits", "kinds", "cases")
    faults = [f"{path}.{name}" for name in names if getattr(first, name) != getattr(second, name)]
    if faults or not np.allclose(first.chance, second.chance, equal_nan=True):
        return faults or [f"{path}.chance"]
    one, other = first.average_precision, second.average_precision
    moved = int((np.abs(one - other) > 0.02).sum())
    return [f"{path}.average_precision"] * (moved > 8 or not np.array_equal(np.isnan(one), np.isnan(other)))


def unlike_counts(first: HeadWordChance, second: HeadWordChance, path: str) -> list[str]:
    """Rounding lets a few of a dimension's top words change places, which adds and takes some of its pairs."""
    parts = ("n_pairs", "cosine", "dimension_counts", "chance_pairs", "chance_cosine", "chance_dimension_counts")
    return [
        f"{path}.{name}"
        for name in parts
        if not np.allclose(getattr(first, name), getattr(second, name), rtol=0.02, atol=0.02 if "cosine" in name else 5)
    ]


def unlike_clusters(first: HiddenClusters, second: HiddenClusters, path: str) -> list[str]:
    """Rounding may put an instance between two clusters into the other one; the numbers of clusters mean nothing."""
    exact, near = ("labels", "layers", "n_clusters"), ("f1_matched", "f1_pair", "ari", "ami")
    faults = [name for name in exact if np.any(np.asarray(getattr(first, name)) != np.asarray(getattr(second, name)))]
    faults += [name for name in near if not np.allclose(getattr(first, name), getattr(second, name), atol=0.05)]
    return [f"{path}.{name}" for name in faults]


def unlike_probes(first: BiasProbes, second: BiasProbes, path: str) -> list[str]:
    """A fit stops near its optimum; a held-out text on the boundary may fall on its other side."""
    measures = ("accuracy", "auc", "second_accuracy", "second_auc", "bag_of_words", "embedding", "generalization")
    faults = [name for name in measures if not np.allclose(getattr(first, name), getattr(second, name), atol=0.05)]
    for name in ("direction", "second"):
        if np.einsum("ld,ld->l", getattr(first, name), getattr(second, name)).min() < 0.99:
            faults.append(name)
    faults += [] if (first.texts, first.groups) == (second.texts, second.groups) else ["texts"]
    return [f"{path}.{name}" for name in faults]


def unlike_edits(first: Debiased, second: Debiased, path: str) -> list[str]:
    """Rounding may let few neurons change places; the scores then hardly move."""
    faults = [] if (first.name, first.settings) == (second.name, second.settings) else [f"{path}.settings"]
    numbers = [{layer: set(one.neurons.tolist()) for layer, one in own.edit.layers.items()} for own in (first, second)]
    swapped = sum(len(numbers[0].get(layer, set()) ^ numbers[1].get(layer, set())) for layer in range(99))
    faults += [f"{path}.edit"] * (swapped > 8)
    for name in ("before", "after"):
        ends = [(scored.overall.ss, scored.overall.lms) for own in (first, second) if (scored := getattr(own, name))]
        faults += [] if len(ends) == 2 and np.allclose(*ends, atol=8) else [f"{path}.{name}"]
    return faults


def shipped(name: str) -> Any:
    return ShippedAnswer.load(FOLDER / f"{name}.npz")


@pytest.mark.seconds
@pytest.mark.parametrize("widget", sorted({opening.widget for opening in OPENINGS}))
def test_widgets_find_what_ships_and_compute_nothing_of_it(widget: str) -> None:
    taken: set[str] = set()
    for recorder in recorded([widget], takes=True):
        assert not recorder.computed, f"{STALE} {widget}"
        assert recorder.taken, f"{STALE} {widget}"
        taken |= recorder.taken
    panels = {name.partition("-")[0] for name in taken}
    assert {name for name in shipped_names() if name.partition("-")[0] in panels} == taken, f"{STALE} {widget}"


@pytest.mark.slow
@pytest.mark.parametrize("widget", sorted({opening.widget for opening in OPENINGS if not opening.long}))
def test_what_ships_is_what_the_code_computes(widget: str) -> None:
    for name, answer in computed([widget], long=False).items():
        assert not differences(shipped(name), answer), f"{STALE} {widget}"


@pytest.mark.slow
def test_what_ships_is_what_the_other_backend_computes() -> None:
    answers = computed(["SaliencyExplorer"], long=False, backend="bridge")
    assert answers
    for name, answer in answers.items():
        assert not differences(shipped(name), answer), name


@pytest.mark.slow
def test_mossa_that_ships_is_what_the_code_computes(tmp_path: Path) -> None:
    """For one task of all: its control model is tuned anew, as the panel would."""
    pair, names = load_demo_pair(), ["plural"]
    tuned_on = demo_task_texts(TUNED_ON, names=names, seed=TUNED_SEED)
    controls = tune_control_models(pair.base, tuned_on, steps=STEPS, batch_size=BATCH, folder=tmp_path)
    for model in pair:
        found = mossa(model, controls, demo_task_texts(100, names=names))
        request = Request.of(mossa, {}, TunedControls(), TaskList())
        kept: MossaResult = find("mossa", request, [model, pair.base])
        row = kept.tasks.index("plural")
        for part in ("biased", "unbiased", "chance"):
            np.testing.assert_allclose(getattr(kept, part)[row], getattr(found, part)[0], atol=0.01)
        assert np.abs(kept.dimensions[row] - found.dimensions[0]).max() <= 1


@pytest.mark.slow
def test_the_board_of_circuits_that_ships_is_what_the_code_computes() -> None:
    """For every sixth method of all: each ranks by itself."""
    kept = next(board for name in shipped_names() if isinstance(board := shipped(name).answer, CircuitScoreboard))
    found = circuit_scoreboard(kept.methods[::6])
    cut = {name: getattr(kept, name)[::6] for name in ("methods", "average_precision", "p")}
    assert not differences(dataclasses.replace(kept, **cut), found)
    others = np.roll(kept.average_precision, 1, axis=0)[::6]
    assert differences(dataclasses.replace(kept, **cut | {"average_precision": others}), found)


@pytest.mark.slow
def test_the_edits_that_ship_compared_are_what_the_code_computes() -> None:
    """For one edit and its control of all: each is applied by itself."""
    with contextlib.closing(BiasWorkbench(load_demo_pair().tuned, tab="judge", methods=("leace",))) as widget:
        run(widget)
        [found] = widget.current.results
    whole = [one for name in shipped_names() if isinstance(one := shipped(name).answer, DebiasComparison)]
    [rows] = ([row for row in one.rows if row.name in {own.name for own in found.rows}] for one in whole
              if not differences(one.rows[0], found.rows[0]))  # fmt: skip
    assert len(rows) == 3
    assert not differences(rows, list(found.rows))
    assert differences(rows, list(found.rows[::-1]))


def test_two_answers_are_told_apart() -> None:
    concepts = (shipped(name) for name in sorted(shipped_names()) if name.startswith("concepts-"))
    answer = next(answer for answer in concepts if isinstance(answer.answer, ConceptSet))
    assert not differences(answer, answer)
    changed = dataclasses.replace(answer, answer=dataclasses.replace(answer.answer, layer=answer.answer.layer + 1))
    assert differences(answer, changed) == [".answer.layer"]
    first = answer.answer.directions + 0.01
    moved = dataclasses.replace(answer, answer=dataclasses.replace(answer.answer, directions=first))
    assert differences(answer, moved) == [".answer.directions"]


def test_what_ships_is_small() -> None:
    assert 0 < sum(path.stat().st_size for path in FOLDER.iterdir()) < LARGEST


def test_the_command_refuses_widgets_of_which_nothing_ships(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["NoSuchWidget"])
    assert "no results of NoSuchWidget ship: choose from BiasWorkbench, CircuitBoard" in capsys.readouterr().err
