"""The next tokens before and after a change of a model, as columns and rows of a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from interp_widgets.analysis.ablation import AblatedPrediction
from interp_widgets.figures.labels import visible


def columns(names: Sequence[str]) -> list[dict[str, Any]]:
    """Columns of the table: the token, then three per model, each of which starts with the model's name."""
    heads: list[dict[str, Any]] = [{"label": "next token"}]
    for name in names:
        heads += [{"label": f"{name} {what}".strip(), "align": "right"} for what in ("before", "after", "change")]
    return heads


def rows(predictions: Sequence[AblatedPrediction]) -> list[list[Any]]:
    """One row per token in the top of a model, the first model's first: its probability before and after, the change.

    The numbers of a model in whose top the token is not are None.
    """
    texts = {i: visible(text) for each in reversed(predictions) for i, text in zip(each.ids, each.tokens, strict=True)}
    ids = dict.fromkeys(i for each in predictions for i in each.ids)
    cells = [
        dict(zip(each.ids, zip(each.before, each.after, each.change, strict=True), strict=True)) for each in predictions
    ]
    return [
        [
            texts[i],
            *(None if value is None else float(value) for of_model in cells for value in of_model.get(i, (None,) * 3)),
        ]
        for i in ids
    ]
