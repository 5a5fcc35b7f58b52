"""Attention as pictures: thumbnails of all heads, large patterns in blocks of tokens, heads by two measures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from bokeh.models import DataRange1d
from numpy.typing import NDArray

from interp_widgets.analysis.attention import AttentionPatterns
from interp_widgets.figures.chart import QUIET
from interp_widgets.figures.picked_dots import PickedDots
from interp_widgets.figures.static.charts import Drawing, Named
from interp_widgets.figures.static.scene import POINT, Sheet
from interp_widgets.figures.theme import MARK, VIRIDIS256

THUMBNAIL = 48
"""Most cells along a side of a thumbnail."""
MOST_CELLS = 512
"""Most cells along a side of one head's map; of more tokens, each cell is a block."""


def block_starts(n: int, most: int) -> NDArray[np.int64]:
    """First token of each block of n tokens: of equal blocks, at most ``most``.

    >>> block_starts(5, 5).tolist(), block_starts(5, 3).tolist()
    ([0, 1, 2, 3, 4], [0, 2, 4])
    """
    return np.arange(0, n, max(1, -(-n // most)))


def in_blocks(matrix: NDArray[Any], most: int) -> NDArray[np.float64]:
    """A (tokens, tokens) matrix with one cell for each pair of blocks: the number of largest size in it.

    NaN where a pair of blocks has no number.

    >>> in_blocks(np.array([[1.0, 0, 0], [0.2, -0.8, 0], [0.1, 0.3, 0.6]]), 2).tolist()
    [[1.0, 0.0], [0.3, 0.6]]
    """
    starts = block_starts(len(matrix), most)
    if len(starts) == len(matrix):
        return np.asarray(matrix, dtype=np.float64)
    high, low = (
        extreme.reduceat(extreme.reduceat(matrix, starts, axis=0), starts, axis=1) for extreme in (np.fmax, np.fmin)
    )
    return np.where(np.abs(low) > np.abs(high), low, high).astype(np.float64)


def seen(pattern: NDArray[Any]) -> NDArray[Any]:
    """A pattern with NaN for the keys after each query, which no head sees."""
    pattern[np.triu_indices(len(pattern), 1)] = np.nan
    return pattern


def strongest_arcs(
    row: NDArray[np.float64], query: int, high: float, *, most: int = 5, least: float = 0.05
) -> list[tuple[int, int, float]]:
    """(query, key, share of `high`) of the keys with the largest numbers of a query, signed ones too.

    At most `most` keys, none below `least` of the largest one; keys that are not seen (NaN) have none.

    >>> strongest_arcs(np.array([0.75, 0.01, 0.25, np.nan]), 2, 1.0)
    [(2, 0, 0.75), (2, 2, 0.25)]
    """
    size = np.nan_to_num(np.abs(row))
    order = np.argsort(-size, kind="stable")[:most]
    return [(query, int(key), float(row[key]) / high) for key in order if size[key] > least * size[order[0]]]


def thumbnails(result: AttentionPatterns, **options: Any) -> NDArray[np.float32]:
    """(layers, heads, cells, cells) the patterns of all heads, of at most `THUMBNAIL` cells along a side.

    `options` are those of `AttentionPatterns.pattern`.
    """
    starts = block_starts(len(result.tokens), THUMBNAIL)
    cells, plain = len(starts), not any(options.values())
    drawn = np.empty((len(result.layers), len(result.heads), cells, cells), np.float32)
    for row, layer in enumerate(result.layers):
        for column, head in enumerate(result.heads):
            # 0 for the keys after a query, else at least 0; as they are, they need no copy in float64
            pattern = result.patterns[row, column] if plain else result.pattern(layer, head, **options)
            drawn[row, column] = np.fmax.reduceat(np.fmax.reduceat(pattern, starts, axis=0), starts, axis=1)
    drawn[..., *np.triu_indices(cells, 1)] = np.nan
    return drawn


def block_names(tokens: Sequence[str]) -> list[str]:
    """The names of one head's rows and columns: the tokens, or the first one of each block."""
    starts = block_starts(len(tokens), MOST_CELLS)
    if len(starts) == len(tokens):
        return list(tokens)
    return [f"{tokens[start]} … ({start})" for start in starts]


class HeadScatter(PickedDots):
    """A dot per head by two of its measures, coloured by its layer. A tap selects a row with ``layer`` and ``head``."""

    SIZE: ClassVar[tuple[int, int]] = (520, 380)
    EMPTY: ClassVar[str] = "No heads yet."

    def __init__(self) -> None:
        tips = [("head", "@layer.@head"), ("across", "@x{0.000}"), ("up", "@y{0.000}")]
        self.start_dots(
            "heads", "Heads by two measures", ("", ""), columns=("x", "y", "layer", "head", "color"), size=9,
            color_title="layer", tooltips=tips, height=340, x_range=DataRange1d(), y_range=DataRange1d(),
        )  # fmt: skip

    def update(
        self, x: NDArray[np.float64], y: NDArray[np.float64], axes: tuple[str, str], *, name: str = "",
        subtitle: str = "", grey: NDArray[np.bool_] | None = None,
    ) -> None:  # fmt: skip
        """Show two measures (layers, heads) of the heads, what the axes are, and which heads have no colour."""
        layers, heads = x.shape
        layer, head = (index.ravel().tolist() for index in np.indices(x.shape))
        self.colors.high = max(layers - 1, 1)
        shades = [VIRIDIS256[round(255 * at / max(layers - 1, 1))] for at in layer]
        if grey is not None:
            shades = [QUIET if muted else shade for muted, shade in zip(grey.ravel(), shades, strict=True)]
        self.figure.title.text = f"{f'{name}: ' if name else ''}{layers * heads} heads"
        self.figure.xaxis[0].axis_label, self.figure.yaxis[0].axis_label = axes
        rows = {"x": x.ravel().tolist(), "y": y.ravel().tolist(), "layer": layer, "head": head, "color": shades}
        self.fill(rows, subtitle=subtitle)

    def drawing(self) -> Drawing:
        rows, ring = dict(self.source.data), dict(self.picked.data)

        def draw(sheet: Sheet, axes: Any) -> Named:
            dots = axes.scatter(rows["x"], rows["y"], s=(7 * POINT) ** 2, c=rows["color"], lw=0)
            axes.scatter(ring["x"], ring["y"], s=(14 * POINT) ** 2, facecolors="none", edgecolors=MARK, lw=2 * POINT)
            each = zip(rows["layer"], rows["head"], rows["x"], rows["y"], strict=True)
            sheet.tip(dots, [f"head {layer}.{head}: {x:.3f}, {y:.3f}" for layer, head, x, y in each])
            return []

        return [], draw
