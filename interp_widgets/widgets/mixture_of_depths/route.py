"""Routes: the router's weights at each token, what each route predicts, and where routes disagree."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping
from functools import partial
from html import escape
from typing import Annotated, Any

import ipywidgets as W
import numpy as np

from interp_widgets.analysis._core.cost import Cost, flops_per_token, row_bytes
from interp_widgets.analysis.mixture_of_depths import RoutingResult, routing
from interp_widgets.figures.chart import visible_token
from interp_widgets.figures.labels import visible
from interp_widgets.figures.static import Scene, stack_scenes
from interp_widgets.models import Model

from ..base import pair_view
from ..base.controls import shown_if
from ..base.description import Description, decimals, plain
from ..base.fields import Bounds, Refused, Text, field
from ..views import Heatmap, Table, TokenStrip
from .mixtures import Untrained
from .reading import MixtureQuestion, MixtureReading, opening_text

TOP = 8
"""Number of top tokens stored per route."""
KEY = (
    "<b>underlined</b> the ensemble and the last layer disagree · <b>×</b> this route's likeliest token is not the "
    "ensemble's"
)
SPARSE_KEY = (
    " · <b>hatched</b> a route that the token does not use · <b>▔</b> from here down no layer is needed for this "
    "token's prediction"
)


def read_routes(
    model: Model, prompt: str, *, top_k: int, progress: Callable[[int, int], None], check: Callable[[], None]
) -> RoutingResult:
    """`routing` with as many tokens per route as the table lists; `top_k` 0: as the mixture was tuned."""
    top = min(TOP, model.d_vocab)
    return routing(model, prompt, top=top, top_k=top_k or None, progress=progress, check=check)


class MixtureRouting(MixtureReading):
    """Strip and map of the prompt's tokens, and a table of the clicked token's routes."""

    analysis = staticmethod(read_routes)
    named = ("Prompt", "Routes per token", "View")
    pair_views = ("difference", "beside")

    prompt = field(
        Annotated[str, Text(2)], label="Prompt", width="grow", help="What the model reads",
        required="the prompt is empty: type a text for the model to read",
    )  # fmt: skip
    prompt_token = field(Annotated[int, Bounds(low=-1)], -1, selects=True, validated_by_result=True)
    """The selected token; -1 for the last."""
    routes = field(
        Annotated[int, Bounds(0, lambda panel: max(int(model.n_layers) for model in panel.models))],
        label="Routes per token", width="short", new_row=True, argument="top_k",
        help="Number of routes per token, those with the largest weights; 0: as many as in tuning",
    )  # fmt: skip

    def defaults(self, keywords: set[str]) -> dict[str, Any]:
        return super().defaults(keywords) | ({} if "prompt" in keywords else {"prompt": opening_text(self.models)})

    # layout -----------------------------------------------------------------------------------------------------------

    def build(self) -> None:
        letters = [""] if len(self.models) == 1 else [" A", " B"]
        self.mixture_boxes = [W.Dropdown(description=f"Mixture{letter}", options=[("", 0)]) for letter in letters]
        hint = W.HTML("0: as tuned")
        self.inputs.children = self.controls.rows(before={"routes": self.mixture_boxes}, after={"routes": [hint]})
        self.state, self.key_line, self.description = W.HTML(""), W.HTML(KEY), W.HTML("")
        self.strips = pair_view.SideBySide(
            self, lambda: TokenStrip(empty="No prompt yet", max_lines=4, legend=True, mark_name="they differ")
        )
        self.maps = pair_view.SideBySide(
            self, lambda: Heatmap(
                row_name="route", column_name="token", y_label="route", x_label="token read",
                value_label="weight", empty="No routing yet.", mark_name="ensemble ≠ last layer",
            )
        )  # fmt: skip
        self.strip, self.heat = self.strips.views[0], self.maps.views[0]
        for line in (hint, self.key_line):
            line.add_class("iw-hint")
        shown_if(self.key_line, False)
        self.tables = [Table(empty="No routing yet.", height=300) for _ in self.models]
        self.table_boxes = [W.VBox([table]) for table in self.tables]
        for second in self.table_boxes[1:]:
            shown_if(second, False)
        self.strips.box.add_class("iw-after")
        shown_if(self.strips.box, self.screen is None)  # a screen has its own above the panels
        shown_if(self.description, self.screen is None)  # and shows this text beside the panel
        self.arrange(
            [self.strips.box, self.maps.box, self.key_line], below=[self.state, self.description, *self.table_boxes]
        )
        self._filling = False  # True while the program, not the user, fills the drop-down lists
        self._list_mixtures()
        for slot, box in enumerate(self.mixture_boxes):
            self.watch(box, "value", partial(self._mixture_chosen, slot))
        for strip in self.strips.views:
            self.on_user(strip, "selected", lambda change: self._token_clicked(change.new))
        for heat in self.maps.views:
            self.on_user(heat, "pinned", lambda change: self._token_clicked(change.new[1]) if change.new else None)
        self.watch(self, "prompt", lambda _: setattr(self, "prompt_token", -1))
        self.watch(self, ["mixtures", "chosen"], lambda _: self._list_mixtures())

    def _list_mixtures(self) -> None:
        """Update the drop-down lists of mixtures."""
        self._filling = True
        try:
            for slot, box in enumerate(self.mixture_boxes):
                options = [(mixture.name, index) for index, mixture in enumerate(self.mixtures[slot])]
                if tuple(box.options) != tuple(options):
                    box.options = options
                box.value = self.chosen[slot]
        finally:
            self._filling = False

    def _mixture_chosen(self, slot: int, change: Any) -> None:
        index = change.new
        if not self._filling and index is not None and self.chosen[slot] != index:
            self.select_mixture(slot, index, adopt=True)

    def _token_clicked(self, at: int) -> None:
        self.prompt_token = at

    # the request ------------------------------------------------------------------------------------------------------

    def request(self) -> MixtureQuestion:
        question = super().request()
        for k in map(self.k_of, range(len(self.models))):
            if self.routes > k:
                raise Refused(
                    "routes",
                    f"routes per token must be in 0..{k} for a mixture of {k} routes, got {self.routes}; 0: as tuned",
                )
        return question

    def refresh(self, limit: float | None = None) -> None:
        """Refresh; for a newly tuned or opened mixture with a more generous time limit."""
        before = () if self.shown_request is None else self.shown_request.mixtures
        read = {key[0] for key in before if not isinstance(key, Untrained)}
        fresh = {self.mixtures[slot][index].identity for slot, index in enumerate(self.chosen) if index} - read
        limit = self.live_seconds if limit is None else limit
        super().refresh(max(limit, self.opening_limit) if fresh else limit)

    def cost(self, request: MixtureQuestion, model: Model) -> Cost:
        """One forward pass, and the unembedding of every route."""
        tokens = max(1, len(model.tokens(dict(request.arguments)["prompt"])))
        reading = 2.0 * model.d_model * model.d_vocab * (self.k_of(self.slot_of(model)) + 1)
        size = row_bytes(model, tokens, tokens) + 8.0 * tokens * model.d_vocab
        return Cost(tokens * (flops_per_token(model) + reading), size)

    def k_of(self, slot: int) -> int:
        """Number of routes of a model's selected mixture."""
        mixture = self.chosen_mixture(slot)
        return self.k if mixture.learned is None else mixture.learned.k

    def choices(self) -> Mapping[str, tuple[int | Collection[str], str]]:
        return {"prompt_token": (max(result.n_positions for result in self.results), "the tokens of this prompt")}

    # drawing ----------------------------------------------------------------------------------------------------------

    def draw(self, results: tuple[RoutingResult, ...], request: MixtureQuestion) -> None:
        super().draw(results, request)
        self.state.value = "<br>".join(
            f"{name}{self._describe(slot, request.mixtures[slot], result)}"
            for slot, (name, result) in enumerate(zip(self._letters("<b>{}</b>: "), results, strict=False))
        )
        for view, heat in self.maps.drawn():
            self._draw_map(view, heat)
        for view, strip in self.strips.drawn():
            self._draw_strip(view, strip)
        shown_if(self.key_line, self.shown != "difference")
        self.key_line.value = KEY + (SPARSE_KEY if self._last.top_k < self._last.k else "")

    def draw_selection(self) -> None:
        """Show the selected token."""
        if not self.results:
            return
        at = self.position
        for strip in self.strips.shown:
            strip.selected = at if at < len(strip.tokens) else -1
        for view, heat in self.maps.drawn():
            result = self.results[pair_view.models_of(view)[-1]]
            if heat.shape[1] > at:
                heat.cross = [int(result.main_route[at]), at]  # the route with the largest weight
        slots, letters = pair_view.shown_indices(self), self._letters("{}: ")
        shown = [(letters[slot], self.results[slot], min(at, self.results[slot].n_positions - 1)) for slot in slots]
        self.description.value = "<br>".join(f"{letter}{_routing_text(result, at)}" for letter, result, at in shown)
        for index, table in enumerate(self.tables):
            shown_if(self.table_boxes[index], index < len(shown))
            if index < len(shown):
                letter, result, at = shown[index]
                _fill(table, result, at, letter)

    def describe_selection(self) -> Description | None:
        if not self.results:
            return None
        at, first = self.position, self.results[0]
        if any(result.n_positions <= at for result in self.results):
            return None
        starts = pair_view.all_starts(self.results)
        lines = tuple(
            f"{start}{plain(_routing_text(result, at))}" for start, result in zip(starts, self.results, strict=True)
        )
        heading = f"Router weights at “{visible(first.tokens[at])}”"
        if any(result.layers != first.layers for result in self.results):
            return Description(heading, lines)
        rows = tuple(
            (f"layer {layer}", *(decimals(float(result.weights[at, route])) for result in self.results))
            for route, layer in enumerate(first.layers)
        )
        names = [letter.strip() or "weight" for letter in pair_view.letters(self.results)]
        return Description(heading, lines, ("weight of", *names), rows)

    @property
    def position(self) -> int:
        """Index of the selected token."""
        last = self._last.n_positions - 1
        return self.prompt_token if 0 <= self.prompt_token <= last else last

    @property
    def _last(self) -> RoutingResult:
        """The result in view; for a difference the second."""
        result: RoutingResult = self.results[pair_view.shown_indices(self)[-1]]
        return result

    def _letters(self, form: str) -> list[str]:
        """Prefixes of the texts about each model; empty for a single one."""
        return [""] if len(self.models) == 1 else [form.format(letter) for letter in pair_view.LETTERS]

    def _describe(self, slot: int, key: Hashable, result: RoutingResult) -> str:
        """A description of the mixture, above all whether it was tuned."""
        where = f"layers {result.layers[0]} to {result.layers[-1]}" if result.k > 1 else f"layer {result.layers[0]}"
        if isinstance(key, Untrained):
            text = (
                f"<b>This mixture is untrained</b>: its router is random and its norms are copies of the "
                f"final norm, over {where}. Its weights mean nothing yet; tune it on the Tune tab."
            )
        else:
            mixture = self.chosen_mixture(slot)
            text = f"<b>{escape(mixture.name)}</b>: {result.k} routes over {where}."
            text += f" {escape(mixture.about)}" if mixture.about else ""
        used = f"{result.top_k} of {result.k} routes per token" if result.top_k < result.k else "Dense: all routes"
        text += (
            f" {used}; the ensemble and the last layer alone disagree at {int((~result.agreement[-1]).sum())} of "
            f"{result.n_positions} tokens."
        )
        if result.top_k < result.k:
            text += f" {result.skipped_share:.0%} of all layer × token computations are not needed for the predictions."
        return text

    def _draw_map(self, view: str, heat: Heatmap) -> None:
        shown = [self.results[slot] for slot in pair_view.models_of(view)]
        result, difference = shown[-1], view == "difference"
        matrix = pair_view.of_view(view, [np.asarray(each.weights, dtype=np.float64).T for each in self.results])
        if matrix is None or shown[0].tokens != result.tokens or shown[0].layers != result.layers:
            heat.empty = "A difference needs mixtures over the same layers and tokens: choose A beside B"
            heat.set_matrix(None)
            return
        with heat.hold_sync():
            which = pair_view.title_start(self, view)
            random = any(isinstance(key, Untrained) for key in self._keys_of(view))
            heat.title = (
                f"{which}{'Random weight (untrained)' if random else 'Weight'} of each route at each token, with the "
                "route's likeliest next token"
            )
            heat.value_label = "weight, B − A" if difference else "weight"
            bounds: dict[str, Any] = {"signed": True} if difference else {"vmin": 0.0, "vmax": 1.0}
            unused = (matrix == 0) & (not difference and result.top_k < result.k)
            heat.set_matrix(
                np.where(unused, np.nan, matrix), rows=[f"layer {layer}" for layer in result.layers],
                columns=list(result.tokens), texts=_texts(result), notes=_notes(result), **bounds,
            )  # fmt: skip
            heat.crossed = [] if difference else np.argwhere(~result.agreement).tolist()
            heat.edges = [] if difference else _edges(result)
            heat.column_marks = [] if difference else _spans(~result.agreement[-1])
            if difference:
                heat.row_bars = b""
            else:
                heat.set_row_bars(matrix.mean(axis=1), maximum=1.0, label="mean")

    def _keys_of(self, view: str) -> list[Hashable]:
        """The keys of the mixtures that a view shows."""
        return [self.shown_request.mixtures[slot] for slot in pair_view.models_of(view)]

    def _draw_strip(self, view: str, strip: TokenStrip) -> None:
        result: RoutingResult = self.results[pair_view.models_of(view)[-1]]
        letter = f"{view}: " if self.shown == "beside" else ""
        heat = next(heat for name, heat in self.maps.drawn() if name == view)
        with strip.hold_sync():
            strip.set_tokens(list(result.tokens), special=list(result.special))
            if result.top_k < result.k:
                skipped = (result.n_layers - 1 - result.exit_layer).astype(np.float64)
                strip.set_values(skipped, vmin=0.0, vmax=float(max(result.k - 1, 1)))
                strip.label = f"{letter}Prompt, shaded by layers not needed"
            elif heat.is_empty:
                strip.set_values(None)
                strip.label = f"{letter}Prompt"
            else:  # the map's last row, in the map's colours
                strip.set_values(heat.matrix[-1], vmin=heat.vmin, vmax=heat.vmax)
                strip.lut, strip.lut_dark = heat.lut, heat.lut_dark
                what = "B − A of the last layer's weight" if view == "difference" else "the last layer's weight"
                strip.label = f"{letter}Prompt, shaded by {what} as in the map"
            strip.labels = [_tip(result, at) for at in range(result.n_positions)]
            strip.marks = _spans(~result.agreement[-1])

    # what is saved ----------------------------------------------------------------------------------------------------

    def code(self, request: MixtureQuestion) -> str:
        top_k = dict(request.arguments)["top_k"]
        return self.reading_cell(request, "routing", top=TOP, **({"top_k": top_k} if top_k else {}))

    def scene(self) -> Scene:
        """Strip and map."""
        return stack_scenes([self.strips.scene(width=900), self.maps.scene()])


# ---- numbers as text


def _texts(result: RoutingResult) -> list[str]:
    """Text of each cell: the route's likeliest token."""
    ids = result.route_ids[..., 0]
    names = {int(token): visible_token(result.token_text(int(token))) for token in np.unique(ids)}
    return [names[token] for token in ids.ravel().tolist()]


def _notes(result: RoutingResult) -> list[str]:
    """Tooltip of each cell."""
    ids, chances = result.route_ids[..., 0].ravel().tolist(), result.route_probability[..., 0].ravel().tolist()
    agree, apart = result.agreement.ravel().tolist(), result.kl.ravel().tolist()
    return [
        f"likeliest {visible(result.token_text(token))}, {chance:.3f}; {'same as' if same else 'differs from'} the "
        f"ensemble; KL {max(kl, 0.0):.2f} nats"
        for token, chance, same, kl in zip(ids, chances, agree, apart, strict=True)
    ]


def _edges(result: RoutingResult) -> list[list[int]]:
    """Where, in each column, the layers stop being needed."""
    after = result.exit_layer - result.layers[0] + 1
    return [[int(line), at] for at, line in enumerate(after.tolist()) if line < result.k]


def _spans(flags: Any) -> list[list[int]]:
    """Runs of True as [start, end)."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], np.asarray(flags, dtype=np.int8), [0]])))
    return [[int(start), int(end)] for start, end in edges.reshape(-1, 2)]


def _top(result: RoutingResult, route: int | None, at: int) -> tuple[str, float]:
    """Top token of a route, or of the ensemble, and its probability."""
    ids, chances = (
        (result.ensemble_ids[at], result.ensemble_probability[at])
        if route is None
        else (result.route_ids[route, at], result.route_probability[route, at])
    )
    return result.token_text(int(ids[0])), float(chances[0])


def _tip(result: RoutingResult, at: int) -> str:
    token, chance = _top(result, None, at)
    last, last_chance = _top(result, result.k - 1, at)
    return (
        f"weights {', '.join(f'{weight:.2f}' for weight in result.weights[at].tolist())}; exit layer "
        f"{int(result.exit_layer[at])}; ensemble {visible(token)} {chance:.2f}, "
        f"last layer {visible(last)} {last_chance:.2f}"
    )


def _routing_text(result: RoutingResult, at: int) -> str:
    token, chance = _top(result, None, at)
    last, last_chance = _top(result, result.k - 1, at)
    agree = token == last
    rest = (
        f"and so does the last layer alone ({last_chance:.2f})"
        if agree
        else f"the last layer alone “{escape(visible(last))}” ({last_chance:.2f}): <b>they disagree</b>"
    )
    needed = int(result.exit_layer[at])
    return (
        f"After “{escape(visible(result.tokens[at]))}” ({at}) the ensemble predicts “{escape(visible(token))}” "
        f"({chance:.2f}), {rest}. Exit layer: {needed} of {result.n_layers - 1}."
    )


def _fill(table: Table, result: RoutingResult, at: int, letter: str) -> None:
    """List the top tokens of the ensemble and of every route."""
    heads: list[dict[str, Any]] = [{"label": "ensemble"}]
    for route, layer in enumerate(result.layers):
        tip = f"KL from the ensemble: {max(float(result.kl[route, at]), 0.0):.2f} nats"
        heads.append({"label": f"layer {layer} · {result.weights[at, route]:.2f}", "title": tip})
    columns = [
        (result.ensemble_ids[at], result.ensemble_probability[at]),
        *zip(result.route_ids[:, at], result.route_probability[:, at], strict=True),
    ]
    rows = [
        [f"{_chance(float(chances[rank]))} {visible(result.token_text(int(ids[rank])))}" for ids, chances in columns]
        for rank in range(min(TOP, result.ensemble_ids.shape[-1]))
    ]
    with table.hold_sync():
        table.rows, table.selected = [], -1
        table.columns, table.rows = heads, rows
        table.caption = (
            f"{letter}Likeliest next tokens after “{visible(result.tokens[at])}” ({at}), with probabilities; each "
            "layer's weight is in its heading"
        )


def _chance(value: float) -> str:
    return f"{value:.3f}" if value >= 5e-4 else "<.001"
