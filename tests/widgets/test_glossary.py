"""The glossary: short definitions, found in titles, labels and menus."""

from __future__ import annotations

from typing import Any

import pytest

from interp_widgets import LogitLensExplorer
from interp_widgets.glossary import TERMS, explain, terms_in
from interp_widgets.widgets.views import Heatmap, Table, TokenStrip
from tests.models.tiny import tiny_model

UNEXPLAINED = (
    "self-check", "density", "level", "floor", "context score", "commit layer", "interference", "gap", "matched F1",
    "MOSSA", "logit lens", "foil", "residual stream", "CKA", "LEACE", "steering", "sink",
)  # fmt: skip
"""Words that a reader of the screens asked about."""


def test_definitions_are_one_short_sentence() -> None:
    assert set(UNEXPLAINED) <= set(TERMS)
    for term, definition in TERMS.items():
        assert definition[0].isupper(), term
        assert definition.endswith("."), term
        assert len(definition) <= 110, (term, len(definition))


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("change of logit difference", ("logit difference",)),
        ("All foils and sinks", ("foil", "sink")),
        ("induction heads of the MLP", ("induction head", "MLP")),
        ("less, pass: kiss", ()),
        ("SS and ss", ("SS",)),
        ("logit, then the logit", ("logit",)),
        ("", ()),
    ],
)
def test_terms_are_found_as_words(text: str, terms: tuple[str, ...]) -> None:
    assert terms_in(text) == terms
    assert [line.split(":")[0] for line in explain(text).splitlines()] == list(terms)


def test_titles_headers_and_the_menu_explain_their_terms(wire: Any) -> None:
    heat = Heatmap(title="Effect on the logit")
    assert heat.terms == f"logit: {TERMS['logit']}"
    heat.title = "Patched"
    assert heat.terms == ""
    strip, table = TokenStrip(label="rank"), Table(columns=[{"label": "entropy"}, {"label": "n"}])
    assert (strip.terms, table.terms) == (f"rank: {TERMS['rank']}", f"entropy: {TERMS['entropy']}")
    panel = LogitLensExplorer(tiny_model("gpt2", "bridge"), prompt="ab")
    try:
        assert "iw-hidden" in panel.terms_box._dom_classes
        wire.event(panel.menu, event="choose", label="Terms")
        assert f"<dt>logit lens</dt><dd>{TERMS['logit lens']}</dd>" in panel.terms_box.value
        assert "matched F1" not in panel.terms_box.value
        wire.event(panel.menu, event="choose", label="Terms")
        assert "iw-hidden" in panel.terms_box._dom_classes
    finally:
        panel.close()
        for view in (heat, strip, table):
            view.close()
