"""The Route tab: token × route, what each route would write, where they disagree."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

import ipywidgets as W
import numpy as np

from interp_widgets.analysis.mixture_of_depths import RoutingResult
from interp_widgets.figures.chart import visible_token
from interp_widgets.figures.labels import visible
from interp_widgets.figures.static import Scene, stack_scenes

from ..base.controls import row, shown_if
from ..views import Heatmap, Table, TokenStrip
from .request import TOP, Untrained
from .speed import SpeedTable

if TYPE_CHECKING:
    from .viewer import MoDRoutingViewer

KEY = (
    "<b>underlined</b> the ensemble and the last layer disagree · <b>×</b> this route's likeliest token is not the "
    "ensemble's"
)
SPARSE_KEY = (
    " · <b>hatched</b> a route that the token does not use · <b>▔</b> from here down no layer is needed for this "
    "token's prediction"
)


class RouteTab:
    """Strip and map of the prompt's tokens, a table of the clicked token's routes, and measured speed."""

    def __init__(self, panel: MoDRoutingViewer) -> None:
        self.panel = panel
        self.state = W.HTML("")
        self.strip = TokenStrip(empty="No prompt yet", max_lines=4)
        self.heat = Heatmap(
            row_name="route", column_name="token", y_label="route", x_label="token read",
            value_label="weight", empty="No routing yet: press Run", mark_name="ensemble ≠ last layer",
        )  # fmt: skip
        self.key = W.HTML(KEY)
        self.key.add_class("iw-hint")
        self.story = W.HTML("")
        self.tables = [Table(empty="No routing yet: press Run", height=300) for _ in panel.models]
        self.speed = SpeedTable(panel)
        self.listed = W.VBox([self.story, *self.tables])
        for box, flex in ((self.listed, "3 1 480px"), (self.speed.box, "2 1 430px")):
            box.add_class("iw-column")
            box.layout.flex, box.layout.width = flex, "auto"
        below = row(self.listed, self.speed.box)
        below.layout.align_items = "flex-start"
        self.box = W.VBox([self.state, self.strip, self.heat, self.key, below])
        for name in ("iw-column", "iw-dims"):
            self.box.add_class(name)
        self._painting = False
        panel.watch(self.strip, "selected", self._strip_clicked)
        panel.watch(self.heat, "pinned", self._cell_clicked)

    # drawing ----------------------------------------------------------------------------------------------------------

    def paint(self) -> None:
        """Bring the tab up to the results on the screen."""
        self._painting = True  # other tokens drop selection and cursor, which is not the user's doing
        try:
            self.state.value = self._state()
            columns = 1 + max(one.k for one in self.panel.results)
            self.listed.layout.flex = f"3 1 {120 * columns}px"  # of many routes the table has a row of its own
            self._paint_map()
            self._paint_strip()
        finally:
            self._painting = False
        self.paint_token()

    def paint_token(self) -> None:
        """Show the token that is looked at."""
        panel = self.panel
        if not panel.results:
            return
        at = self.position
        self._painting = True
        try:
            self.strip.selected = at
            if self.heat.shape[1] > at:
                self.heat.cross = [self._row_of_note(at), at]
        finally:
            self._painting = False
        shown = [(("" if len(panel.models) == 1 else f"{'AB'[slot]}: "), panel.results[slot]) for slot in panel.at]
        self.story.value = "<br>".join(f"{letter}{_story(one, min(at, one.n_positions - 1))}" for letter, one in shown)
        for place, table in enumerate(self.tables):
            shown_if(table, place < len(shown))
            if place < len(shown):
                letter, one = shown[place]
                _fill(table, one, min(at, one.n_positions - 1), letter)

    @property
    def position(self) -> int:
        """The token that is looked at."""
        last = self.panel.results[self.panel.at[-1]].n_positions - 1
        return self.panel.prompt_token if 0 <= self.panel.prompt_token <= last else last

    def _row_of_note(self, at: int) -> int:
        """The row to put the cursor in: of the route with the largest weight."""
        return int(self.panel.results[self.panel.at[-1]].main_route[at])

    def _state(self) -> str:
        """What is looked at, above all whether it was tuned."""
        panel, said = self.panel, []
        request = panel.drawn
        if request is None:
            return ""
        for slot, one in enumerate(panel.results):
            letter = "" if len(panel.models) == 1 else f"<b>{'AB'[slot]}</b>: "
            key = request.mixtures[slot]
            where = f"layers {one.layers[0]} to {one.layers[-1]}" if one.k > 1 else f"layer {one.layers[0]}"
            if isinstance(key, Untrained):
                said.append(
                    f"{letter}<b>This mixture is untrained</b>: its router is random and its norms are copies of the "
                    f"final norm, over {where}. The weights below mean nothing yet; tune it on the Tune tab."
                )
            else:
                name = escape(panel.shelf.chosen(slot).name)
                said.append(f"{letter}<b>{name}</b>: {one.k} routes over {where}.")
            used = f"{one.top_k} of {one.k} routes per token" if one.top_k < one.k else "dense: all routes"
            last = ~one.agreement[-1]
            said[-1] += (
                f" {used[0].upper()}{used[1:]}; the ensemble and the last layer alone disagree at {int(last.sum())} of "
                f"{one.n_positions} tokens."
            )
            if one.top_k < one.k:
                said[-1] += (
                    f" {one.skipped_share:.0%} of all layers at all tokens are not needed for their predictions."
                )
        return "<br>".join(said)

    def _paint_map(self) -> None:
        panel, heat = self.panel, self.heat
        shown = [panel.results[slot] for slot in panel.at]
        one = shown[-1]
        if len(shown) == 2 and (shown[0].tokens != one.tokens or shown[0].layers != one.layers):
            heat.empty = "A difference needs mixtures over the same layers and tokens: look at A or B"
            heat.set_matrix(None)
            return
        difference = len(shown) == 2
        weights = np.asarray(one.weights, dtype=np.float64).T
        if difference:
            matrix = weights - np.asarray(shown[0].weights, dtype=np.float64).T
        else:
            matrix = np.where((weights == 0) & (one.top_k < one.k), np.nan, weights)
        which = "" if len(panel.results) == 1 else {"A": "A · ", "B": "B · ", "difference": "B − A · "}[panel.shown]
        with heat.hold_sync():
            heat.title = f"{which}Weight of each route at each token, with the route's likeliest next token"
            heat.value_label = "weight, B − A" if difference else "weight"
            bounds: dict[str, Any] = {"signed": True} if difference else {"vmin": 0.0, "vmax": 1.0}
            heat.set_matrix(
                matrix, rows=[f"layer {layer}" for layer in one.layers], columns=list(one.tokens),
                texts=_texts(one), notes=_notes(one), **bounds,
            )  # fmt: skip
            apart = ~one.agreement
            heat.crossed = [] if difference else np.argwhere(apart).tolist()
            heat.edges = [] if difference else _edges(one)
            heat.column_marks = [] if difference else _spans(apart[-1])
            if difference:
                heat.row_bars = b""
            else:
                heat.set_row_bars(weights.mean(axis=1), maximum=1.0, label="mean")
        shown_if(self.key, not difference)
        self.key.value = KEY + (SPARSE_KEY if one.top_k < one.k else "")

    def _paint_strip(self) -> None:
        one = self.panel.results[self.panel.at[-1]]
        sparse = one.top_k < one.k
        with self.strip.hold_sync():
            self.strip.set_tokens(list(one.tokens), special=list(one.special))
            if sparse:
                skipped = (one.n_layers - 1 - one.exit_layer).astype(np.float64)
                self.strip.set_values(skipped, vmin=0.0, vmax=float(max(one.k - 1, 1)))
                told = "shaded by the number of layers not needed"
            else:
                self.strip.set_values(1.0 - one.weights[:, -1], vmin=0.0, vmax=1.0)
                told = "shaded by the weight of earlier layers"
            self.strip.label = f"Prompt, {told}"
            self.strip.labels = [_tip(one, at) for at in range(one.n_positions)]
            self.strip.marks = _spans(~one.agreement[-1])

    # what a user does -------------------------------------------------------------------------------------------------

    def _strip_clicked(self, change: Any) -> None:
        if not self._painting:
            self.panel.prompt_token = change.new

    def _cell_clicked(self, change: Any) -> None:
        if not self._painting and change.new:
            self.panel.prompt_token = change.new[1]

    def scene(self) -> Scene:
        """Strip and map."""
        return stack_scenes([self.strip.scene(width=900), self.heat.scene()])


# ---- numbers to words


def _texts(one: RoutingResult) -> list[str]:
    """Each cell's text: what the route would write."""
    ids = one.route_ids[..., 0]
    names = {int(token): visible_token(one.token_text(int(token))) for token in np.unique(ids)}
    return [names[token] for token in ids.ravel().tolist()]


def _notes(one: RoutingResult) -> list[str]:
    """What the tooltip says of each cell."""
    ids, chances = one.route_ids[..., 0].ravel().tolist(), one.route_probability[..., 0].ravel().tolist()
    agree, apart = one.agreement.ravel().tolist(), one.kl.ravel().tolist()
    return [
        f"likeliest {visible(one.token_text(token))}, {chance:.3f}; {'as' if same else 'not as'} the ensemble; "
        f"KL {max(kl, 0.0):.2f} nats"
        for token, chance, same, kl in zip(ids, chances, agree, apart, strict=True)
    ]


def _edges(one: RoutingResult) -> list[list[int]]:
    """Where a column's layers are needed no more."""
    after = one.exit_layer - one.layers[0] + 1
    return [[int(line), at] for at, line in enumerate(after.tolist()) if line < one.k]


def _spans(flags: Any) -> list[list[int]]:
    """Runs of True as [start, end)."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], np.asarray(flags, dtype=np.int8), [0]])))
    return [[int(start), int(end)] for start, end in edges.reshape(-1, 2)]


def _top(one: RoutingResult, route: int | None, at: int) -> tuple[str, float]:
    """Likeliest token and its probability of a route, or of the ensemble."""
    ids, chances = (
        (one.ensemble_ids[at], one.ensemble_probability[at])
        if route is None
        else (one.route_ids[route, at], one.route_probability[route, at])
    )
    return one.token_text(int(ids[0])), float(chances[0])


def _tip(one: RoutingResult, at: int) -> str:
    token, chance = _top(one, None, at)
    last, own = _top(one, one.k - 1, at)
    return (
        f"weights {', '.join(f'{weight:.2f}' for weight in one.weights[at].tolist())}; exit layer "
        f"{int(one.exit_layer[at])}; ensemble {visible(token)} {chance:.2f}, last layer {visible(last)} {own:.2f}"
    )


def _story(one: RoutingResult, at: int) -> str:
    token, chance = _top(one, None, at)
    last, own = _top(one, one.k - 1, at)
    agree = token == last
    rest = (
        f"and so says the last layer alone ({own:.2f})"
        if agree
        else f"the last layer alone says “{escape(visible(last))}” ({own:.2f}): <b>they disagree</b>"
    )
    needed = int(one.exit_layer[at])
    return (
        f"After “{escape(visible(one.tokens[at]))}” ({at}) the ensemble says “{escape(visible(token))}” "
        f"({chance:.2f}), {rest}. Exit layer: {needed} of {one.n_layers - 1}."
    )


def _fill(table: Table, one: RoutingResult, at: int, letter: str) -> None:
    """The likeliest tokens of the ensemble and of every route."""
    heads: list[dict[str, Any]] = [{"label": "ensemble"}]
    for route, layer in enumerate(one.layers):
        tip = f"KL from the ensemble: {max(float(one.kl[route, at]), 0.0):.2f} nats"
        heads.append({"label": f"layer {layer} · {one.weights[at, route]:.2f}", "title": tip})
    columns = [
        (one.ensemble_ids[at], one.ensemble_probability[at]),
        *zip(one.route_ids[:, at], one.route_probability[:, at], strict=True),
    ]
    rows = [
        [f"{_chance(float(chances[rank]))} {visible(one.token_text(int(ids[rank])))}" for ids, chances in columns]
        for rank in range(min(TOP, one.ensemble_ids.shape[-1]))
    ]
    with table.hold_sync():
        table.rows, table.selected = [], -1
        table.columns, table.rows = heads, rows
        table.caption = (
            f"{letter}Likeliest next tokens after “{visible(one.tokens[at])}” ({at}), with probabilities; beside each "
            "layer its weight"
        )


def _chance(value: float) -> str:
    return f"{value:.3f}" if value >= 5e-4 else "<.001"
