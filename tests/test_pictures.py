"""The comparison of pictures in the journeys: blind to what no reader sees, not to what one does."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageChops, ImageDraw, ImageFilter

from tests.pictures import ALIKE, keep, share_unlike


def drawn(*, lines: int = 20, seconds: str = "0.3 s", colour: str = "#1f77b4", height: int = 640) -> Image.Image:
    """A panel as they look: lines of text, a row of coloured cells, a time that is another in each run."""
    picture = Image.new("RGB", (1200, height), "white")
    pen = ImageDraw.Draw(picture)
    pen.text((40, 10), f"Done in {seconds}", fill="black", font_size=14)
    for line in range(lines):
        pen.text((40, 40 + 18 * line), f"{line}: the likeliest next token is ' Paris'", fill="black", font_size=14)
    for cell in range(24):
        pen.rectangle((40 + 40 * cell, 440, 76 + 40 * cell, 520), fill=colour if cell % 3 else "#dddddd")
    return picture


def png(picture: Image.Image) -> bytes:
    file = io.BytesIO()
    picture.save(file, "png")
    return file.getvalue()


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    keep(png(drawn()), tmp_path / "stored.webp")
    return tmp_path / "stored.webp"


@pytest.mark.parametrize(
    "picture",
    [drawn(), drawn(seconds="1.7 s"), drawn().filter(ImageFilter.GaussianBlur(0.6)), drawn(colour="#2079b6")],
    ids=["itself", "another time", "softer letters", "a rounded number"],
)
def test_what_no_reader_sees(stored: Path, picture: Image.Image) -> None:
    assert share_unlike(png(picture), stored) <= ALIKE


@pytest.mark.parametrize(
    "picture",
    [
        drawn(lines=19), drawn(colour="#ff7f0e"), drawn(height=680), ImageChops.offset(drawn(), 0, 9),
        Image.new("RGB", (1200, 640), "white"), drawn().crop((0, 0, 600, 640)),
    ],
    ids=["a line is missing", "another colour", "higher", "moved", "empty", "cut"],
)  # fmt: skip
def test_what_a_reader_sees(stored: Path, picture: Image.Image) -> None:
    assert share_unlike(png(picture), stored) > ALIKE


def test_a_picture_is_kept_without_loss(stored: Path) -> None:
    assert np.array_equal(np.asarray(Image.open(stored).convert("RGB")), np.asarray(drawn()))
