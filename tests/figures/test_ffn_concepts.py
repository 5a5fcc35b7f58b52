"""Charts of MLP concepts: made once, then only their data changes; every number drawn is the result's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from bokeh.embed import json_item
from bokeh.models import GlyphRenderer

from interp_widgets.analysis.ffn_concepts import (
    AnnotationComparison,
    ConceptComparison,
    FFNConceptResult,
    NeuronEffectResult,
    annotate_concepts,
    compare_annotations,
    compare_concepts,
)
from interp_widgets.data.annotators import Annotation
from interp_widgets.figures.chart import Chart
from interp_widgets.figures.ffn_concepts import (
    ComponentWords,
    CumulativeVariance,
    LayerOverlap,
    NeuronScatter,
    NoteShares,
    PrincipalAngles,
)
from interp_widgets.figures.static import curves_scene, render_svg, table_scene

WORDS = ("dog", "cat", "<b>bold</b>", "$$x$$", "a very long word that goes on and on", "car")
LAYERS, RANK, WIDTH, TOP = 3, 4, 6, 3


def made_concepts(seed: int = 0, layers: int = LAYERS) -> FFNConceptResult:
    rng = np.random.default_rng(seed)
    shares = np.sort(rng.dirichlet(np.ones(WIDTH), layers), axis=1)[:, ::-1][:, :RANK]
    directions = np.stack([np.linalg.qr(rng.normal(size=(WIDTH, WIDTH)))[0][:RANK] for _ in range(layers)])
    places = np.stack([[rng.permutation(6) for _ in range(RANK)] for _ in range(layers)])
    scores = np.sort(rng.uniform(0.1, 0.9, (layers, RANK, TOP)), axis=2)[..., ::-1]
    return FFNConceptResult(
        vocabulary=WORDS, layers=range(layers), explained_variance=shares, plus=places[..., :TOP], plus_scores=scores,
        minus=places[..., TOP:], minus_scores=-scores / 2, directions=directions, provenance={"model": f"model-{seed}"},
    )  # fmt: skip


def made_comparison() -> ConceptComparison:
    return compare_concepts(made_concepts(0), made_concepts(1), rank=3)


def made_notes() -> AnnotationComparison:
    return compare_annotations(*(annotate_concepts(made_concepts(seed), Namer()) for seed in range(2)), resamples=19)


class Namer:
    """Says something of every list that begins with a short word."""

    name = "namer"

    def annotate(self, words: Sequence[str], *, check: Any = None) -> Annotation:
        if len(words[0]) > 3:
            return Annotation(source=self.name)
        return Annotation(words[0], ("math",), "semantics" if words[0] == "dog" else "syntax", self.name)


def made_effects(seed: int = 0, neurons: int = 5) -> NeuronEffectResult:
    rng = np.random.default_rng(seed)
    return NeuronEffectResult(
        layer=1, neurons=range(neurons), tokens=["The", " $$cat$$"], ids=[1, 2],
        activation=rng.normal(size=(2, neurons)), position=1, target=3, target_token=" sat",
        effect=rng.normal(size=neurons), size=rng.uniform(size=neurons), bias_effect=0.0, mlp_effect=1.0, logit=2.0,
    )  # fmt: skip


def missing_columns(chart: Chart) -> list[str]:
    """Columns that glyphs of the figure read but their sources do not have."""
    missing = []
    for renderer in chart.figure.select({"type": GlyphRenderer}):
        for name, spec in renderer.glyph.properties_with_values().items():
            field = getattr(spec, "field", None) or (spec.get("field") if isinstance(spec, dict) else None)
            if field is not None and field not in renderer.data_source.data:
                missing.append(f"{renderer.name}.{name}={field}")
    return missing


CHARTS: list[tuple[Callable[[], Any], Callable[[Any], object], Callable[[Any], object]]] = [
    (CumulativeVariance, lambda c: c.update([made_concepts()], 1, listed=2), lambda c: c.update([])),
    (
        CumulativeVariance,
        lambda c: c.update([made_concepts(), made_concepts(1)], 1, difference=True),
        lambda c: c.update([]),
    ),
    (ComponentWords, lambda c: c.update(made_concepts(), 1, 2), lambda c: c.update(None)),
    (PrincipalAngles, lambda c: c.update(made_comparison(), 1), lambda c: c.update(None)),
    (LayerOverlap, lambda c: c.update(made_comparison(), 1), lambda c: c.update(None)),
    (NoteShares, lambda c: c.update(made_notes()), lambda c: c.update(None)),
    (NoteShares, lambda c: c.update(made_notes(), trait="scenario"), lambda c: c.update(None)),
    (NeuronScatter, lambda c: c.update([made_effects()], neuron=2), lambda c: c.update([])),
    (NeuronScatter, lambda c: c.update([made_effects(), made_effects(1)], neuron=2), lambda c: c.update([])),
]


@pytest.mark.parametrize(("make", "fill", "empty"), CHARTS)
def test_updates_change_data_not_figures(make: Any, fill: Any, empty: Any) -> None:
    chart = make()
    assert chart.message
    figure, parts, source = chart.figure, list(chart.figure.renderers), chart.source
    fill(chart)
    assert chart.message == ""
    assert (chart.figure, chart.source, list(chart.figure.renderers)) == (figure, source, parts)
    assert len({len(column) for column in source.data.values()}) == 1
    assert len(next(iter(source.data.values()))) > 0
    assert missing_columns(chart) == []
    assert chart.figure.name
    assert getattr(chart.figure.title.text, "text", chart.figure.title.text)
    assert all(axis.axis_label for axis in chart.figure.axis)
    assert json_item(figure)["doc"]
    empty(chart)
    assert chart.message
    assert all(len(column) == 0 for column in source.data.values())


def test_the_variance_is_the_results_and_the_chosen_layer_is_marked() -> None:
    result = made_concepts()
    chart = CumulativeVariance([result], layer=2, listed=3)
    assert chart.chosen.data["layer"] == [2]
    np.testing.assert_allclose(chart.chosen.data["ys"][0], result.cumulative[2])
    assert chart.lines.data["layer"] == [0, 1]
    np.testing.assert_allclose(chart.lines.data["ys"][1], result.cumulative[1])
    assert (chart.mark.location, chart.mark.visible) == (3, True)
    assert f"{100 * result.cumulative[2, 2]:.0f}%" in chart._subtitle.text
    chart.update([result], layer=0)
    assert (chart.chosen.data["layer"], chart.mark.visible) == ([0], False)


def test_the_difference_is_b_minus_a() -> None:
    a, b = made_concepts(0), made_concepts(1)
    chart = CumulativeVariance([a, b], layer=1, difference=True)
    np.testing.assert_allclose(chart.chosen.data["ys"][0], 100 * (b.cumulative[1] - a.cumulative[1]))
    assert chart.figure.yaxis[0].axis_label.startswith("difference B − A")
    chart.update([a, b], layer=1)
    assert list(chart.chosen.data["dash"]) == ["solid", "dashed"]
    assert "difference" not in chart.figure.yaxis[0].axis_label
    chart.update([a, made_concepts(1, layers=2)], layer=1, difference=True)
    assert "different layers" in chart.message


@pytest.mark.parametrize("results", [[made_concepts()] * 3, [made_concepts()]])
def test_a_difference_is_of_two(results: Any) -> None:
    with pytest.raises(ValueError, match=r"two|one of"):
        CumulativeVariance(results, difference=True)


def test_words_stand_on_their_side() -> None:
    result = made_concepts()
    chart = ComponentWords(result, layer=1, component=2)
    right = [value for value in chart.source.data["right"] if value > 0]
    np.testing.assert_allclose(right, [value for _, value in result.scores(1, 2, sign="+")])
    left = [value for value in chart.source.data["right"] if value < 0]
    np.testing.assert_allclose(left, [value for _, value in result.scores(1, 2, sign="-")])
    assert len(chart.source.data["word"]) == 2 * TOP
    assert max(map(len, chart.source.data["word"])) <= 20
    chart.update(result, 7, 0)
    assert chart.message, "a layer that is not there is a sentence"


def test_angles_and_overlap_are_the_comparisons() -> None:
    found = made_comparison()
    angles = PrincipalAngles(found, layer=1)
    np.testing.assert_allclose(angles.chosen.data["ys"][0], np.degrees(found.angles[1]))
    overlap = LayerOverlap(found)
    at = overlap.lines.data["what"].index("subspaces' overlap")
    np.testing.assert_allclose(overlap.lines.data["ys"][at], found.overlap)
    assert overlap.chance.data_source.data["y"] == [0.5, 0.5]


def test_shares_by_layer_are_the_comparisons() -> None:
    found = made_notes()
    chart = NoteShares(found)
    table = found.by_layer("level").set_index(["category", "layer"])
    drawn = zip(*(chart.source.data[name] for name in ("category", "layer", "model", "value")), strict=True)
    for category, layer, model, value in drawn:
        np.testing.assert_allclose(value, table.loc[(category, layer), "base" if model == "A" else "tuned"])
    assert set(chart.lines.data["dash"]) == {"solid", "dashed"}
    assert 0 < table.loc[("syntax", 0), "base"] <= 100
    chart.update(found, trait="scenario")
    assert "math" in chart.source.data["category"]


def test_neurons_of_one_model_and_of_two() -> None:
    a, b = made_effects(0), made_effects(1)
    chart = NeuronScatter([a], neuron=3)
    np.testing.assert_allclose(chart.source.data["x"], a.activation[1])
    np.testing.assert_allclose(chart.source.data["y"], a.effect)
    assert chart.picked.data["y"] == [a.effect[3]]
    chart.update([a, b])
    np.testing.assert_allclose(chart.source.data["x"], a.effect)
    np.testing.assert_allclose(chart.source.data["y"], b.effect)
    assert chart.picked.data["x"] == []
    with pytest.raises(ValueError, match="same neurons"):
        chart.update([a, made_effects(1, neurons=4)])


def test_pictures_of_lines_and_tables() -> None:
    scene = curves_scene([("a & b", [0.0, 0.5], True), ("c", [0.1], False)], title="T <1>", x_label="x", y_label="y")
    svg = render_svg(scene)
    assert "a &amp; b" in svg
    assert "T &lt;1&gt;" in svg
    with pytest.raises(ValueError, match="no number"):
        curves_scene([("a", [np.nan], True)], title="t", x_label="x", y_label="y")
    svg = render_svg(table_scene([("word", 90), ("n", 60)], [["<b>dog</b> " * 9, None], ["x", 0.12345]], right=(1,)))
    assert "&lt;b&gt;dog" in svg
    assert "0.123" in svg
    assert "–" in svg
