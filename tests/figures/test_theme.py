"""Scales: even, readable, white at zero; ink: always the better of two."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from interp_widgets.figures import theme
from interp_widgets.figures.theme import contrast, ink, lut, over, rgba

SCALES = {
    name: getattr(theme, name)
    for name in (
        "SEQUENTIAL256",
        "SEQUENTIAL_DARK256",
        "VIRIDIS256",
        "DIVERGING256",
        "DIVERGING_DARK256",
        "TOKENS256",
        "TOKENS_DARK256",
        "TOKENS_DIVERGING256",
    )
}


def luminance(scale: theme.Scale, page: str) -> np.ndarray:
    return np.array([contrast(over(color, page), "#000000") for color in scale])


@pytest.mark.parametrize("name", SCALES)
def test_a_scale_has_256_colours_and_packs_into_1024_bytes(name: str) -> None:
    packed = np.frombuffer(lut(SCALES[name]), dtype=np.uint8).reshape(256, 4)
    assert tuple(packed[37]) == rgba(SCALES[name][37])


@pytest.mark.parametrize(
    ("name", "page", "sign"),
    [
        ("SEQUENTIAL256", "#ffffff", -1),
        ("TOKENS256", "#ffffff", -1),
        ("SEQUENTIAL_DARK256", "#111111", 1),
        ("VIRIDIS256", "#111111", 1),
        ("TOKENS_DARK256", "#111111", 1),
    ],
)
def test_magnitudes_grow_steadily_lighter_or_darker(name: str, page: str, sign: int) -> None:
    steps = sign * np.diff(luminance(SCALES[name], page))
    assert (steps > -0.02).all(), "a larger number must never look smaller"
    assert (steps > 0).mean() > 0.95
    # the check can fail: a signed scale goes up and down again
    signed = np.diff(luminance(SCALES["DIVERGING256"], page))
    assert (signed > 0.02).any()
    assert (signed < -0.02).any()


def test_nothing_has_no_colour() -> None:
    assert over(SCALES["TOKENS256"][0]) == "#ffffff"
    assert over(SCALES["TOKENS_DARK256"][0], "#111111") == "#111111"
    assert (SCALES["SEQUENTIAL256"][0], SCALES["SEQUENTIAL_DARK256"][0]) == ("#ffffff", "#111111")
    middles = {"DIVERGING256": "#ffffff", "DIVERGING_DARK256": "#111111", "TOKENS_DIVERGING256": "#ffffff"}
    for name, middle in middles.items():
        assert {over(color) for color in SCALES[name][127:129]} == {middle}
        red, _, blue, _ = rgba(SCALES[name][190])
        assert red > blue, "above zero is red"
        assert rgba(SCALES[name][65])[2] > rgba(SCALES[name][65])[0], "below zero is blue"


def test_on_a_dark_page_what_is_large_is_bright_on_both_sides() -> None:
    steps = np.diff(luminance(SCALES["DIVERGING_DARK256"], "#111111"))
    assert (steps[:127] <= 0).all()
    assert (steps[128:] >= 0).all()


@pytest.mark.parametrize("page", ["#ffffff", "#111111"])
@pytest.mark.parametrize("name", SCALES)
def test_ink_reads_on_every_colour(name: str, page: str) -> None:
    seen = [over(color, page) for color in SCALES[name]]
    assert min(contrast(ink(color), color) for color in seen) > 4.5
    other = {"#ffffff": "#000000", "#000000": "#ffffff"}
    assert min(contrast(other[ink(color)], color) for color in seen) < 4.5, "the other ink would not do"


# How a red-green-blind and a blue-blind eye sees linear colours (Machado, Oliveira and Fernandes 2009, severity 1).
EYES = {
    "usual": np.eye(3),
    "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritan": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}


def least_distance(colors: tuple[str, ...], eye: str) -> float:
    """Smallest distance of two of the colours in OKLab, as that eye sees them."""
    rgb = np.array([rgba(color)[:3] for color in colors]) / 255
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    seen = np.clip(linear @ np.array(EYES[eye]).T, 0, 1)
    shown = np.where(seen <= 0.0031308, seen * 12.92, 1.055 * seen ** (1 / 2.4) - 0.055)
    lab = theme._to_oklab(shown)
    return min(float(np.linalg.norm(one - other)) for one, other in itertools.combinations(lab, 2))


@pytest.mark.parametrize("eye", EYES)
def test_categories_stay_apart_for_every_eye(eye: str) -> None:
    assert least_distance(theme.PALETTE8, eye) > 0.07


def test_common_categories_would_not_do() -> None:
    tab10 = ("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2", "#7f7f7f")
    assert min(least_distance(tab10, eye) for eye in EYES) < 0.02


def test_categories_show_on_both_pages() -> None:
    assert min(contrast(color, page) for color in theme.PALETTE8 for page in ("#ffffff", "#212121")) > 2.2


@pytest.mark.parametrize("bad", ["red", "#12345", "#12345g", "#1234567"])
def test_a_wrong_colour_is_named(bad: str) -> None:
    with pytest.raises(ValueError, match=bad):
        rgba(bad)


def test_a_scale_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="256 colours, got 3"):
        lut(["#000000"] * 3)
