"""Save: the numbers as a table, the picture, the whole panel as a page, or the result, under a name of your choice."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import ipywidgets as W

from ...analysis._core.result import Result, Results
from ...analysis._core.tables import csv_text
from ...arguments import short
from ...atomic import named_path, whole_file
from ...compute.memory import describe_bytes
from ...figures.static import WIDTHS, laid_out, save_scene
from .controls import TextLine, checked_path, row, shown_if
from .fields import Hint
from .guard import guarded
from .pair_view import page_title

TABLES = (".csv", ".parquet")
PICTURES = (".svg", ".pdf", ".png")
PAGES = (".html",)
RESULTS = (".npz",)
LEAST, MOST = 320, 900
"""Pixels; by themselves, pictures are laid out for the last."""
_LABELS = {
    ".csv": "CSV: the numbers",
    ".parquet": "Parquet: the numbers",
    ".svg": "SVG: the picture",
    ".pdf": "PDF: the picture",
    ".png": "PNG: the picture",
    ".html": "HTML: the whole panel",
    ".npz": "NPZ: the result, to load again",
}


def formats(panel: Any) -> tuple[str, ...]:
    """Suffixes that a panel can be saved under."""
    tables = TABLES if panel.can_save("frame") else ()
    pictures = PICTURES if panel.can_save("scene") else ()
    return (*tables, *pictures, *PAGES, *(RESULTS if panel.can_save("stored") else ()))


def file_path(path: Any) -> Path:
    """A path that a user passes; TypeError for anything else, ValueError if no file can have that name."""
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    if not isinstance(text, str):
        raise TypeError(f"path must be a str or a Path, got {short(path)}")
    if not checked_path(text, "path"):
        raise ValueError("path must be the name of a file, got an empty one")
    return named_path(text, "path")


def target_of(path: Any, allowed: Collection[str]) -> Path:
    """The absolute path of a file to write, whose suffix is one of those allowed.

    Raises TypeError for anything but a path, ValueError for another suffix, a folder, or a file in one that does not
    exist.
    """
    target = file_path(path).absolute()
    if target.suffix.lower() not in allowed:
        raise ValueError(f"cannot save as {target.name!r}: the name must end in {', '.join(allowed)}")
    if not target.parent.is_dir():
        raise ValueError(f"the folder {target.parent} does not exist: make it or choose another")
    if target.is_dir():
        raise ValueError(f"cannot save as {target.name!r}: it is a folder")
    return target


def save(panel: Any, path: str | Path, width: str | int | None = None) -> Path:
    """Write what a panel shows to a file whose suffix says how, and return its absolute path.

    `width` is that of a picture: one of `WIDTHS`, or pixels. Raises TypeError for anything but a path, ValueError for a
    suffix that the panel does not offer, a width that no picture has, a folder that does not exist, or if there is no
    result yet, RuntimeError for a closed panel, OSError if the file cannot be written.
    """
    panel.check_open()
    target = target_of(path, formats(panel))
    suffix = target.suffix.lower()
    pixels = _pixels(width)
    if pixels is not None and suffix not in PICTURES:
        raise ValueError(f"only a picture ({', '.join(PICTURES)}) has a width, not {target.name!r}: leave width out")
    if panel.has_request and panel.result is None:
        raise ValueError("there is nothing to save yet: press Run first")
    if suffix in TABLES:
        _save_table(panel.frame(), target, suffix)
    elif suffix in PICTURES:
        with laid_out(pixels):
            save_scene(panel.scene(), target)
    elif suffix in RESULTS:
        panel.stored().save(target)
    else:
        _save_page(panel, target)
    return target


def _pixels(width: str | int | None) -> int | None:
    if isinstance(width, str) and width in WIDTHS:
        return WIDTHS[width]
    if width is None or (type(width) is int and LEAST <= width <= MOST):
        return width
    names = ", ".join(map(repr, WIDTHS))
    raise ValueError(f"width must be one of {names} or a number of pixels from {LEAST} to {MOST}, got {short(width)}")


def _save_page(panel: Any, target: Path) -> None:
    from .export import export_html, views_in

    if not any(True for part in (panel.plot, panel.details) for _ in views_in(part)):
        raise ValueError("there is nothing to save yet: press Run or the tab's own button first")
    table = panel.frame() if panel.can_save("frame") else None
    provenance = getattr(panel.results[0], "provenance", None) if panel.results else None
    export_html(
        page_title(panel),
        [panel.plot, panel.details],
        target,
        question=panel.question(),
        provenance=provenance,
        table=table,
    )


def _save_table(frame: Any, target: Path, suffix: str) -> None:
    with whole_file(target) as draft:
        if suffix == ".csv":
            draft.write_text(csv_text(frame), encoding="utf-8", newline="")
        else:
            frame.to_parquet(draft, index=False)


def as_one(parts: Mapping[str, Any], tab: str = "") -> Result:
    """The result to save: a single part as it is, several as `Results`; ValueError if there is none."""
    results = {name: part for name, part in parts.items() if part is not None}
    if not results:
        where = f" on the tab {tab}" if tab else ""
        raise ValueError(f"there is no result to save{where} yet: press Run or the tab's own button first")
    return next(iter(results.values())) if len(results) == 1 else Results(tuple(results), tuple(results.values()))


def free_name(path: Path) -> Path:
    """The path, or the first of path-2, path-3, … that does not exist: a click must not overwrite a file."""
    candidate, number = path, 1
    while candidate.exists():
        number += 1
        candidate = path.with_name(f"{path.stem}-{number}{path.suffix}")
    return candidate


def file_stem(title: str) -> str:
    """A title as a file name without suffix.

    >>> file_stem("Prompt saliency: base")
    'prompt-saliency-base'
    """
    return re.sub(r"[^0-9a-z]+", "-", title.lower()).strip("-") or "panel"


class SaveRow:
    """What *Save* opens: format, name, and the button that writes."""

    def __init__(self, panel: Any, labels: Mapping[str, str] | None = None) -> None:
        self._panel = panel
        offered = {suffix: _LABELS[suffix] for suffix in formats(panel)} if labels is None else labels
        options = [(label, suffix) for suffix, label in offered.items()]
        self.format = W.Dropdown(options=options, value=options[0][1], description="Format")
        self.name = TextLine(value=file_stem(panel.title), description="File name", continuous_update=False)
        self.write = W.Button(description="Save file", tooltip="Write the file beside the notebook")
        self.not_saved = Hint(self.name, self.format)
        self.row = row(self.format, self.name, self.write, self.not_saved)
        self.row.add_class("iw-save")
        shown_if(self.row, False)
        self.write.on_click(guarded(panel, lambda _: self.not_saved.of(self._write)()))

    def toggle(self) -> None:
        """Show the row, or hide it."""
        shown_if(self.row, "iw-hidden" in self.row._dom_classes)

    def _write(self) -> None:
        name = checked_path(self.name.value, "the file name")
        if not name or "/" in name or "\\" in name:
            raise ValueError(f"the file name must not contain slashes, got {name!r}")
        for suffix in _LABELS:
            name = name.removesuffix(suffix)
        name = checked_path(name + self.format.value, "the file name")
        target = self._panel.save(free_name(Path.cwd() / name))
        self._panel.status.idle(f"Saved {target} ({describe_bytes(target.stat().st_size)})")
