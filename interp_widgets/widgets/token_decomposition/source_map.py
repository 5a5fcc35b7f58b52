"""The map: tokens shaded by their shares, the source × layer map, and the sums."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import Any

import ipywidgets as W
import numpy as np

from interp_widgets.analysis.token_decomposition import LogitShareResult
from interp_widgets.figures.labels import fixed, visible

from ..base import pair_view
from ..base.controls import shown_if
from ..views import Heatmap, TokenStrip
from .decomposition_panel import DecompositionPanel
from .rows import COLOR_LABELS, PROBABILITIES, Rows, cell_notes, cell_texts

NEGLIGIBLE = 1e-3
"""Relative errors below it are not reported by layer."""
NO_P_OF_DIFFERENCE = (
    "B − A is not tested: each model's p compares a token's share of this logit with its shares of other logits, which "
    "does not tell whether the two models differ."
)


class SourceMap:
    """Draws the results that its explorer holds; a selection only moves the cursor."""

    def __init__(self, panel: DecompositionPanel) -> None:
        self.panel = panel
        self.strips = pair_view.SideBySide(
            panel, lambda: TokenStrip(
                density_label="share of the norms, last layer", empty="Nothing was read yet.", max_lines=6, legend=True
            )
        )  # fmt: skip
        self.maps = pair_view.SideBySide(
            panel, lambda: Heatmap(
                row_name="part of", column_name="layer", y_label="source token", empty="No map yet.",
                x_label="stream entering layer",
            )
        )  # fmt: skip
        self.strip, self.heat = self.strips.views[0], self.maps.views[0]
        self.sums = W.HTML("")
        self.strips.box.add_class("iw-strips")
        shown_if(self.strips.box, panel.screen is None)  # a screen has its own tokens above the panels
        self.parts = [self.strips.box, self.maps.box]
        for strip in self.strips.views:
            panel.on_user(strip, "selected", self._token_clicked)
        for heat in self.maps.views:
            panel.on_user(heat, "pinned", self._pinned)
            panel.on_user(heat, "cross", self.maps.follow)
        self._tokens: tuple[str, ...] | None = None
        self._noted: dict[str, tuple[tuple[Rows, ...], list[str]]] = {}

    # drawing ----------------------------------------------------------------------------------------------------------

    def paint(self) -> None:
        """Draw the explorer's results."""
        rows = self.panel.rows
        self.sums.value = "<br>".join([self._adding_up(), self._logit_in_words(), *self.chance_lines()])
        names = tuple(rows[0].result.tokens.tokens[: rows[0].sources])
        if names != self._tokens:
            self._tokens = names
            for strip in self.strips.views:
                strip.set_tokens(names, special=list(rows[0].result.tokens.special[: rows[0].sources]))
        for view, strip in self.strips.drawn():
            self._paint_strip(view, strip, rows)
        for view, heat in self.maps.drawn():
            self._paint_map(view, heat, rows)

    def _paint_map(self, view: str, heat: Heatmap, rows: tuple[Rows, ...]) -> None:
        panel = self.panel
        shown = tuple(rows[index] for index in pair_view.models_of(view))
        matrix = pair_view.of_view(view, [each.matrix(panel.color) for each in rows])
        if matrix is None:
            a, b = (each.n_layers for each in rows)
            heat.empty = (
                f"A difference needs models with the same number of layers, these have {a} and {b}: choose A beside B"
            )
            heat.set_matrix(None)
            return
        low, high, signed = self._range(view, rows)
        largest = float(np.nanmax(np.abs(matrix), initial=0))
        beyond = f", beyond the scale up to {fixed(largest, 2)}" if signed and largest > high else ""
        with heat.hold_sync():
            heat.title = self._title(view) + beyond
            heat.value_label = COLOR_LABELS[panel.color] + view_suffix(view)
            heat.set_matrix(
                matrix, rows=shown[-1].labels, columns=shown[-1].columns, vmin=low, vmax=high, signed=signed,
                texts=cell_texts(shown, panel.color, panel.threshold), notes=self._notes(view, shown),
            )  # fmt: skip
            self._paint_bars(view, heat, rows)
        same = panel.color == "target_logit" and all(each.result.logit.foil is None for each in shown)
        compared = shown[0].beyond() if len(shown) == 1 and same else None
        grey = [] if compared is None else np.flatnonzero(~compared).tolist()
        heat.muted = [[row, column] for row in grey for column in range(len(shown[0].columns))]

    def paint_selection(self) -> None:
        """Show the selected source and layer."""
        panel, source = self.panel, self.panel.source
        for strip in self.strips.shown:
            strip.selected = source if 0 <= source < len(strip.tokens) else -1
        for heat in self.maps.shown:
            rows, columns = heat.shape  # the final norm comes last, in models of different depths too
            column = columns - 1 if panel.column < 0 else min(panel.column, columns - 1)
            chosen = [source, column] if 0 <= source < rows else []
            with heat.hold_sync():
                heat.cross = chosen or ([-1, column] if panel.column >= 0 and rows else [])
                heat.pinned = chosen

    def _paint_strip(self, view: str, strip: TokenStrip, rows: tuple[Rows, ...]) -> None:
        shares = [each.logit_share()[:-1] for each in rows]
        largest = pair_view.symmetric_limit(view, [shares])
        letter = f"{view}: " if self.panel.shown == "beside" else ""
        logit = logit_names(rows[index] for index in pair_view.models_of(view))
        strip.label = f"{letter}Context: share of the {logit}{view_suffix(view)}"
        strip.value_label = f"share of the logit{view_suffix(view)}"
        strip.set_values(self._shades(view, rows), vmin=-largest, vmax=largest, signed=True)
        norms = [each.norm_share(-1)[:-1] for each in rows]
        density = None if view == "difference" else pair_view.of_view(view, norms)
        strip.set_density(density, maximum=pair_view.symmetric_limit(view, [norms]))

    def _shades(self, view: str, rows: tuple[Rows, ...]) -> Any:
        """The tokens' shares of the logit; of one model only those beyond chance, where they were compared."""
        one = len(pair_view.models_of(view)) == 1
        return pair_view.of_view(view, [each.share_beyond() if one else each.logit_share()[:-1] for each in rows])

    def shade_texts(self, prompt: TokenStrip, response: TokenStrip) -> bool:
        """Shade the tokens of a screen by their shares of the logit; False if they are not the context's."""
        rows, view = self.panel.rows, "B" if self.panel.shown == "beside" else self.panel.shown
        shares = [each.logit_share()[:-1] for each in rows]
        values = self._shades(view, rows) if rows else None
        names = [*prompt.tokens, *response.tokens]
        if values is None or tuple(names[: len(values)]) != tuple(rows[0].result.tokens.tokens[: len(values)]):
            return False
        largest, cut = pair_view.symmetric_limit(view, [shares]), len(prompt.tokens)
        all_values = np.concatenate([values, np.full(len(names) - len(values), np.nan)])
        for strip, what, part in (
            (prompt, "Prompt", all_values[:cut]), (response, "Response", all_values[cut:]),
        ):  # fmt: skip
            logits = logit_names(rows[index] for index in pair_view.models_of(view))
            strip.label = f"{what}: share of the {logits}{view_suffix(view)}"
            strip.value_label = f"logit share{view_suffix(view)}"
            strip.labels = []
            strip.set_values(part, vmin=-largest, vmax=largest, signed=True)
        return True

    def _paint_bars(self, view: str, heat: Heatmap, rows: tuple[Rows, ...]) -> None:
        kind = self.panel.bars
        if kind == "none":
            heat.set_row_bars(None)
            return
        bars = [each.logit_share() if kind == "logit" else each.norm_share(-1) for each in rows]
        signed = kind == "logit" or view == "difference"
        label = "logit share" if kind == "logit" else "norm share"
        heat.set_row_bars(
            pair_view.of_view(view, bars), maximum=pair_view.symmetric_limit(view, [bars]), signed=signed, label=label
        )

    def _notes(self, view: str, shown: tuple[Rows, ...]) -> list[str]:
        if view not in self._noted or shown != self._noted[view][0]:
            self._noted[view] = shown, cell_notes(shown)
        return self._noted[view][1]

    def _range(self, view: str, rows: tuple[Rows, ...]) -> tuple[float, float, bool]:
        """Ends of the colour scale, the same for A and B; probabilities range from 0 to 1."""
        color, difference = self.panel.color, view == "difference"
        if color in PROBABILITIES and not difference:
            return 0.0, 1.0, False
        if color != "target_logit":
            largest = pair_view.symmetric_limit(view, [[each.matrix(color) for each in rows]])
            return (-largest if difference else 0.0), largest, difference
        sink = any(each.result.logit.sink for each in rows)
        largest = pair_view.symmetric_limit(view, [[each.setting_the_scale(color, sink=sink) for each in rows]])
        return -largest, largest, True

    # words ------------------------------------------------------------------------------------------------------------

    def _title(self, view: str) -> str:
        panel, tokens = self.panel, self.panel.rows[0].result.tokens
        at = f"“{visible(tokens.tokens[tokens.position])}” ({tokens.position})"
        rest = ", partial" if any(each.result.partial for each in panel.rows) else ""
        start = pair_view.title_start(panel, view)
        return f"{start}Parts of the residual stream at {at}, by source token{rest}"

    def _adding_up(self) -> str:
        """How well the parts add up, as text."""
        errors = []
        for letter, rows in zip(pair_view.letters(self.panel.rows), self.panel.rows, strict=True):
            tokens = rows.result.tokens
            worst = np.nanmax(tokens.error) if np.isfinite(tokens.error).any() else np.nan
            if not np.isfinite(worst):
                errors.append(f"{letter}not computed yet")
                continue
            where = f" (worst: layer {rows.columns[int(np.nanargmax(tokens.error))]})" if worst >= NEGLIGIBLE else ""
            errors.append(f"{letter}<b>{format_power(float(worst))}</b>{where}")
        tokens = self.panel.rows[0].result.tokens
        if tokens.biases == "spread":
            terms = "Parts with the biases spread over them" + (" + BOS" if tokens.bos is not None else "")
        else:
            terms = f"Parts + {self.panel.rows[0].rest.replace(', ', ' + ')}"
        return f"{terms} equal the residual stream of every layer to a relative error of {', '.join(errors)}."

    def _logit_in_words(self) -> str:
        """The sum of the logit's shares, as text."""
        sentences = []
        for letter, rows in zip(pair_view.letters(self.panel.rows), self.panel.rows, strict=True):
            logit = rows.result.logit
            tokens = float(np.sum(logit.share))
            terms = [("tokens", tokens)]
            if logit.bos is not None:
                terms.append(("BOS", logit.bos))
            if rows.rest != "BOS":
                terms.append(("biases", logit.bias - (logit.bos or 0.0)))
            words = " ".join(f"{'−' if term < 0 else '+'} {name} {abs(term):.2f}" for name, term in terms)
            total = f"<b>{fixed(tokens + logit.bias, 2)}</b>; the model says {fixed(logit.logit, 2)}"
            sentences.append(
                f"{letter}{escape(logit_name(logit, capital=True))}: {words.removeprefix('+ ')} = {total}."
            )
        return "<br>".join(sentences)

    def chance_lines(self) -> list[str]:
        """Which shares are beyond chance, or that they were not compared, as HTML lines."""
        untold = "Not compared with chance yet: a token may have as large a share of any other logit."
        return self.compared_lines() or [untold]

    def compared_lines(self) -> list[str]:
        """Which shares are beyond chance, as HTML lines; none where they were not compared."""
        rows = self.panel.rows
        if any(each.result.logit.p is None for each in rows):
            return []
        lines = [
            letter + escape(each.result.logit.in_words())
            for letter, each in zip(pair_view.letters(rows), rows, strict=True)
        ]
        untested = [NO_P_OF_DIFFERENCE] if self.panel.shown == "difference" else []
        return [*(f"{line}; the others have no colour." for line in lines), *untested]

    # what a user does -------------------------------------------------------------------------------------------------

    def _token_clicked(self, change: Any) -> None:
        self.panel.source = change.new

    def _pinned(self, change: Any) -> None:
        if change.new:
            self.panel.select(*change.new)
        else:
            self.panel.source = -1


def view_suffix(view: str) -> str:
    """Suffix of the name of a view's quantity."""
    return ", B − A" if view == "difference" else ""


def logit_names(rows: Iterable[Rows]) -> str:
    """Names of the logits that are shared out."""
    return " and ".join(sorted({logit_name(each.result.logit) for each in rows}))


def logit_name(logit: LogitShareResult, *, capital: bool = False) -> str:
    """Name of the logit: ``logit of “·Paris”`` or ``logit of “·Paris” minus that of “·Rome”``."""
    name = f"{'Logit' if capital else 'logit'} of “{visible(logit.target_token)}”"
    return name if logit.foil is None else f"{name} minus that of “{visible(logit.foil_token)}”"


def format_power(value: float) -> str:
    """A small number by its power of ten.

    >>> format_power(3.14e-7), format_power(0.0)
    ('3e-7', '0')
    """
    if value == 0:
        return "0"
    head, tail = f"{value:.0e}".split("e")
    return f"{head}e{int(tail)}"
