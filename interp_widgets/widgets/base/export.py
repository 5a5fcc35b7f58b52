"""A result as one HTML file that works anywhere: no kernel, no network, the views still interactive."""

from __future__ import annotations

import base64
import html
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import ipywidgets as W
import pandas as pd

from interp_widgets.analysis._core.tables import csv_text
from interp_widgets.atomic import named_path, whole_file
from interp_widgets.figures.theme import TOKENS256, TOKENS_DARK256, TOKENS_DIVERGING256, lut
from interp_widgets.version import __version__
from interp_widgets.widgets.views.bokeh_figure import BokehFigure, bokeh_code
from interp_widgets.widgets.views.heatmap import Heatmap

_HERE = Path(__file__).parent
_INSTRUCTION = re.compile(r"<span class='iw-instruction'>.*?</span>")
_PRIVATE = ("_document", "_version", "_picture")
_SKIPPED = ("layout", "tabbable", "tooltip")
_LAYOUT = ("flex", "align_items", "width", "min_width", "max_width")
TABLE_ROWS = 500
"""Rows of a table written out; the whole table goes into the file as a CSV to download."""
CSV_BYTES = 8_000_000


def export_html(
    title: str,
    views: Sequence[Any],
    path: str | Path,
    *,
    question: Mapping[str, str] | None = None,
    provenance: Mapping[str, Any] | None = None,
    table: pd.DataFrame | None = None,
) -> Path:
    """Write the views in their present state into one self-contained HTML file and return its path.

    Boxes and tabs may be among the views: they are laid out as on the screen, tabs below each other under their
    names, without controls, hidden or still empty widgets, and without the views' instructions, which
    need a kernel. `question` holds the settings by their
    labels, and comes first. The file runs the views' own code without a kernel (hover, zoom, select,
    and the joint shading of a heat map's `strips`); it follows the reader's light or dark preference and makes no
    network request. Raises ValueError when there is no view to show.
    """
    path = named_path(path, "path")
    with whole_file(path) as draft:
        draft.write_text(
            html_page(title, views, question=question, provenance=provenance, table=table), encoding="utf-8"
        )
    return path


def html_page(
    title: str,
    views: Sequence[Any],
    *,
    question: Mapping[str, str] | None = None,
    provenance: Mapping[str, Any] | None = None,
    table: pd.DataFrame | None = None,
) -> str:
    """The text of the file that `export_html` writes."""
    shown = list(dict.fromkeys(view for one in views for view in views_in(one)))
    if not shown:
        raise ValueError(
            "there is nothing to save: pass at least one TokenStrip, Heatmap, BokehFigure or a box of them"
        )
    by_kind = {_kind(view): view for view in shown}
    sheets = [(_HERE / name).read_text(encoding="utf-8") for name in ("style.css", "export.css")]
    styles = [*sheets, *(str(view._css) for view in by_kind.values())]
    done: set[int] = set()
    name = html.escape(title)
    # unsafe-eval is only for Bokeh's own CustomJS; nothing may be fetched.
    policy = (
        "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; img-src data: blob:"
    )
    return "\n".join(
        [
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f'<meta name="generator" content="interp_widgets {__version__}">',
            f"<title>{name}</title>",
            *(f"<style>\n{style}\n</style>" for style in styles),
            f"</head>\n<body>\n<main>\n<h1>{name}</h1>",
            *_question(question or {}),
            '<div class="iw-panel">',
            *(_layout(one, shown, done) for one in views),
            "</div>",
            *_details(provenance, table),
            "</main>",
            *(f"<script>\n{_in_script(script)}\n</script>" for script in _scripts(shown, by_kind)),
            "</body>\n</html>\n",
        ]
    )


def views_in(widget: Any) -> Iterator[Any]:
    """The views in a widget that a page shows, in reading order, without the hidden and the still empty ones."""
    if _hidden(widget):
        return
    if getattr(widget, "exported", False):
        if not widget.is_empty:
            yield widget
        return
    for child in getattr(widget, "children", ()):
        yield from views_in(child)


def _hidden(widget: Any) -> bool:
    return "iw-hidden" in getattr(widget, "_dom_classes", ())


def _layout(widget: Any, shown: Sequence[Any], done: set[int]) -> str:
    """A widget as HTML, laid out as on the screen: boxes, texts, views; no controls, which would do nothing."""
    if _hidden(widget):
        return ""
    if getattr(widget, "exported", False):
        if widget not in shown or (index := shown.index(widget)) in done:
            return ""
        done.add(index)
        return _box("view", widget, "", name=f"view-{index}")
    if isinstance(widget, W.HTML):
        text = _INSTRUCTION.sub("", widget.value)
        return _box("widget-html", widget, text) if text else ""
    if isinstance(widget, W.Label):
        return _box("widget-label", widget, html.escape(widget.value)) if widget.value else ""
    parts = [_layout(child, shown, done) for child in getattr(widget, "children", ())]
    if isinstance(widget, W.Tab):
        titles = [str(widget.titles[k]) for k in range(len(parts))]
        heads = [f"<h2>{html.escape(title)}</h2>" if title else "" for title in titles]
        parts = [head + part if "view-" in part else "" for head, part in zip(heads, parts, strict=True)]
    inside = "".join(parts)
    return _box("widget-box", widget, inside) if inside else ""


def _box(kind: str, widget: Any, inside: str, *, name: str = "") -> str:
    """An element with the classes and the layout that the widget has on the screen."""
    classes = " ".join(["jupyter-widgets", kind, *widget._dom_classes])
    layout = {key.replace("_", "-"): getattr(widget.layout, key) for key in _LAYOUT}
    attributes = {
        "class": classes,
        "id": name,
        "style": "; ".join(f"{key}: {value}" for key, value in layout.items() if value),
    }
    written = "".join(f' {key}="{html.escape(value, quote=True)}"' for key, value in attributes.items() if value)
    return f"<div{written}>{inside}</div>"


def _question(question: Mapping[str, str]) -> Iterator[str]:
    """The settings behind the result, by their labels."""
    if question:
        parts = "".join(
            f"<div><dt>{html.escape(label)}</dt><dd>{html.escape(text)}</dd></div>" for label, text in question.items()
        )
        yield f'<dl class="question">{parts}</dl>'


def _scripts(shown: Sequence[Any], by_kind: Mapping[str, Any]) -> list[str]:
    scripts = [_module(kind, str(view._esm)) for kind, view in by_kind.items()]
    if any(isinstance(view, BokehFigure) for view in shown):
        scripts = [bokeh_code(), *scripts, _BOKEH_READY]
    states = [_state(view, f"view-{k}") for k, view in enumerate(shown)]
    return [*scripts, (_HERE / "export.js").read_text(encoding="utf-8"), _start(states, list(by_kind), _links(shown))]


def _links(shown: Sequence[Any]) -> list[dict[str, Any]]:
    """Which maps and strips shade each other, by their index in the page."""
    links = []
    for index, view in enumerate(shown):
        strips = view.strips if isinstance(view, Heatmap) else None
        if strips is None or not all(strip in shown for strip in strips):
            continue
        signed = view.vmin < 0 < view.vmax
        scales = (TOKENS_DIVERGING256,) * 2 if signed else (TOKENS256, TOKENS_DARK256)
        rows, columns = (shown.index(strip) for strip in strips)
        light, dark = (_code(lut(scale)) for scale in scales)
        links.append({"map": index, "rows": rows, "columns": columns, "lut": light, "lut_dark": dark})
    return links


def _code(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _kind(view: Any) -> str:
    # traitlets gives each anywidget a class of its own with the same name
    return type(view).__name__


def _module(kind: str, source: str) -> str:
    """The view's module as a plain script, since a page opened from a file may not import modules."""
    body, count = re.subn(r"^export default ", "return ", source, flags=re.MULTILINE)
    if count != 1:
        raise ValueError(f"the module of {kind} must have exactly one 'export default', found {count}")
    return f"const module_{kind} = (() => {{\n{body}\n}})();"


# BokehJS was started by the first script; the figures wait for it under this name.
_BOKEH_READY = """(() => {
  const version = window.Bokeh.version;
  window.__interpWidgetsBokeh = { [version]: { started: true, ready: Promise.resolve(window.Bokeh) } };
})();"""


def _state(view: Any, view_id: str) -> dict[str, Any]:
    state = view.get_state()
    values: dict[str, Any] = {}
    binary: dict[str, str] = {}
    for name, value in state.items():
        if name in _SKIPPED or (name.startswith("_") and name not in _PRIVATE):
            continue
        if isinstance(value, bytes | memoryview | bytearray):
            binary[name] = _code(bytes(value))
        else:
            values[name] = value
    if "instruction" in values:
        values["instruction"] = ""  # there is no kernel to respond
    values["writable"] = False  # nothing changed in a saved page would be kept
    return {"id": view_id, "module": _kind(view), "values": values, "binary": binary}


def _start(states: list[dict[str, Any]], kinds: list[str], links: list[dict[str, Any]]) -> str:
    modules = ", ".join(f"{kind}: module_{kind}" for kind in kinds)
    return (
        f"const views = {json.dumps(states)};\nconst links = {json.dumps(links)};\n"
        f"showViews(views, {{ {modules} }}).then(models => links.forEach(link => linkViews(models, link)));"
    )


def _in_script(source: str) -> str:
    """Source text that cannot end the script element or open a comment in it."""
    return re.sub(r"</(?=script)", r"<\\/", source, flags=re.IGNORECASE).replace("<!--", "<\\!--")


def _details(provenance: Mapping[str, Any] | None, table: pd.DataFrame | None) -> Iterator[str]:
    if provenance:
        rows = "".join(
            f"<tr><th>{html.escape(str(name))}</th><td>{html.escape(_text(value))}</td></tr>"
            for name, value in provenance.items()
        )
        yield f'<details><summary>How this was made</summary><div class="scroll"><table>{rows}</table></div></details>'
    if table is not None:
        yield _table(table)


def _table(table: pd.DataFrame) -> str:
    shown = table.head(TABLE_ROWS)
    head = "".join(f"<th>{html.escape(str(name))}</th>" for name in shown.columns)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in shown.itertuples(index=False))
    rest = "" if len(table) <= TABLE_ROWS else f", the first {TABLE_ROWS} of {len(table)} rows"
    data = csv_text(table).encode("utf-8")
    link = ""
    if len(data) <= CSV_BYTES:
        href = f"data:text/csv;charset=utf-8;base64,{_code(data)}"
        link = f'<p><a download="data.csv" href="{href}">Download all as CSV</a></p>'
    grid = f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
    return f"<details><summary>Numbers{rest}</summary>{link}{grid}</details>"


def _cell(value: Any) -> str:
    kind = ' class="number"' if isinstance(value, int | float) and not isinstance(value, bool) else ""
    return f"<td{kind}>{html.escape(_text(value))}</td>"


def _text(value: Any) -> str:
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:.6g}"
    return str(value)
