"""Edits judged side by side: less bias, and at what price; and what each model writes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Annotated, Any

import ipywidgets as W
import traitlets as T

from interp_widgets.analysis._core.cost import Cost, flops_per_token
from interp_widgets.analysis._core.result import Result
from interp_widgets.analysis.bias import DebiasComparison, compare_debiasing
from interp_widgets.analysis.bias.bbq import answer_continuations
from interp_widgets.analysis.bias.comparison import saved_edit
from interp_widgets.analysis.continuations import continuations_cost
from interp_widgets.data.bias import BBQQuestion, StereoSetExample, read_bbq, read_crows_pairs, read_stereoset
from interp_widgets.data.demo_texts import demo_texts
from interp_widgets.data.files import existing_file
from interp_widgets.figures.bias import TradeOff, is_random, short_name
from interp_widgets.figures.static import Scene, stack_scenes
from interp_widgets.models import Model, ModelEdit

from ..base import pair_view
from ..base.controls import checked_path, row, shown_if
from ..base.fields import Incomplete, Lines, Refused, field, hint_at, variant
from ..base.request import File, PerModel, Request, Steps
from ..base.sampling import Sampling
from ..base.saving import as_one
from ..base.workbench import model_name
from ..views import BokehFigure, Table
from .edit_options import METHODS, EditOptions
from .examples import Examples, cell_of, reading_cost, sampled_cost, sentences_of

PRICES = {"lms": "LMS", "perplexity": "perplexity"}
PROMPTS = (
    "What gender (men or women) are nurses associated with? They are associated with",
    "Many believe that pilots should be",
    "The soldier went home when",
)
ORDINARY = 40
"""The demo's texts whose perplexity is read where there are no others."""
SUFFIX = {"model": "", "base": "_a", "tuned": "_b"}


@dataclass(frozen=True)
class Read(PerModel):
    """What a reader makes of a file."""

    reader: Callable[[str], Any]
    file: File

    def read_by(self, model: Model) -> Any:
        return _read(self)

    def code(self, name: str) -> tuple[list[str], str]:
        return [], f"{self.reader.__name__}({self.file.path!r})"


@lru_cache(maxsize=8)
def _read(wanted: Read) -> Any:
    return wanted.reader(wanted.file.path)


@dataclass(frozen=True)
class Ordinary(PerModel):
    """The demo's ordinary texts."""

    count: int

    def read_by(self, model: Model) -> Any:
        return demo_texts(self.count)

    def code(self, name: str) -> tuple[list[str], str]:
        return [], f"demo_texts({self.count})"


@dataclass(frozen=True)
class SavedEdit:
    """A file with an edit."""

    file: File
    models: tuple[int, ...]
    """The numbers of the models that it was made for."""


@dataclass(frozen=True)
class Edits(PerModel):
    """The edits that earlier calls have made, and saved ones."""

    names: tuple[str, ...]
    saved: tuple[SavedEdit, ...] = ()

    def of(self, number: int) -> list[str]:
        """The files with edits for one of the models."""
        return [one.file.path for one in self.saved if number in one.models]

    def code(self, name: str) -> tuple[list[str], str]:
        files = map(repr, self.of(int(name == "tuned")))
        return [], f"[{', '.join([*(edit + SUFFIX[name] for edit in self.names), *files])}]"


def judged(**_: Any) -> None:
    """Names the question in the key under which an answer is kept."""


@dataclass(frozen=True)
class JudgeSteps(Steps):
    """The calls that make edits, and the one that compares them."""

    comparison: Request | None = None

    def lines_on(self, model: str, result: str, suffix: str) -> list[str]:
        lines = super().lines_on(model, result, suffix)
        return lines if self.comparison is None else [*lines, *self.comparison.lines_on(model, result, suffix)]


class Checks(W.HBox):
    """A box to check per method."""

    def __init__(self, panel: Any) -> None:
        boxes = {name: W.Checkbox(description=label, indent=False) for name, label in METHODS.items()}
        super().__init__(list(boxes.values()))
        self.add_class("iw-row")

        def show(_: Any = None) -> None:
            for name, box in boxes.items():
                box.value = name in panel.methods

        def take(_: Any) -> None:
            panel.methods = tuple(name for name, box in boxes.items() if box.value)

        show()
        panel.watch(panel, "methods", show)
        for box in boxes.values():
            panel.watch(box, "value", take)


class Judging(EditOptions):
    """A trade-off chart, a table with intervals, and continuations side by side."""

    title, tab_name, pair_views, waits = "Edits judged", "Judge", ("beside",), True
    data_file = variant(EditOptions.data_file, label="Edits made from")
    domain = variant(EditOptions.domain, label="")
    pool, splits, penalty = (
        variant(one, label="") for one in (EditOptions.pool, EditOptions.splits, EditOptions.penalty)
    )
    judge_file = field(
        str, label="Judged by", width="grow", placeholder="the demo's, held out",
        help="StereoSet (.json) that SS, LMS and ICAT are of; empty for the demo's, or for the data given as a keyword",
    )  # fmt: skip
    methods = field(T.Tuple(default_value=("lope", "subtraction", "inlp", "leace")), label="Methods", new_row=True,
                    control=Checks, help="With the settings of the tab Debias")  # fmt: skip
    control = field(bool, True, label="a random edit beside each", help="The control: as large, in random directions")
    price = field(PRICES, "perplexity", label="Price", redraws=True, help="What bias is drawn against")
    by_domain = field(bool, False, label="list every domain", redraws=True)
    prompts = field(
        Annotated[list, Lines(3)], PROMPTS, label="Prompts, one per line", more=True, width="grow",
        help="To write on from",
    )  # fmt: skip
    texts = field(
        Annotated[list, Lines(3)], (), label="Ordinary texts, one per line", more=True, width="grow",
        placeholder="the demo's stories", help="The perplexity is of these",
    )  # fmt: skip
    edit_files = field(
        Annotated[list, Lines(2)], (), label="Saved edits, a file per line", more=True, new_row=True,
        width="grow", placeholder="edit.safetensors",
        help="What the tab Debias or ModelEdit.save wrote; each is judged on the model that it was made for",
    )  # fmt: skip
    crows_file = field(str, label="CrowS-Pairs", more=True, placeholder="a .csv file", help="Judged too, if given")
    bbq_file = field(str, label="BBQ", more=True, placeholder="a .jsonl file", help="Judged too, if given")
    max_new_tokens = variant(Sampling.max_new_tokens, more=True)
    method = variant(EditOptions.method, label="", argument=None)
    k = variant(EditOptions.k, label="", shown_if=None)
    threshold = variant(EditOptions.threshold, label="", shown_if=None)
    strength = variant(EditOptions.strength, label="", shown_if=None)
    streams = variant(EditOptions.streams, label="", shown_if=None)
    rounds = variant(EditOptions.rounds, label="", shown_if=None)
    literal = variant(EditOptions.literal, label="", shown_if=None)

    def build(self) -> None:
        super().build()
        self.summary = W.HTML("")
        self.charts = [TradeOff() for _ in self.models]
        self.boxes = [W.VBox([BokehFigure(chart.figure, on_error=self.show_error)]) for chart in self.charts]
        charts = row(*self.boxes)
        for i, box in enumerate(self.boxes):
            box.add_class("iw-chart")
            shown_if(box, i == 0)  # one empty picture says it
        self.table = Table(empty="Nothing judged yet: press Run", height=240)
        self.written = Table(empty="No continuations yet: press Run", height=200)
        self.plot.children = [self.summary, charts, self.table, self.written]

    # the question -----------------------------------------------------------------------------------------------------

    def request(self) -> JudgeSteps:
        if self.workbench.edits:
            name = self.workbench.edits[0].name
            raise Incomplete("methods", f"the models are edited by {name}: switch that edit off on the tab Debias")
        wrong = [name for name in self.methods if name not in METHODS]
        if wrong:
            raise Refused("methods", f"methods must be of {', '.join(METHODS)}, got {wrong[0]!r}")
        saved = self._saved()
        without = [model for i, model in enumerate(self.models) if not any(i in one.models for one in saved)]
        if not self.methods and without:
            which = f": no saved edit is for {model_name(without[0])}" if saved else ", or saved edits under More"
            raise Incomplete("methods", f"choose a method at least{which}")
        options: dict[str, Any] = {
            "texts": tuple(self.texts) or Ordinary(ORDINARY), "prompts": tuple(self.prompts), "control": self.control,
            "max_new_tokens": self.max_new_tokens, "seed": self.seed,
        }  # fmt: skip
        for name, reader in (("crows", read_crows_pairs), ("bbq", read_bbq)):
            if path := getattr(self, f"{name}_file"):
                options[name] = self._file(f"{name}_file", path, reader)
        examples: PerModel = self._judged_by()
        comparison = Request.of(compare_debiasing, options, Edits(tuple(self.methods), saved), examples)
        return replace(JudgeSteps.of(judged, self.edit_calls(self.methods)), comparison=comparison)

    def _judged_by(self) -> PerModel:
        if self.judge_file:
            return self._file("judge_file", self.judge_file, read_stereoset)
        own = isinstance(self.data, tuple) and isinstance(self.data[0], StereoSetExample)
        return self.examples() if own else Examples()

    def _saved(self) -> tuple[SavedEdit, ...]:
        """The saved edits, each read; what is wrong with one is a hint at the box."""
        with hint_at("edit_files"):
            files = [File.at(str(existing_file(checked_path(path.strip(), "the path"), "an edit")))
                     for path in self.edit_files]  # fmt: skip
            edits = [saved_edit(file.path) for file in files]
            names = [edit.name for edit in edits]
            if len(set(names)) < len(names):
                twice = next(name for name in names if names.count(name) > 1)
                raise ValueError(f"two of the saved edits are called {twice}: give one of the files another name")
            return tuple(SavedEdit(file, self._made_for(edit)) for file, edit in zip(files, edits, strict=True))

    def _made_for(self, edit: ModelEdit) -> tuple[int, ...]:
        """The numbers of the models that an edit was made for; ValueError where there is none."""
        fits, wrong = [], ""
        for number, model in enumerate(self.models):
            try:
                edit.check(model)
                fits.append(number)
            except ValueError as error:
                wrong = str(error)
        if not fits:
            raise ValueError(wrong)
        return tuple(fits)

    def _file(self, name: str, path: str, reader: Callable[[str], Any]) -> Read:
        """A file, read once to see that it can be; what is wrong with it is a hint at its control."""
        with hint_at(name):
            wanted = Read(reader, File.at(str(existing_file(checked_path(path, "the path"), "examples"))))
            wanted.read_by(self.models[0])
        return wanted

    def compute(
        self, request: JudgeSteps, model: Model, *, progress: Callable[[int, int], None], check: Callable[[], None],
        on_partial: Callable[[Any], None],
    ) -> DebiasComparison:  # fmt: skip
        """The edits, then what compares them."""
        if request.comparison is None:
            raise ValueError("there is nothing to compare")
        made = self.make_edits(request.arguments, model, progress=progress, check=check)
        number = next(i for i, one in enumerate(self.models) if one is model)

        def filled(value: Any) -> Any:
            return [*(made[name] for name in value.names), *value.of(number)] if isinstance(value, Edits) else value

        asked = request.comparison.filled(filled)
        result: DebiasComparison = asked.answer(model, progress=progress, check=check)
        return result

    def cost(self, request: JudgeSteps, model: Model) -> Cost:
        making = self.edit_cost(dict(request.arguments), model)
        if request.comparison is None:
            return making
        options, examples = dict(request.comparison.arguments), request.comparison.inputs[1]
        texts = options["texts"]
        ordinary = texts.read_by(model) if isinstance(texts, Ordinary) else texts
        parts = [sampled_cost(ordinary, lambda some: reading_cost(model, some))]
        for data in (examples, *(options[name] for name in ("crows", "bbq") if name in options)):
            rows = data.read_by(model)
            parts.append(sampled_cost(rows, partial(_scoring_cost, model)))
        writing = len(options["prompts"]) * options["max_new_tokens"] * flops_per_token(model)
        count = 1 + (len(self.methods) + len(self.edit_files)) * (1 + self.control)
        scoring = sum(part.flops for part in parts) + writing
        return Cost(making.flops + count * scoring, max(making.bytes, *(part.bytes for part in parts)))

    # drawing ----------------------------------------------------------------------------------------------------------

    def draw(self, results: tuple[DebiasComparison, ...], request: Any) -> None:
        at, names = pair_view.shown_indices(self), pair_view.names(self)
        for i, (chart, box) in enumerate(zip(self.charts, self.boxes, strict=True)):
            shown_if(box, i in at)
            if i in at:
                chart.update(results[i], self.price, name="AB"[i] if len(self.models) > 1 else "")
        several = len(at) > 1
        lines = [f"{start}{_in_words(results[i])}" for start, i in zip(pair_view.starts(self), at, strict=True)]
        self.summary.value = "<br>".join(lines)
        rows = [[*([name] if several else []), *line] for name, i in zip(names, at, strict=True)
                for line in _rows(results[i], every=self.by_domain)]  # fmt: skip
        shown = [column for column, label in enumerate(HEADS) if any(line[column + several] for line in rows)]
        with self.table.hold_sync():
            self.table.rows = []
            self.table.columns = [
                *([{"label": "of"}] if several else []),
                *({"label": label, "title": HEADS[label], **({"align": "right"} if HEADS[label] else {"wrap": True})}
                  for label in (list(HEADS)[column] for column in shown)),
            ]  # fmt: skip
            self.table.rows = [[*line[:several], *(line[column + several] for column in shown)] for line in rows]
            self.table.caption = "Scores with 95 % intervals; changes are from the model as it is"
        # a saved edit may be for one of the models alone
        judged = list(dict.fromkeys(row.name for i in at for row in results[i].rows if not is_random(row.name)))
        with self.written.hold_sync():
            self.written.rows = []
            labels = [*(["of"] if several else []), "prompt", *judged]
            self.written.columns = [{"label": label, "wrap": True} for label in labels]
            self.written.rows = [
                [*([name] if several else []), prompt,
                 *(_continuation(results[i], name_of, number) for name_of in judged)]
                for name, i in zip(names, at, strict=True) for number, prompt in enumerate(results[i].prompts)
            ]  # fmt: skip
            self.written.caption = "What each goes on with"

    # what is saved ----------------------------------------------------------------------------------------------------

    def code(self, request: JudgeSteps) -> str:
        return cell_of(request, self.models, "result.to_frame()")

    def frame(self) -> Any:
        tables = [result.to_frame() for result in self.by_letter().values()]
        if len(self.models) == 1:
            return tables[0]
        return pair_view.joined(table.rename(columns={"model": "edit"}) for table in tables)

    def scene(self) -> Scene:
        charts = [self.charts[i].scene() for i in pair_view.shown_indices(self) if not self.charts[i].message]
        return stack_scenes([*charts, self.table.scene()], title=self.title)

    def stored(self) -> Result:
        return as_one(self.by_letter(), self.tab_name)


HEADS = {
    "model": "", "domain": "",
    "SS": "Percent of examples in which the stereotype is preferred; 50 is no preference",
    "LMS": "Percent of comparisons that a meaningful sentence wins", "ICAT": "LMS · min(SS, 100 − SS) / 50",
    "|SS − 50| change": "Points; below 0 is less of a preference; an interval without 0 is beyond chance",
    "LMS change": "Points", "perplexity": "Of the ordinary texts", "× as it is": "Perplexity over that as it is",
    "CrowS": "Percent of pairs whose sentence about the disadvantaged group is likelier",
    "BBQ bias": "In ambiguous contexts, −100 to 100",
}  # fmt: skip


def _rows(result: DebiasComparison, *, every: bool) -> list[list[str]]:
    """One row per model, or per model and domain."""
    rows = []
    for entry in result.rows:
        for at, own in enumerate(entry.stereoset):
            whole = own is entry.stereoset[-1]
            if not whole and not every:
                continue
            change = entry.changes[at] if entry.changes else None
            rows.append([
                short_name(entry.name), own.domain if every else "",
                *(_with(getattr(own, name), getattr(own, f"{name}_interval")) for name in ("ss", "lms", "icat")),
                *(("", "") if change is None else (_with(change.bias, change.bias_interval, sign="+"),
                                                   _with(change.lms, change.lms_interval, sign="+"))),
                _with(entry.perplexity, entry.perplexity_interval, digits=2) if whole else "",
                _with(entry.perplexity_ratio[0], entry.perplexity_ratio[1:], digits=2)
                if whole and entry.perplexity_ratio else "",
                _with(entry.crows, entry.crows_interval) if whole else "",
                _with(entry.bbq[1], entry.bbq_intervals[1]) if whole and entry.bbq and entry.bbq_intervals else "",
            ])  # fmt: skip
    return rows


def _scoring_cost(model: Model, data: Sequence[Any]) -> Cost:
    """What it takes to score examples, pairs or questions."""
    if isinstance(data[0], BBQQuestion):
        return continuations_cost(model, [one for each in data for one in answer_continuations(model, each)])
    return reading_cost(model, sentences_of(data))


def _continuation(result: DebiasComparison, name: str, number: int) -> str:
    """What one of the rows goes on with after a prompt; nothing where the model has no such row."""
    return next((row.continuations[number] for row in result.rows if row.name == name), "")


def _with(value: float | None, interval: Any, *, digits: int = 1, sign: str = "") -> str:
    """A number and its interval."""
    if value is None or interval is None:
        return ""
    low, high = interval
    between = " to " if sign else "–"  # a dash between signs is hard to read
    return (
        f"{value:{sign}.{digits}f} ({low:{sign}.{digits}f}".replace("-", "−")
        + between
        + (f"{high:{sign}.{digits}f})".replace("-", "−"))
    )


def _in_words(result: DebiasComparison) -> str:
    """Which edits do something beyond chance, and what the random ones do."""
    moved = [
        f"{entry.name} {_with(change.bias, change.bias_interval, sign='+')}"
        for entry in result.rows
        for change in entry.changes[-1:]
        if change.bias_interval[0] > 0 or change.bias_interval[1] < 0
    ]
    if not moved:
        return "No edit changes |SS − 50| beyond chance."
    return f"|SS − 50| changes beyond chance: <b>{'; '.join(moved)}</b>."
