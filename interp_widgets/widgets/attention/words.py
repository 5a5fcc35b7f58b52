"""The word pairs that the selected head has by its weights, beside the attention that these words pay in texts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, ClassVar

import ipywidgets as W
import numpy as np

from interp_widgets.analysis._core.cost import Cost
from interp_widgets.analysis._core.result import Scalar
from interp_widgets.analysis.attention import WeightsAgainstText, weights_against_text, weights_against_text_cost
from interp_widgets.analysis.head_words import HeadWordResult
from interp_widgets.figures.static import Scene, stack_scenes
from interp_widgets.models import Model

from ..base import pair_view
from ..base.code import call, cell
from ..base.description import Description, Step, decimals
from ..base.fields import variant
from ..base.prediction import PredictionPanel, checked
from ..base.request import PerModel, model_variables, result_variables, suffixes
from ..base.word_source import WordPanel
from ..head_words.word_pairs import HeadWordRequest, WordPairPanel, only_read
from ..views import Heatmap, Table
from .known_heads import KnownHeads
from .patterns import HeadPatterns
from .sample_texts import SampleTexts, TextListOptions

DESCRIBED = 5
ABSENT = 50
"""Most pairs in the table that do not occur."""


@dataclass(frozen=True)
class WordsReading:
    """One model's result: the word pairs of a layer's heads, and the attention along them in texts."""

    pairs: HeadWordResult
    found: WeightsAgainstText

    partial: ClassVar[bool] = False

    @property
    def provenance(self) -> Mapping[str, Scalar]:
        """What is needed to repeat it."""
        return self.found.provenance


@dataclass(frozen=True)
class WordsRequest:
    """The word pairs of one layer's heads, and the attention along them in a prompt and texts."""

    search: HeadWordRequest
    layer: int
    prompt: PerModel
    texts: SampleTexts
    seed: int

    method: ClassVar[str] = "weights_against_text"

    def answer(
        self,
        model: Model,
        *,
        models: Sequence[Model],
        progress: Callable[[int, int], None],
        check: Callable[[], None],
        on_partial: Callable[[Any], None],
    ) -> WordsReading:
        """Search the weights, then read the texts."""
        pairs = self.search.answer(
            model, models=models, progress=lambda done, total: None, check=check, on_partial=lambda part: None
        )
        texts = [self.prompt.read_by(model), *self.texts.texts]
        return WordsReading(
            pairs, weights_against_text(model, texts, pairs, seed=self.seed, progress=progress, check=check)
        )

    def cost(self, model: Model) -> Cost:
        """FLOPs and bytes of both."""
        search = self.search.cost(model)
        lengths = [len(self.prompt.read_by(model)), *self.texts.lengths]
        reading = weights_against_text_cost(model, lengths, self.layer)
        return Cost(search.flops + reading.flops, max(search.bytes, reading.bytes))

    def code(self, models: tuple[Any, ...], last: str) -> str:
        """A cell that repeats it."""
        imports, lines = self.search.lines(models)
        lines += self.texts.code("model")[0]
        seed = {"seed": self.seed} if self.seed else {}
        each = zip(model_variables(models), result_variables(models), suffixes(models), strict=True)
        for name, result, suffix in each:
            before, prompt = self.prompt.code(name)
            lines += [line for line in before if line not in lines]
            found = call("weights_against_text", name, f"[{prompt}, *texts]", result, **seed)
            lines.append(f"found{suffix} = {found}")
        functions = [*imports, *self.texts.functions, "weights_against_text"]
        return cell(functions, models, [*lines, f"found{suffixes(models)[-1]}.{last}"])


class HeadWordsInTexts(TextListOptions, WordPanel, PredictionPanel):
    """The word pairs of the selected head by its weights, beside the attention of these words in prompt and texts."""

    title, tab_name = "Words against text", "Words"
    pair_views = ("beside",)
    layer = variant(HeadPatterns.layer, selects=False)
    head = HeadPatterns.head
    top = variant(WordPairPanel.top, more=True, new_row=False)
    keep = variant(WordPairPanel.keep, default=1000, more=True)  # of fewer, too few occur in texts
    only = variant(WordPairPanel.only, more=True)
    seed = variant(KnownHeads.seed, group="words", help="Of the shuffled controls and the interval")
    sample_texts = variant(TextListOptions.sample_texts, group="words", new_row=True)
    text_count = variant(TextListOptions.text_count, group="words")

    def defaults(self, keywords: set[str]) -> dict[str, Any]:
        return only_read(self.models, keywords) | self.usual_count | super().defaults(keywords)

    # what the panel asks for ------------------------------------------------------------------------------------------

    def build(self) -> None:
        self.inputs.children = [*self.text_inputs(), *self.controls.rows(), *self.controls.rows("words")]
        self.about = W.HTML("")
        self.maps = pair_view.SideBySide(
            self, lambda: Heatmap(
                row_name="", column_name="head", x_label="head", numbers_from=0.0, height=64, empty="No AUC yet",
            )
        )  # fmt: skip
        self.tables = pair_view.SideBySide(self, lambda: Table(empty="No pairs yet", height=420))
        self.arrange([self.about, self.maps.box, self.tables.box])
        for heat in self.maps.views:
            self.on_user(heat, "pinned", self._pinned)

    def request(self) -> WordsRequest:
        prediction = self.prediction()
        checked(prediction, self.models[0])
        search = HeadWordRequest(self.words_asked_for(), self.top, self.keep, self.only, (self.layer,))
        return WordsRequest(search, self.layer, prediction.ids, self.texts_asked_for(), self.seed)

    def compute(self, request: WordsRequest, model: Model, **reports: Any) -> WordsReading:
        return request.answer(model, models=self.models, **reports)

    def depends_on(self, request: WordsRequest, model: Model) -> tuple[Any, ...]:
        """The words left out for two models depend on both."""
        return tuple(other for other in self.models if other is not model) if request.search.only != "all" else ()

    # drawing ----------------------------------------------------------------------------------------------------------

    def draw_selection(self) -> None:
        if not self.results:
            return
        for view, heat in self.maps.drawn():
            result = self.results[pair_view.LETTERS.index(view)].found
            with heat.hold_sync():
                heat.title = (
                    f"{pair_view.title_start(self, view)}AUC of the heads of layer {result.layers[0]}; 0.5 by chance, "
                    "★ beyond chance, hatched: too few pairs occur"
                )
                heat.value_label = "AUC"
                count = result.auc.shape[1]
                names = [f"{at}{' ★' * result.beyond_chance(result.layers[0], at)}" for at in range(count)]
                known = np.where(np.isfinite(result.interval[0]), result.auc, np.nan)
                heat.set_matrix(known, rows=["AUC"], columns=names, vmin=0.0, vmax=1.0)
                heat.cross = heat.pinned = [0, min(self.head, count - 1)]
        for view, table in self.tables.drawn():
            reading = self.results[pair_view.LETTERS.index(view)]
            columns, rows = self._pair_table(reading)
            with table.hold_sync():
                table.selected, table.rows = -1, []
                table.columns, table.rows = columns, rows
                table.caption = (
                    f"{pair_view.title_start(self, view)}Word pairs of head "
                    f"{reading.found.layers[0]}.{self._head(reading)} by its weights, those with the most attention in "
                    f"the texts first; {len(rows)} of {len(reading.pairs.pairs(*self._place(reading))):,}"
                )
        said = map(self._sentence, pair_view.all_starts(self.results), self.results)
        self.about.value = (
            f"{'<br>'.join(said)}<br>Compared with other words at the same distance and of the same frequencies, in "
            f"the prompt and {self.results[0].found.n_texts - 1:,} texts."
        )

    def _place(self, reading: WordsReading) -> tuple[int, int]:
        """The layer and head that are shown of a result."""
        return reading.found.layers[0], self._head(reading)

    def _head(self, reading: WordsReading) -> int:
        return min(self.head, reading.found.auc.shape[1] - 1)

    def _pair_table(self, reading: WordsReading) -> tuple[list[dict[str, Any]], list[list[Any]]]:
        """Columns and rows: pairs that occur, then some that do not."""
        head, found = self._head(reading), reading.found
        layer = found.layers[0]
        measured = {(pair.query, pair.key): pair for pair in found.pairs(layer, head)}
        in_prompt: dict[tuple[str, str], list[float]] = {}
        for place in found.found(layer, head):
            if place.text == 0:
                in_prompt.setdefault((place.query_word, place.key_word), []).append(place.attention)
        pairs = reading.pairs.pairs(layer, head)
        pairs.sort(key=lambda pair: -measured[pair[:2]].attention if pair[:2] in measured else 1)
        rows: list[list[Any]] = []
        for pair in pairs[: len(measured) + ABSENT]:
            at, here = measured.get(pair[:2]), in_prompt.get(pair[:2])
            texts = [at.occurrences, at.attention, at.matched, at.auc] if at else [0, None, None, None]
            prompt = float(np.mean(here)) if here else None
            rows.append([f"{pair.query} → {pair.key}", pair.dimensions, *texts, prompt])
        columns = [
            {"label": "query → key"},
            {"label": "dimensions", "align": "right", "title": "Dimensions of the head that have the pair"},
            {"label": "occurs", "align": "right", "title": "How often the pair occurs with others to compare it with"},
            {"label": "attention", "align": "right", "title": "Mean attention from the query word to the key word"},
            {
                "label": "other words", "align": "right",
                "title": "Mean attention of other words at the same distance and of the same frequencies",
            },
            {"label": "AUC", "align": "right", "title": "Share of the other words that get less attention"},
            {"label": "in the prompt", "align": "right", "title": "Mean attention in the prompt above"},
        ]  # fmt: skip
        return columns, rows

    def _sentence(self, start: str, reading: WordsReading) -> str:
        """What was found, as HTML."""
        found = reading.found
        words = escape(found.in_words(found.layers[0], self._head(reading)))
        for verdict in ("not beyond chance", "beyond chance"):
            if words.endswith(verdict):
                words = f"{words.removesuffix(verdict)}<b>{verdict}</b>"
                break
        return f"{start}{words}."

    def describe_selection(self) -> Description | None:
        if not self.results:
            return None
        reading = self.results[min(pair_view.shown_indices(self)[0], len(self.results) - 1)]
        head, found = self._head(reading), reading.found
        pairs = found.pairs(found.layers[0], head)[:DESCRIBED]
        return Description(
            f"Words of head {found.layers[0]}.{head}",
            (),
            ("query → key", "attention", "others"),
            tuple((f"{pair.query} → {pair.key}", decimals(pair.attention), decimals(pair.matched)) for pair in pairs),
            (Step("head_words", "Which words does it relate?", {"tab": "heads"}),),
        )

    def _pinned(self, change: Any) -> None:
        if change.new:
            self.head = change.new[1]

    # what is saved ----------------------------------------------------------------------------------------------------

    def code(self, request: WordsRequest) -> str:
        return request.code(self.models, f"pairs({self.layer}, {self.head})")

    def table_of(self, result: WordsReading) -> Any:
        return result.found.to_frame()

    def parts_of(self, result: WordsReading) -> Mapping[str, Any]:
        return {"": result.found, "pairs": result.pairs}

    def scene(self) -> Scene:
        return stack_scenes([self.maps.scene(), self.tables.scene()])
