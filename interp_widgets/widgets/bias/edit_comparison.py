"""Edits compared: how much less bias, at what cost, and what each model writes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Annotated, Any

import ipywidgets as W

from interp_widgets.analysis._core.cost import Cost, flops_per_token
from interp_widgets.analysis.bias import DebiasComparison, compare_debiasing
from interp_widgets.analysis.bias.bbq import answer_continuations
from interp_widgets.analysis.bias.debiasing_comparison import saved_edit
from interp_widgets.analysis.continuations import continuations_cost
from interp_widgets.data.bias import BBQQuestion, StereoSetExample, read_bbq, read_crows_pairs, read_stereoset
from interp_widgets.data.demo_texts import demo_texts
from interp_widgets.data.files import existing_file
from interp_widgets.figures.bias import TradeOff, is_random, short_name
from interp_widgets.figures.static import Scene, stack_scenes
from interp_widgets.models import Model, ModelEdit

from ..base import pair_view
from ..base.controls import checked_path, row, shown_if
from ..base.fields import Incomplete, Lines, Refused, Several, field, hint_at, variant
from ..base.request import File, PerModel, Request, Steps
from ..base.sampling import Sampling
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
"""Number of the demo's texts for the perplexity if the user gives none."""
SUFFIX = {"model": "", "base": "_a", "tuned": "_b"}


@dataclass(frozen=True)
class ParsedFile(PerModel):
    """The examples that a reader returns for a file."""

    reader: Callable[[str], Any]
    file: File

    def read_by(self, model: Model) -> Any:
        return _parsed(self)

    def code(self, name: str) -> tuple[list[str], str]:
        return [], f"{self.reader.__name__}({self.file.path!r})"


@lru_cache(maxsize=8)
def _parsed(source: ParsedFile) -> Any:
    return source.reader(source.file.path)


@dataclass(frozen=True)
class DemoTexts(PerModel):
    """The demo's ordinary texts."""

    count: int

    def read_by(self, model: Model) -> Any:
        return demo_texts(self.count)

    def code(self, name: str) -> tuple[list[str], str]:
        return [], f"demo_texts({self.count})"


@dataclass(frozen=True)
class SavedEdit:
    """A saved edit."""

    file: File
    models: tuple[int, ...]
    """Indices of the models that it was made for."""


@dataclass(frozen=True)
class Edits(PerModel):
    """The edits that earlier calls make, by name, and saved ones."""

    names: tuple[str, ...]
    saved: tuple[SavedEdit, ...] = ()

    def files_for(self, index: int) -> list[str]:
        """Paths of the saved edits for one of the models."""
        return [edit.file.path for edit in self.saved if index in edit.models]

    def code(self, name: str) -> tuple[list[str], str]:
        files = map(repr, self.files_for(int(name == "tuned")))
        return [], f"[{', '.join([*(edit + SUFFIX[name] for edit in self.names), *files])}]"


def compare_edits(**_: Any) -> None:
    """Never called: names the comparison in the cache key of its result."""


@dataclass(frozen=True)
class JudgeSteps(Steps):
    """The calls that make edits, and the one that compares them."""

    comparison: Request | None = None

    def lines_on(self, model: str, result: str, suffix: str) -> list[str]:
        lines = super().lines_on(model, result, suffix)
        return lines if self.comparison is None else [*lines, *self.comparison.lines_on(model, result, suffix)]


class MethodBoxes(W.HBox):
    """A checkbox per method."""

    def __init__(self, panel: Any) -> None:
        boxes = {name: W.Checkbox(description=label, indent=False) for name, label in METHODS.items()}
        super().__init__(list(boxes.values()))
        self.add_class("iw-row")

        showing = [False]

        def show(_: Any = None) -> None:
            showing[0] = True  # a box that changes would choose what the boxes show so far
            for name, box in boxes.items():
                box.value = name in panel.methods
            showing[0] = False

        def choose(_: Any) -> None:
            if not showing[0]:
                panel.methods = tuple(name for name, box in boxes.items() if box.value)

        show()
        panel.watch(panel, "methods", show)
        for box in boxes.values():
            panel.watch(box, "value", choose)


class EditComparison(EditOptions):
    """A chart of bias against cost, a table of scores with intervals, and continuations side by side."""

    title, tab_name, pair_views, manual_run = "Comparison of edits", "Judge", ("beside",), True
    data_file = variant(EditOptions.data_file, label="Edits made from")
    domain = variant(EditOptions.domain, label="")
    pool, splits, penalty = (
        variant(option, label="") for option in (EditOptions.pool, EditOptions.splits, EditOptions.penalty)
    )
    judge_file = field(
        str, label="Judged on", width="grow", placeholder="the demo's held-out data", personal=True,
        help="StereoSet file (.json) for SS, LMS and ICAT; empty: the demo's, or StereoSet examples passed as data=",
    )  # fmt: skip
    methods = field(Several(METHODS, ("lope", "subtraction", "inlp", "leace")), label="Methods", new_row=True,
                    control=MethodBoxes, help="Edits to make, with the settings of the Debias tab")  # fmt: skip
    control = field(
        bool, True, label="a random edit for each", help="Control: an edit of the same size in random directions"
    )
    price = field(PRICES, "perplexity", label="Cost", redraws=True, help="Measure of an edit's cost on the other axis")
    by_domain = field(bool, False, label="list every domain", redraws=True)
    prompts = field(
        Annotated[list, Lines(3)], PROMPTS, label="Prompts, one per line", more=True, width="grow",
        help="Prompts that each model continues",
    )  # fmt: skip
    texts = field(
        Annotated[list, Lines(3)], (), label="Ordinary texts, one per line", more=True, width="grow",
        placeholder="the demo's stories", help="Texts for the perplexity",
    )  # fmt: skip
    edit_files = field(
        Annotated[list, Lines(2)], (), label="Saved edits, a file per line", more=True, new_row=True,
        width="grow", placeholder="edit.safetensors", personal=True,
        help="Files from the Debias tab or ModelEdit.save; each is judged on the model that it was made for",
    )  # fmt: skip
    crows_file = field(
        str, label="CrowS-Pairs", more=True, placeholder="a .csv file", help="Also scored if given", personal=True
    )
    bbq_file = field(
        str, label="BBQ", more=True, placeholder="a .jsonl file", help="Also scored if given", personal=True
    )
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
            shown_if(box, i == 0)  # one empty chart is enough
        self.table = Table(empty="Nothing judged yet: press Run", height=240)
        self.continuations = Table(empty="No continuations yet: press Run", height=200)
        self.plot.children = [self.summary, charts, self.table, self.continuations]

    # the question -----------------------------------------------------------------------------------------------------

    def request(self) -> JudgeSteps:
        self.check_unedited("methods")
        wrong = [name for name in self.methods if name not in METHODS]
        if wrong:
            raise Refused("methods", f"methods must be from {', '.join(METHODS)}, got {wrong[0]!r}")
        saved = self._saved_edits()
        without = [model for i, model in enumerate(self.models) if not any(i in edit.models for edit in saved)]
        if not self.methods and without:
            why = f": no saved edit is for {model_name(without[0])}" if saved else ", or saved edits under More"
            raise Incomplete("methods", f"choose at least one method{why}")
        options: dict[str, Any] = {
            "texts": tuple(self.texts) or DemoTexts(ORDINARY), "prompts": tuple(self.prompts), "control": self.control,
            "max_new_tokens": self.max_new_tokens, "seed": self.seed,
        }  # fmt: skip
        for name, reader in (("crows", read_crows_pairs), ("bbq", read_bbq)):
            if path := getattr(self, f"{name}_file"):
                options[name] = self._file(f"{name}_file", path, reader)
        examples: PerModel = self._judge_examples()
        comparison = Request.of(compare_debiasing, options, Edits(tuple(self.methods), saved), examples)
        return replace(JudgeSteps.of(compare_edits, self.edit_calls(self.methods)), comparison=comparison)

    def _judge_examples(self) -> PerModel:
        if self.judge_file:
            return self._file("judge_file", self.judge_file, read_stereoset)
        own = isinstance(self.data, tuple) and isinstance(self.data[0], StereoSetExample)
        return self.examples() if own else Examples()

    def _saved_edits(self) -> tuple[SavedEdit, ...]:
        """The saved edits; a problem with a file becomes a hint at the box."""
        with hint_at("edit_files"):
            files = [File.at(str(existing_file(checked_path(path.strip(), "the path"), "an edit")))
                     for path in self.edit_files]  # fmt: skip
            edits = [saved_edit(file.path) for file in files]
            names = [edit.name for edit in edits]
            if len(set(names)) < len(names):
                twice = next(name for name in names if names.count(name) > 1)
                raise ValueError(f"two of the saved edits are named {twice}: rename one of the files")
            return tuple(SavedEdit(file, self._models_for(edit)) for file, edit in zip(files, edits, strict=True))

    def _models_for(self, edit: ModelEdit) -> tuple[int, ...]:
        """Indices of the models that an edit was made for; ValueError if there are none."""
        indices, wrong = [], ""
        for index, model in enumerate(self.models):
            try:
                edit.check(model)
                indices.append(index)
            except ValueError as error:
                wrong = str(error)
        if not indices:
            raise ValueError(wrong)
        return tuple(indices)

    def _file(self, name: str, path: str, reader: Callable[[str], Any]) -> ParsedFile:
        """A file, parsed once to check it; a problem with it becomes a hint at its control."""
        with hint_at(name):
            source = ParsedFile(reader, File.at(str(existing_file(checked_path(path, "the path"), "examples"))))
            source.read_by(self.models[0])
        return source

    def compute(
        self, request: JudgeSteps, model: Model, *, progress: Callable[[int, int], None], check: Callable[[], None],
        on_partial: Callable[[Any], None],
    ) -> DebiasComparison:  # fmt: skip
        """Make the edits, then compare them."""
        if request.comparison is None:
            raise ValueError("there is nothing to compare")
        edits = self.make_edits(request.arguments, model, progress=progress, check=check)
        index = self.models.index(model)

        def filled(value: Any) -> Any:
            if not isinstance(value, Edits):
                return value
            return [*(edits[name] for name in value.names), *value.files_for(index)]

        result: DebiasComparison = request.comparison.filled(filled).answer(model, progress=progress, check=check)
        return result

    def cost(self, request: JudgeSteps, model: Model) -> Cost:
        edit_cost = self.edit_cost(dict(request.arguments), model)
        if request.comparison is None:
            return edit_cost
        options, examples = dict(request.comparison.arguments), request.comparison.inputs[1]
        texts = options["texts"]
        ordinary = texts.read_by(model) if isinstance(texts, DemoTexts) else texts
        parts = [sampled_cost(ordinary, lambda some: reading_cost(model, some))]
        for data in (examples, *(options[name] for name in ("crows", "bbq") if name in options)):
            rows = data.read_by(model)
            parts.append(sampled_cost(rows, partial(_scoring_cost, model)))
        writing = len(options["prompts"]) * options["max_new_tokens"] * flops_per_token(model)
        count = 1 + (len(self.methods) + len(self.edit_files)) * (1 + self.control)
        scoring = sum(part.flops for part in parts) + writing
        return Cost(edit_cost.flops + count * scoring, max(edit_cost.bytes, *(part.bytes for part in parts)))

    # drawing ----------------------------------------------------------------------------------------------------------

    def draw(self, results: tuple[DebiasComparison, ...], request: Any) -> None:
        at, names = pair_view.shown_indices(self), pair_view.names(self)
        for i, (chart, box) in enumerate(zip(self.charts, self.boxes, strict=True)):
            shown_if(box, i in at)
            if i in at:
                chart.update(results[i], self.price, name="AB"[i] if len(self.models) > 1 else "")
        several = len(at) > 1
        lines = [f"{start}{_summary(results[i])}" for start, i in zip(pair_view.starts(self), at, strict=True)]
        self.summary.value = "<br>".join(lines)
        rows = [[*([name] if several else []), *line] for name, i in zip(names, at, strict=True)
                for line in _rows(results[i], every=self.by_domain)]  # fmt: skip
        shown = [column for column, label in enumerate(HEADS) if any(line[column + several] for line in rows)]
        with self.table.hold_sync():
            self.table.rows = []
            self.table.columns = [
                *([{"label": "model"}] if several else []),
                *({"label": label, "title": HEADS[label], **({"align": "right"} if HEADS[label] else {"wrap": True})}
                  for label in (list(HEADS)[column] for column in shown)),
            ]  # fmt: skip
            self.table.rows = [[*line[:several], *(line[column + several] for column in shown)] for line in rows]
            self.table.caption = "Scores with 95% intervals; changes relative to the unedited model"
        # a saved edit may be for one of the models alone
        edits = list(dict.fromkeys(row.name for i in at for row in results[i].rows if not is_random(row.name)))
        with self.continuations.hold_sync():
            self.continuations.rows = []
            labels = [*(["model"] if several else []), "prompt", *edits]
            self.continuations.columns = [{"label": label, "wrap": True} for label in labels]
            self.continuations.rows = [
                [*([name] if several else []), prompt,
                 *(_continuation(results[i], edit, number) for edit in edits)]
                for name, i in zip(names, at, strict=True) for number, prompt in enumerate(results[i].prompts)
            ]  # fmt: skip
            self.continuations.caption = "Continuations"

    # what is saved ----------------------------------------------------------------------------------------------------

    def code(self, request: JudgeSteps) -> str:
        return cell_of(request, self.models, "result.to_frame()")

    def table_of(self, result: Any) -> Any:
        table = result.to_frame()
        return table if len(self.models) == 1 else table.rename(columns={"model": "edit"})

    def scene(self) -> Scene:
        charts = [self.charts[i].scene() for i in pair_view.shown_indices(self) if not self.charts[i].message]
        return stack_scenes([*charts, self.table.scene()], title=self.title)


HEADS = {
    "edit": "", "domain": "",
    "SS": "Percent of examples in which the stereotype is preferred; 50 is no preference",
    "LMS": "Percent of comparisons that a meaningful sentence wins", "ICAT": "LMS · min(SS, 100 − SS) / 50",
    "|SS − 50| change": "In points; below 0: less bias; an interval without 0: beyond chance",
    "LMS change": "In points", "perplexity": "Of the ordinary texts", "× as it is": "Relative to the unedited model",
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
                *(_interval(getattr(own, name), getattr(own, f"{name}_interval")) for name in ("ss", "lms", "icat")),
                *(("", "") if change is None else (_interval(change.bias, change.bias_interval, sign="+"),
                                                   _interval(change.lms, change.lms_interval, sign="+"))),
                _interval(entry.perplexity, entry.perplexity_interval, digits=2) if whole else "",
                _interval(entry.perplexity_ratio[0], entry.perplexity_ratio[1:], digits=2)
                if whole and entry.perplexity_ratio else "",
                _interval(entry.crows, entry.crows_interval) if whole else "",
                _interval(entry.bbq[1], entry.bbq_intervals[1]) if whole and entry.bbq and entry.bbq_intervals else "",
            ])  # fmt: skip
    return rows


def _scoring_cost(model: Model, data: Sequence[Any]) -> Cost:
    """The cost of scoring examples, pairs or questions."""
    if isinstance(data[0], BBQQuestion):
        return continuations_cost(model, [part for question in data for part in answer_continuations(model, question)])
    return reading_cost(model, sentences_of(data))


def _continuation(result: DebiasComparison, name: str, number: int) -> str:
    """The continuation of a prompt under one edit; empty if the model has no such edit."""
    return next((row.continuations[number] for row in result.rows if row.name == name), "")


def _interval(value: float | None, interval: Any, *, digits: int = 1, sign: str = "") -> str:
    """A number with its interval in brackets; empty if there is none."""
    if value is None or interval is None:
        return ""
    number, low, high = (_rounded(each, digits, sign) for each in (value, *interval))
    between = " to " if sign else "–"  # a dash between signs is hard to read
    return f"{number} ({low}{between}{high})"


def _rounded(value: float, digits: int, sign: str) -> str:
    """A number with this many decimals; one that rounds to zero has no sign."""
    text = f"{value:{sign}.{digits}f}"
    return text.replace("-", "−") if text.strip("+-0.") else text.lstrip("+-")


def _summary(result: DebiasComparison) -> str:
    """The edits that change |SS − 50| beyond chance."""
    moved = [
        f"{entry.name} {_interval(change.bias, change.bias_interval, sign='+')}"
        for entry in result.rows
        for change in entry.changes[-1:]
        if change.bias_interval[0] > 0 or change.bias_interval[1] < 0
    ]
    if not moved:
        return "No edit changes |SS − 50| beyond chance."
    return f"|SS − 50| changes beyond chance: <b>{'; '.join(moved)}</b>."
