"""The title line of a panel: what it shows, the model, its device and dtype, and whether its self-check passed."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from interp_widgets.models import Model
from interp_widgets.models.pair import distinct_names


def heading(title: str, models: Sequence[Any], *, brief: bool = False) -> str:
    """The title line as HTML, escaped; a `brief` one has the details of a model in its tooltip."""
    named = zip(("A", "B") if len(models) > 1 else ("",), models, distinct_names(models), strict=False)
    chips = (
        f"<span class='iw-model iw-model-{letter}'>{_model(letter, model, name, brief)}</span>"
        for letter, model, name in named
    )
    what = f"<span class='iw-what' role='heading' aria-level='3'>{escape(title)}</span>"
    return f"<div class='iw-heading'>{what}{''.join(chips)}</div>"


def _model(letter: str, model: Model, name: str, brief: bool) -> str:
    facts = [
        str(getattr(model, fact)).removeprefix("torch.")
        for fact in ("device", "dtype", "backend")
        if getattr(model, fact, None) is not None
    ]
    if getattr(model, "processed", False):
        facts.append("processed weights")
    label = f"{letter}: " if letter else ""
    name, about = f"<b>{escape(name)}</b>", " · ".join(facts)
    edited = f"<span class='iw-badge iw-edited'>edited: {escape(edits)}</span>" if (edits := edits_of(model)) else ""
    if brief:
        return f"<span title='{escape(about, quote=True)}'>{escape(label)}{name}{_badge(model, brief)}{edited}</span>"
    return f"{escape(label)}{name} {escape(about)}{_badge(model)}{edited}"


def edits_of(model: Model) -> str:
    """The names of the edits applied to a model; empty for none."""
    return ", ".join(getattr(model, "edits", ()))


def _badge(model: Model, brief: bool = False) -> str:
    """Whether the model's self-check passed, the figures in the tooltip and in the label for screen readers."""
    check = getattr(model, "self_check", None)
    if check is None:
        return ""
    passed = bool(check.passed)
    words = "self-check passed" if passed else "self-check failed"
    summary = check.summary() if callable(check.summary) else check.summary
    tip = escape(f"{words}: {summary}", quote=True)
    style = "iw-pass" if passed else "iw-fail"
    if brief:
        words = "✓ checked" if passed else "✗ check failed"
    return f"<span class='iw-badge {style}' tabindex='0' title='{tip}' aria-label='{tip}'>{words}</span>"


def view_options(models: Sequence[Any], pair_views: Sequence[str]) -> list[tuple[str, str]]:
    """Label and value of the views of two models: each alone, then those of both."""
    first, second = distinct_names(models)
    labels = {"difference": "difference B − A", "beside": "A beside B"}
    return [(f"A: {first}", "A"), (f"B: {second}", "B"), *((labels[view], view) for view in pair_views)]
