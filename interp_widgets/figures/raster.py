"""Scenes drawn as PNG by Pillow, with the font Pillow brings along; no browser needed."""

from __future__ import annotations

import math
import unicodedata
from functools import lru_cache
from itertools import groupby

from PIL import Image, ImageDraw, ImageFont

from interp_widgets.figures.scene import Item, Line, Pixels, Rect, Scene, Text, png_bytes
from interp_widgets.figures.theme import over

# Tried in turn for characters that Pillow's own font lacks; Pillow looks in the usual places of each system.
_FALLBACKS = ("DejaVuSans.ttf", "NotoSans-Regular.ttf", "Arial Unicode.ttf", "segoeui.ttf", "seguisym.ttf", "arial.ttf",
              "NotoSansArabic-Regular.ttf", "NotoSansHebrew-Regular.ttf", "NotoSansCJK-Regular.ttc",
              "NotoEmoji-Regular.ttf", "seguiemj.ttf", "Symbola.ttf")  # fmt: skip
# For machines where no font has the signs that the widgets use; Pillow's own font has hardly more than ASCII.
_STAND_INS = {"⏎": "\\n", "⇥": "\\t", "→": "›", "−": "-", "⍽": "_", "×": "x", "∞": "inf"}
_LAST_RESORT = "?"


@lru_cache(maxsize=64)
def _own_font(size: float) -> ImageFont.FreeTypeFont:
    font = ImageFont.load_default(size)
    if not isinstance(font, ImageFont.FreeTypeFont):
        raise RuntimeError("this Pillow was built without FreeType, so it cannot draw text; install the pillow wheel")
    return font


@lru_cache(maxsize=256)
def _font(name: str, size: float) -> ImageFont.FreeTypeFont | None:
    if not name:
        return _own_font(size)
    try:
        return ImageFont.truetype(name, size)
    except OSError:  # not on this machine
        return None


def _glyph(font: ImageFont.FreeTypeFont, char: str) -> tuple[tuple[int, int], bytes]:
    mask = font.getmask(char, mode="L")
    return mask.size, bytes(mask)


@lru_cache(maxsize=64)
def _missing(name: str) -> tuple[tuple[int, int], bytes]:
    font = _font(name, 16)
    assert font is not None  # only asked for fonts already opened
    return _glyph(font, "\U0010fffd")


@lru_cache(maxsize=8192)
def _font_of(char: str) -> tuple[str, str]:
    """The name of a font that has the character, and what to draw with it: where no font has it, the next best."""
    if char.isspace():
        return "", " "
    for name in ("", *_FALLBACKS):
        font = _font(name, 16)
        if font is not None and _glyph(font, char) != _missing(name):
            return name, char
    plain = unicodedata.normalize("NFKD", char)[0]  # é is written as e
    return "", _STAND_INS.get(char, plain if "!" <= plain <= "~" else _LAST_RESORT)


def _runs(text: str) -> list[tuple[str, str]]:
    """The text split into stretches of one font: (font name, characters)."""
    placed = [_font_of(char) for char in text if char.isprintable() or char.isspace()]
    return [(name, "".join(char for _, char in group)) for name, group in groupby(placed, key=lambda pair: pair[0])]


def _opened(name: str, size: float) -> ImageFont.FreeTypeFont:
    return _font(name, size) or _own_font(size)


@lru_cache(maxsize=16384)
def text_width(text: str, size: float = 12.0) -> float:
    """Width of a line of text in pixels, in the font that `render_png` uses.

    >>> text_width("") , text_width("mm") > text_width("ii")
    (0.0, True)
    """
    return float(sum(_opened(name, size).getlength(run) for name, run in _runs(text)))


def own_glyphs(text: str) -> bool:
    """Whether Pillow's own font has every character, so that `text_width` is what other programs will find too."""
    return all(_font_of(char) == ("", char) for char in text)


def shorten(text: str, room: float, size: float = 12.0) -> str:
    """The text, or as much of it as fits into `room` pixels followed by an ellipsis."""
    if text_width(text, size) <= room:
        return text
    low, high = 0, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        if text_width(text[:middle] + "…", size) <= room:
            low = middle
        else:
            high = middle - 1
    return text[:low] + "…" if low else ""


def _draw_text(image: Image.Image, item: Text, scale: float, background: str) -> None:
    size = item.size * scale
    runs = _runs(item.text)
    width = sum(_opened(name, size).getlength(run) for name, run in runs)
    shift = {"start": 0.0, "middle": width / 2, "end": width}[item.anchor]
    fill = over(item.fill, background)
    stroke = 0.35 * scale if item.bold else 0
    if not item.rotate:
        _write(ImageDraw.Draw(image), runs, item.x * scale - shift, item.y * scale, size, fill, stroke)
        return
    # Drawn level on a sheet of its own whose middle is the point the text turns about, then turned and laid over.
    half = math.ceil(width + size)
    sheet = Image.new("RGBA", (2 * half, 2 * half), (0, 0, 0, 0))
    _write(ImageDraw.Draw(sheet), runs, half - shift, half, size, fill, stroke)
    sheet = sheet.rotate(-item.rotate, resample=Image.Resampling.BICUBIC)
    image.paste(sheet, (round(item.x * scale) - half, round(item.y * scale) - half), sheet)


def _write(
    draw: ImageDraw.ImageDraw, runs: list[tuple[str, str]], x: float, y: float, size: float, fill: str, stroke: float
) -> None:
    own = _own_font(size)
    top, bottom = own.getbbox("Hx", anchor="ls")[1::2]
    baseline = y - (top + bottom) / 2
    for name, run in runs:
        font = _opened(name, size)
        draw.text((x, baseline), run, font=font, fill=fill, anchor="ls", stroke_width=stroke, stroke_fill=fill)
        x += font.getlength(run)


def _draw_rect(draw: ImageDraw.ImageDraw, item: Rect, scale: float, background: str) -> None:
    x0, y0 = round(item.x * scale), round(item.y * scale)
    x1, y1 = round((item.x + item.width) * scale) - 1, round((item.y + item.height) * scale) - 1
    if x1 < x0 or y1 < y0:
        return
    fill = None if item.fill is None else over(item.fill, background)
    stroke = None if item.stroke is None else over(item.stroke, background)
    width = max(1, round(item.stroke_width * scale)) if stroke else 0
    if item.radius:
        draw.rounded_rectangle((x0, y0, x1, y1), radius=item.radius * scale, fill=fill, outline=stroke, width=width)
    else:
        draw.rectangle((x0, y0, x1, y1), fill=fill, outline=stroke, width=width)


def _draw(image: Image.Image, item: Item, scale: float, background: str) -> None:
    if isinstance(item, Text):
        _draw_text(image, item, scale, background)
    elif isinstance(item, Rect):
        _draw_rect(ImageDraw.Draw(image), item, scale, background)
    elif isinstance(item, Line):
        ends = tuple(v * scale for v in (item.x0, item.y0, item.x1, item.y1))
        ImageDraw.Draw(image).line(ends, fill=over(item.stroke, background), width=max(1, round(item.width * scale)))
    elif isinstance(item, Pixels):
        box = (max(1, round(item.width * scale)), max(1, round(item.height * scale)))
        sheet = Image.fromarray(item.rgba, "RGBA").resize(box, Image.Resampling.NEAREST)
        image.paste(sheet, (round(item.x * scale), round(item.y * scale)), sheet)


def render_image(scene: Scene, scale: float = 2.0) -> Image.Image:
    """The scene as a Pillow image of `scale` times its size."""
    if not scale > 0:
        raise ValueError(f"scale must be above 0, got {scale}")
    size = (max(1, round(scene.width * scale)), max(1, round(scene.height * scale)))
    image = Image.new("RGB", size, over(scene.background))
    for item in scene.items:
        _draw(image, item, scale, scene.background)
    return image


def render_png(scene: Scene, scale: float = 2.0) -> bytes:
    """The scene as a PNG file of `scale` times its size in pixels; a scale of 2 is crisp on most screens and in print.

    >>> render_png(Scene(8, 4, (Text(1, 2, "a"),)))[1:4]
    b'PNG'
    """
    return png_bytes(render_image(scene, scale))
