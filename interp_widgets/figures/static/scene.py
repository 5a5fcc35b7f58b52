"""The base of all matplotlib pictures. A picture has a light background, whatever theme or style is set."""

from __future__ import annotations

import io
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import escape

import numpy as np
from numpy.typing import NDArray

from interp_widgets.atomic import named_path, whole_file
from interp_widgets.figures.theme import lut

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap, Normalize
    from matplotlib.figure import Figure

# matplotlib is imported where it is used, since that takes half a second

INK, MUTED, RULE = "#1f2328", "#5c6370", "#d0d4da"
"""Colours of text, of quieter text and of lines."""
MARGIN = 12.0
"""Pixels left free at the edges."""
POINT = 0.75
"""Points per pixel: 96 pixels are an inch, as in a browser."""

_BOXES = "Last Resort High-Efficiency"  # comes with matplotlib; a box that names the script, for any character
_FONTS = (
    "DejaVu Sans", "Noto Sans", "Noto Sans CJK SC", "Noto Sans CJK JP", "Noto Sans SC", "Noto Sans JP", "Noto Sans KR",
    "PingFang SC", "Hiragino Sans", "Apple SD Gothic Neo", "Microsoft YaHei", "Yu Gothic", "Malgun Gothic", "SimHei",
    "WenQuanYi Zen Hei", "Droid Sans Fallback", "Noto Sans Arabic", "Noto Sans Hebrew", "Noto Sans Devanagari",
    "Noto Sans Thai", "Nirmala UI", "Leelawadee UI", "Segoe UI Emoji", "Segoe UI Symbol", "Noto Emoji", "Symbola",
    "Arial Unicode MS", _BOXES,
)  # fmt: skip
"""Fonts tried in turn for each character, if installed; DejaVu Sans and the boxes come with matplotlib."""

WIDTHS = {"column": 420, "page": 880, "slide": 720}
"""Pixels across for which a picture is laid out for a place in a paper or on a slide: scaled to a column of 3.25 inches
or a page of 6.75 its text is between 6 and 7 points high, on a slide of 13.3 inches 16."""
_asked: ContextVar[int | None] = ContextVar("width asked for", default=None)

# matplotlib's settings are global; a lock keeps two pictures from restoring each other's
_SETTINGS = threading.Lock()


@contextmanager
def laid_out(width: int | None) -> Iterator[None]:
    """Pictures made meanwhile are at most so many pixels wide; None: as wide as they are by themselves."""
    before = _asked.set(width)
    try:
        yield
    finally:
        _asked.reset(before)


def fitted(width: float) -> float:
    """How wide a picture is made that is `width` pixels wide by itself.

    >>> with laid_out(420):
    ...     fitted(900), fitted(360)
    (420, 360)
    """
    asked = _asked.get()
    return width if asked is None else min(width, asked)


@lru_cache(maxsize=1)
def fonts() -> tuple[str, ...]:
    """The fonts for pictures that are installed."""
    from matplotlib.font_manager import fontManager

    installed = set(fontManager.get_font_names())
    return tuple(name for name in _FONTS if name in installed)


@lru_cache(maxsize=8192)
def _advance(char: str) -> float:
    """Advance width of a character, in font sizes."""
    from matplotlib.font_manager import FontProperties, findfont, get_font
    from matplotlib.ft2font import LoadFlags

    font = get_font([findfont(FontProperties(family=[name])) for name in fonts()])
    font.set_size(100, 72)
    font.set_text(char, 0.0, flags=LoadFlags.NO_HINTING)
    return float(font.get_width_height()[0] / 6400)


_FORBIDDEN = {code: 0x2400 + code for code in range(32) if code != 10} | {0xFFFE: 0xFFFD, 0xFFFF: 0xFFFD}


def printable(text: str) -> str:
    """The text without characters that an SVG cannot hold, which a model's tokens may contain."""
    return text.translate(_FORBIDDEN).encode("utf-8", "replace").decode("utf-8")


def text_width(text: str, size: float = 12.0) -> float:
    """Width of a line of text in pixels, at a font size in pixels.

    >>> text_width("") , text_width("mm") > text_width("ii")
    (0.0, True)
    """
    return size * sum(_advance(char) for char in printable(text))


def shorten(text: str, room: float, size: float = 12.0) -> str:
    """The printable text, or as much of it as fits into `room` pixels followed by an ellipsis."""
    text = printable(text)
    if text_width(text, size) <= room:
        return text
    room -= text_width("…", size)
    kept = 0
    while kept < len(text) and (room := room - text_width(text[kept], size)) >= 0:
        kept += 1
    return text[:kept] + "…" if kept else ""


def shading(
    values: NDArray[np.float64], colors: Sequence[str] | bytes, vmin: float | None, vmax: float | None,
    *, log: bool = False, reverse: bool = False,
) -> tuple[Normalize, Colormap]:  # fmt: skip
    """The norm and colour map for numbers in a range, by default their own; NaN is light grey.

    `log` uses the logarithm of 1 + number, which keeps 0; `reverse` gives the lowest number the last colour.
    """
    from matplotlib.colors import FuncNorm, ListedColormap, Normalize

    finite = values[np.isfinite(values)]
    low = vmin if vmin is not None else float(finite.min()) if finite.size else 0.0
    high = vmax if vmax is not None else float(finite.max()) if finite.size else 1.0
    low = max(low, 0.0) if log else low
    high = high if high > low else low + 1.0
    norm = FuncNorm((lambda v: np.log1p(np.maximum(v, 0)), np.expm1), low, high) if log else Normalize(low, high)
    packed = colors if isinstance(colors, bytes) else lut(colors)
    table = np.frombuffer(packed, dtype=np.uint8).reshape(256, 4)[:: -1 if reverse else 1] / 255
    return norm, ListedColormap(table).with_extremes(bad="#e1e3e6")


@dataclass(frozen=True)
class Sheet:
    """A part of a figure to draw on; lengths in pixels, y downwards from the upper left corner of the part."""

    figure: Figure
    x: float = 0.0
    y: float = 0.0
    tips: dict[str, list[str]] = field(default_factory=dict)

    def axes(self, x: float, y: float, width: float, height: float, **options: Any) -> Axes:
        """New axes that fill this rectangle."""
        wide, tall = self.figure.get_size_inches() * 96
        across, down = self.x + x, self.y + y + height
        return self.figure.add_axes((across / wide, 1 - down / tall, width / wide, height / tall), **options)

    def pixels(self, width: float, height: float) -> Axes:
        """Invisible axes over the sheet, in its pixels."""
        axes = self.axes(0, 0, width, height, xlim=(0, width), ylim=(height, 0))
        axes.set_axis_off()
        return axes

    def text(self, x: float, y: float, text: str, *, size: float = 12, ha: str = "left", **options: Any) -> None:
        """One line of text; `y` is about the middle of its small letters."""
        wide, tall = self.figure.get_size_inches() * 96
        options = {"va": "baseline", "rotation_mode": "anchor"} | options
        sideways = options.get("rotation") == 90
        right, down = self.x + x + (0.36 * size if sideways else 0), self.y + y + (0 if sideways else 0.36 * size)
        self.figure.text(right / wide, 1 - down / tall, printable(text), ha=ha, fontsize=size * POINT, **options)

    def title(self, text: str, width: float) -> None:
        """The heading of a picture of this width, in smaller letters before any of it is cut."""
        room = width - 2 * MARGIN
        size = min(15.0, max(11.0, 15 * room / max(1.0, text_width(text, 15))))
        self.text(MARGIN, MARGIN + 8, shorten(text, room, size), size=size)

    def tip(self, artist: Any, tips: Sequence[str]) -> None:
        """Set the tooltips of an artist's pieces, in drawing order."""
        name = f"tips{len(self.tips)}"
        artist.set_gid(name)
        self.tips[name] = list(tips)


@dataclass(frozen=True)
class Scene:
    """A picture: its size in pixels, and the function that draws it.

    >>> Scene(10, 10, lambda sheet: None).title
    ''
    """

    width: float
    height: float
    draw: Callable[[Sheet], None]
    title: str = ""

    def figure(self) -> Figure:
        """The picture as a new matplotlib figure, to change or to save in another format."""
        with _own_settings():
            return self._sheet().figure

    def _sheet(self) -> Sheet:
        from matplotlib.figure import Figure

        sheet = Sheet(Figure(figsize=(self.width / 96, self.height / 96), dpi=96))
        self.draw(sheet)
        return sheet


@contextmanager
def _own_settings() -> Iterator[None]:
    """matplotlib's defaults with the look of our pictures, whatever style the user has set."""
    import matplotlib

    settings: dict[Any, Any] = {
        name: value for name, value in matplotlib.rcParamsDefault.items() if not name.startswith("backend")
    }
    settings |= {
        "font.family": fonts(), "font.size": 12 * POINT, "text.color": INK, "text.parse_math": False,
        "axes.edgecolor": RULE, "axes.labelcolor": MUTED, "xtick.color": RULE, "ytick.color": RULE,
        "xtick.labelcolor": MUTED, "ytick.labelcolor": MUTED, "axes.spines.top": False, "axes.spines.right": False,
        "grid.color": RULE, "axes.axisbelow": True, "legend.frameon": False, "legend.fontsize": 11 * POINT,
        "text.hinting": "none", "svg.fonttype": "none", "svg.hashsalt": "interp_widgets", "pdf.fonttype": 42,
    }  # fmt: skip
    with _SETTINGS, matplotlib.rc_context(settings):
        yield


def render_png(scene: Scene, scale: float = 2.0) -> bytes:
    """The picture as a PNG file of `scale` times its size in pixels; 2 is crisp on most screens and in print.

    >>> render_png(Scene(8, 4, lambda sheet: sheet.text(1, 2, "a")))[1:4]
    b'PNG'
    """
    if not scale > 0:
        raise ValueError(f"scale must be above 0, got {scale}")
    buffer = io.BytesIO()
    with _own_settings():
        scene._sheet().figure.savefig(buffer, format="png", dpi=96 * scale, metadata={"Software": None})
    return buffer.getvalue()


def render_svg(scene: Scene) -> str:
    """The picture as one self-contained SVG document, with its text as text, to search and copy.

    >>> render_svg(Scene(40, 20, lambda sheet: sheet.text(1, 2, "<b>"))).count("&lt;b&gt;")
    1
    """
    buffer = io.StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with _own_settings():
        sheet = scene._sheet()
        sheet.figure.savefig(buffer, format="svg", dpi=192, metadata=nothing)
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :].replace(f"'{_BOXES}'", "sans-serif")  # the browser has its own fonts
    if scene.title:
        svg = svg.replace(">", f">\n <title>{escape(printable(scene.title))}</title>", 1)
    for name, tips in sheet.tips.items():
        svg = _with_tips(svg, name, tips)
    return svg


def render_pdf(scene: Scene) -> bytes:
    """The picture as a PDF file of one page of its size, with its text as text and its fonts inside.

    >>> render_pdf(Scene(8, 4, lambda sheet: sheet.text(1, 2, "a")))[1:4]
    b'PDF'
    """
    buffer = io.BytesIO()
    with _own_settings():
        metadata = dict.fromkeys(("CreationDate", "Creator", "Producer"))
        scene._sheet().figure.savefig(buffer, format="pdf", metadata=metadata)
    return buffer.getvalue()


def _with_tips(svg: str, name: str, tips: Sequence[str]) -> str:
    before, after = svg.split(f'<g id="{name}">', 1)
    left = iter(tips)

    def titled(piece: re.Match[str]) -> str:
        return f"{piece[1]}><title>{escape(printable(next(left)))}</title></{piece[2]}>"

    after = re.sub(r'(<(path|use) [^<>]*style="[^"]*")/>', titled, after, count=len(tips))
    return f'{before}<g id="{name}">{after}'


def save_scene(scene: Scene, path: str | Path, *, scale: float = 2.0) -> Path:
    """Write the picture as SVG, PDF or PNG, by the ending of `path`; ValueError for any other ending."""
    path = named_path(path, "path")
    suffix = path.suffix.lower()
    if suffix not in (".svg", ".pdf", ".png"):
        raise ValueError(f"a picture is saved as .svg, .pdf or .png, got {path.name!r}")
    with whole_file(path) as draft:
        if suffix == ".svg":
            draft.write_text(render_svg(scene), encoding="utf-8")
        else:
            draft.write_bytes(render_pdf(scene) if suffix == ".pdf" else render_png(scene, scale))
    return path


def stack_scenes(scenes: Iterable[Scene], *, columns: int = 1, gap: float = 8.0, title: str = "") -> Scene:
    """Several pictures below one another as one, or row by row in a grid of `columns` (at least 1), or of fewer where
    they would not fit into what is `laid_out`."""
    if columns < 1:
        raise ValueError(f"columns must be at least 1, got {columns}")
    held = list(scenes)
    across = max((scene.width for scene in held), default=1.0) + gap
    columns = max(1, min(columns, int((fitted(columns * across) + gap) / across)))
    placed: list[tuple[float, float, Scene]] = []
    y = width = 0.0
    for start in range(0, len(held), columns):
        x = 0.0
        for scene in held[start : start + columns]:
            placed.append((x, y, scene))
            x += scene.width + gap
        y += max(scene.height for scene in held[start : start + columns]) + gap
        width = max(width, x - gap)

    def draw(sheet: Sheet) -> None:
        for x, y, scene in placed:
            scene.draw(Sheet(sheet.figure, sheet.x + x, sheet.y + y, sheet.tips))

    return Scene(width, max(1.0, y - gap), draw, title=title)
