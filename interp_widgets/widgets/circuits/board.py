"""The scoreboard on the screen: methods by circuits, and one method's map of a circuit beside the truth."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from html import escape
from typing import Annotated, Any

import ipywidgets as W
import numpy as np
import traitlets as T

from interp_widgets.analysis.circuits import (
    METHODS,
    CircuitRanking,
    CircuitScoreboard,
    circuit_ranking,
    circuit_scoreboard,
)
from interp_widgets.compute.cache import results as cache
from interp_widgets.figures.labels import capitalised
from interp_widgets.figures.static import Scene, stack_scenes
from interp_widgets.models import Model
from interp_widgets.models.circuits import CIRCUITS, PART_KINDS, load_circuit

from ..base.code import call, cell
from ..base.controls import instruction
from ..base.description import Description, plain
from ..base.fields import Bounds, Seed, field
from ..base.jobs import Derived
from ..base.panel import Panel
from ..base.request import Request
from ..base.sources import home_of
from ..views import Heatmap
from .opened_case import OpenedCase

BEYOND = 0.05
"""Share of random rankings under which a number differs from chance."""
FLOPS = 3e9
"""Of one method on one circuit, roughly."""
SHORT = {
    "path patching, denoising": "paths, denoising",
    "path patching, noising": "paths, noising",
    "edge attribution, integrated": "edges, integrated",
    "direct logit attribution": "direct attribution",
}
"""Names of methods where there is little room."""
LISTED = 4
"""Parts listed of a ranking."""
UNIT = "average precision"


@dataclass(frozen=True)
class _Cost:
    flops: float
    bytes: float


class CircuitBoard(Panel):
    """Which method finds the circuit that was built in? Methods by circuits of known truth, beside chance.

    Each number is a method's average precision on the circuit of `load_circuit`: 1 if all parts that matter come before
    all others. What chance does stands above each column, and a number is grey where at least 5% of random rankings are
    as good. A click on a cell draws that method's map of the circuit, with a cross on the parts that matter. A button
    opens the map's prompt in a workbench of its own, where what matters is folded away.

    ``CircuitBoard()``, or on a model or workbench as other panels are, whose numbers do not enter. ``methods`` may hold
    names and functions of (model, case) as `circuit_scoreboard` takes them. `run()` returns its
    :class:`CircuitScoreboard`, which `result` keeps.

    Source: as `circuit_scoreboard`.

    Example:
        >>> board = CircuitBoard(methods=["attention", "zero ablation"], circuit="busy_idle", method="attention")
        >>> board.run().precision("zero ablation", "induction", "heads")
        1.0
        >>> board.close()
    """

    title, pair_views = "Circuits of known truth", ()
    kind = field(
        {kind: kind for kind in PART_KINDS}, "heads", label="Find the", redraws=True,
        help="Which parts of a circuit are ranked; methods that rank no such parts have no row",
    )  # fmt: skip
    case = field(
        Annotated[int, Bounds(0, lambda panel: panel.last_case)], 0, label="Prompt of the circuit", selects=True,
        help="Which of the circuit's prompts the map is about, from 0; the number above is the mean over all of them",
    )  # fmt: skip
    seed = field(Seed, 0, label="Seed", more=True, help="Of the circuits' weights and of the random rankings")
    methods = field(T.Tuple())
    """Names of methods or functions of (model, case); empty for all of the package."""
    method = field(str, "zero ablation", selects=True, validated_by_result=True)
    """The selected row."""
    circuit = field({name: name for name in CIRCUITS}, "backup", selects=True)
    """The selected column."""

    def __init__(self, model: Any = None, tuned: Any = None, **keywords: Any) -> None:
        super().__init__(load_circuit("induction")[0] if model is None else model, tuned, **keywords)

    @property
    def request_models(self) -> tuple[Any, ...]:
        return self.models[:1]  # the result is about the circuits

    @property
    def last_case(self) -> int:
        return self.results[0].cases[self.results[0].circuits.index(self.circuit)] - 1 if self.results else 3

    def build(self) -> None:
        super().build()
        self.summary = W.HTML("")
        self.board = Heatmap(
            row_name="method", column_name="circuit", value_label=UNIT, numbers_from=0.0, number_decimals=2,
            heads_name="chance\n95% from\nto", color_bar=False, max_height=640, empty="No methods compared yet",
        )  # fmt: skip
        self.words = W.HTML("")
        self.map = Heatmap(
            value_label="score", numbers_from=0.0, max_height=420,
            empty="Click a number to see that method's map of the circuit.",
        )  # fmt: skip
        self.ranking: CircuitRanking | None = None
        """What the map shows."""
        self._ranked = Derived(self, self._draw_ranking, title="Ranking", channel="ranking", quiet=True)
        self.on_user(self.board, "pinned", self._pinned)
        board = W.VBox([self.board])
        board.add_class("iw-column")
        self.opened_case = OpenedCase(self)
        """The prompt of the map in a workbench."""
        self.arrange([self.summary, board], beside=[self.words, self.map], below=[self.opened_case.box], width=420)

    def end(self) -> None:
        self.opened_case.close()
        super().end()

    # computing --------------------------------------------------------------------------------------------------------

    def request(self) -> Request:
        methods = {"methods": self.methods} if self.methods else {}
        return Request.of(circuit_scoreboard, {**methods, "seed": self.seed})

    def compute(
        self, request: Any, model: Model, *, progress: Callable[[int, int], None], check: Callable[[], None],
        on_partial: Any,
    ) -> CircuitScoreboard:  # fmt: skip
        key = (type(self).__qualname__, request)  # one board for every model
        found: CircuitScoreboard | None = None if self.answers.fresh else cache.get(key)
        if found is None:
            found = circuit_scoreboard(**dict(request.arguments), progress=progress, check=check)
            cache.put(key, found)
        return found

    def cost(self, request: Any, model: Model) -> _Cost:
        methods = dict(request.arguments).get("methods")
        return _Cost(FLOPS * len(CIRCUITS) * (len(methods) if methods else len(METHODS)), 2e8)

    def code(self, request: Any) -> str:
        functions: list[Any] = ["circuit_scoreboard", "circuit_ranking"]
        functions += [written_as(method) for method in self.methods if callable(method)]
        names = [method.__name__ if callable(method) else repr(method) for method in self.methods]
        options = {"seed": self.seed} if self.seed else {}
        chosen = next((name for name in names if self.method in (name, name.strip("'\""))), repr(self.method))
        board = call("circuit_scoreboard", *([f"[{', '.join(names)}]"] if names else []), **options)
        one = call("circuit_ranking", chosen, repr(self.circuit), kind=self.kind, case=self.shown_case, **options)
        return cell(functions, [], [f"result = {board}", f"ranking = {one}", "result.to_frame()"])

    def choices(self) -> Mapping[str, tuple[int | Collection[str], str]]:
        return {"method": (self.results[0].methods, "the methods on the board")}

    # drawing ----------------------------------------------------------------------------------------------------------

    @property
    def shown_case(self) -> int:
        """The prompt of the map: `case`, or the circuit's last one."""
        return min(self.case, self.last_case)

    def draw(self, results: tuple[CircuitScoreboard, ...], request: Any) -> None:
        result, at = results[0], PART_KINDS.index(self.kind)
        scores = result.average_precision[:, :, at]
        rows = [number for number, row in enumerate(scores) if np.isfinite(row).any()]
        columns = [number for number, value in enumerate(result.chance[:, at]) if np.isfinite(value)]
        self._rows, self._columns = [result.methods[row] for row in rows], [result.circuits[one] for one in columns]
        shown, p = scores[np.ix_(rows, columns)], result.p[:, :, at][np.ix_(rows, columns)]
        chance = [
            tuple(f"{end[one, at]:.2f}" for end in (result.chance, result.chance_low, result.chance_high))
            for one in columns
        ]
        with self.board.hold_sync():
            self.board.set_matrix(
                shown, vmin=0.0, vmax=1.0, rows=[SHORT.get(name, name) for name in self._rows],
                columns=[name.replace("_", " ") for name in self._columns],
                texts=["" if np.isnan(value) else f"{value:.2f}" for value in shown.ravel()],
                notes=[
                    "" if np.isnan(value) else f"chance {chance[number % len(columns)][0]}, p {_p(value)}"
                    for number, value in enumerate(p.ravel())
                ],
            )  # fmt: skip
            self.board.heads = ["\n".join(lines) for lines in chance]
            self.board.muted = np.argwhere(p >= BEYOND).tolist()
            self.board.title = f"{capitalised(UNIT)} of each method's ranking of the {self.kind}"
        self.summary.value = self._summary(shown, p)

    def _summary(self, shown: Any, p: Any) -> str:
        """How many cells find everything, and how many are chance."""
        scored = np.isfinite(shown)
        best = [f"<b>{escape(name)}</b>" for name, row in zip(self._rows, shown, strict=True) if np.nanmin(row) == 1]
        found = f"All {self.kind} that matter are found in every circuit by {_listed(best)}"
        if not best:
            found = f"No method finds all {self.kind} that matter in every circuit"
        return (
            f"<p>The circuits were written by hand, so the parts that matter are known; this is about the methods, not "
            f"about {escape(self.models[0].name)}. {found}. {int((p[scored] >= BEYOND).sum())} of {int(scored.sum())} "
            f"numbers are grey: at least 5% of random rankings are as good.</p>"
        )

    def _pinned(self, _: Any) -> None:
        if self.board.pinned:
            row, column = self.board.pinned
            with self.batch_changes():
                self.method, self.circuit = self._rows[max(row, 0)], self._columns[max(column, 0)]

    def _question_of(self) -> tuple[Any, ...] | None:
        """What the map is asked for; None where the method ranks no parts of the kind that the circuit has."""
        if not self.results or self.method not in self._rows or self.circuit not in self._columns:
            return None
        return self.method, self.circuit, self.kind, self.shown_case, self.seed

    def draw_selection(self) -> None:
        key = self._question_of()
        inside = self.method in self._rows and self.circuit in self._columns
        at = [self._rows.index(self.method), self._columns.index(self.circuit)] if inside else []
        self.board.cross = self.board.pinned = at
        if key is None:
            self._ranked.forget()
            self._clear(f"{self.method} ranks no {self.kind} of {self.circuit}. " * bool(self.results))
            return
        function = next((one for one in self.methods if getattr(one, "__name__", "") == self.method), self.method)

        def work(job: Any) -> CircuitRanking:
            found = cache.get((type(self).__qualname__, key, function))
            if found is None:
                job.check()
                _, circuit, kind, case, seed = key
                found = circuit_ranking(function, circuit, kind=kind, case=case, seed=seed)
                cache.put((type(self).__qualname__, key, function), found)
            return found

        self._ranked.ask(key, work)
        self._draw_ranking()

    def _draw_ranking(self) -> None:
        key = self._question_of()
        found: CircuitRanking | None = None if key is None else self._ranked.of(key)
        if self._ranked.failure or key is None:
            self._clear("")
        elif found is not None and found is not self.ranking:
            self._show_ranking(found)

    def _clear(self, sentence: str) -> None:
        self.ranking = None
        self.map.set_matrix(None)
        self.map.title = ""
        self.opened_case.offer(None)
        self.words.value = f"<p>{escape(sentence)}{instruction('Click a number to see its map.')}</p>"

    def _show_ranking(self, found: CircuitRanking) -> None:
        self.ranking = found
        self.opened_case.offer(found, self.seed)
        names = {
            "tokens": ("", "token"), "heads": ("layer", "head"), "neurons": ("layer", "neuron"),
            "edges": ("sender", "receiver"),
        }  # fmt: skip
        with self.map.hold_sync():
            self.map.row_name, self.map.column_name = names[found.kind]
            self.map.y_label, self.map.x_label = names[found.kind]
            self.map.set_matrix(
                found.values, rows=found.rows, columns=found.columns,
                notes=["matters" if one else "does not matter" for one in found.matters.ravel()],
            )  # fmt: skip
            self.map.crossed = np.argwhere(found.matters).tolist()
            self.map.title = f"{capitalised(found.method)} on {found.circuit.replace('_', ' ')}; crossed: what matters"
        self.words.value = "".join(f"<p>{line}</p>" for line in self.in_words(found))

    def in_words(self, found: CircuitRanking) -> list[str]:
        """The prompt, what the method puts first and what it misses, as HTML."""
        flat, order = found.matters.ravel(), found.order()
        first = [
            f"{escape(found.part(number))}{' ✓' if flat[number] else ''}" for number in order[: max(LISTED, flat.sum())]
        ]
        lines = [
            f"“{escape(found.prompt)}” → <b>{escape(found.answer)}</b>, not {escape(found.foil)}.",
        ]
        if not flat.any():
            return [*lines, f"No {found.kind.removesuffix('s')} matters for this prompt."]
        lines.append(
            f"{capitalised(UNIT)} <b>{found.average_precision:.2f}</b> on this prompt; by chance {found.chance:.2f} "
            f"({found.chance_low:.2f} to {found.chance_high:.2f})."
        )
        return [*lines, f"First (✓ matters): {', '.join(first)}."]

    def describe_selection(self) -> Description | None:
        if self.ranking is None:
            return None
        heading = f"{self.ranking.method} on {self.ranking.circuit.replace('_', ' ')}"
        return Description(heading, tuple(map(plain, self.in_words(self.ranking))))

    def scene(self) -> Scene:
        """The board, and the map below it."""
        maps = [self.board] + [self.map] * (self.ranking is not None)
        return stack_scenes([one.scene() for one in maps])


def written_as(method: Any) -> Any:
    """What defines a method in copied code: of a probe that is in no module its function, below ``@probe``."""
    return method if home_of(method.__name__, method) else getattr(method, "analysis", method)


def _listed(names: list[str]) -> str:
    return ", ".join(names[:-1]) + f" and {names[-1]}" if len(names) > 1 else "".join(names)


def _p(value: Any) -> str:
    return f"{value:.2g}" if value >= 0.001 else "< 0.001"
