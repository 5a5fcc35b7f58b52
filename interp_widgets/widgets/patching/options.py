"""The base of the maps of one pair of prompts: both prompts with their tokens, what is measured, and the words."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as data
from functools import partial
from html import escape
from itertools import pairwise
from typing import Annotated, Any, ClassVar

import ipywidgets as W
import numpy as np

from interp_widgets.analysis._core.prompts import Prompt, read_prompt, single_token
from interp_widgets.analysis.patching import ActivationPatchingResult, activation_patching
from interp_widgets.analysis.patching.activation import activation_patching_cost, possible_sites
from interp_widgets.analysis.patching.pairs import Alignment, PromptPair
from interp_widgets.arguments import short
from interp_widgets.data.presets import PRESETS, Preset
from interp_widgets.figures.labels import visible
from interp_widgets.models import Model
from interp_widgets.models.chat import ChatText

from ..ablation.maps import METRIC_NAMES, Array, MapPanel, amount, cell_notes, fed_positions, quoted
from ..ablation.removal import METRIC_LABELS
from ..base import pair_view
from ..base.controls import chat_text, instruction, row, shown_if
from ..base.fields import Bounds, field, hint_at, variant
from ..base.opening import opening_of, opening_pair
from ..base.prediction import Continued, Likeliest, PredictionPanel, Swapped, WordSwap, check_foil, checked
from ..base.request import PerModel, Request
from ..views import AlignedTokens

CLEAN, CORRUPTED = "The capital of France is", "The capital of Italy is"
SITES = {
    "resid_pre": "Residual stream before the layer",
    "attn": "Attention output",
    "mlp": "MLP output",
    "head": "Output",
    "head_q": "Query",
    "head_k": "Key",
    "head_v": "Value",
    "pattern": "Attention pattern",
}
DIRECTIONS = {"denoising": "clean into corrupted (denoising)", "noising": "corrupted into clean (noising)"}
UNIT = "recovered"
METHOD = field(
    {
        "exact": "patching every cell",
        "attribution": "a gradient (attribution patching)",
        "attribution_softmax": "a gradient, attention exactly (AtP*)",
    },
    "exact", label="Computed by", more=True,
    help="A gradient estimates all cells in the time of a few runs, and some are patched to show how good it is; for "
    "queries and keys the estimate is better with the attention pattern computed exactly",
    shown_if=lambda panel: panel.metric != "kl" and all(model.capabilities.gradients for model in panel.models),
)  # fmt: skip
"""Whether cells are patched or estimated; the gradient of a divergence is 0 where both runs are the same."""


def check_columns(alignment: Alignment) -> None:
    """ValueError where two pairs cross, so that their tokens cannot stand under each other."""
    pairs = sorted(zip(alignment.clean, alignment.corrupted, strict=True))
    for (clean, corrupted), (later, earlier) in pairwise(pairs):
        if earlier < corrupted:
            raise ValueError(
                f"the pairs {clean}:{corrupted} and {later}:{earlier} cross, so that their tokens cannot stand under "
                "each other: leave one of them out"
            )


def words_of(swap: str) -> tuple[str, str]:
    """The words that are swapped and those in their place, of a text old → new; ValueError for another."""
    words = re.fullmatch(r"\s*(.+?)\s*(?:→|->)\s*(.*?)\s*", swap)
    if words is None:
        raise ValueError(f"the words to swap must be old → new, such as France → Italy, got {short(swap)}")
    return words[1], words[2]


def metric_fields() -> tuple[Any, Any]:
    """Direction and metric."""
    direction = field(
        DIRECTIONS, "denoising", label="Patch", new_row=True,
        help="Whose values go into whose run; either way 1 is the clean answer and 0 the corrupted one",
    )  # fmt: skip
    metric = field(METRIC_LABELS, "logit_difference", label="Measured", help="What is compared between the runs")
    return direction, metric


class PatchPanel(MapPanel):
    """Base of the panels that patch one pair of prompts."""

    analysis: ClassVar[Any] = staticmethod(activation_patching)
    prompt = variant(PredictionPanel.prompt, label="Clean prompt", help="The prompt with the answer to bring back")
    target = variant(
        PredictionPanel.target, label="Answer", help="One token; empty: the likeliest after the clean prompt"
    )
    foil = field(
        str, label="Foil", placeholder="the likeliest", group="prediction",
        help="One token, whose logit is subtracted; empty: the likeliest after the corrupted prompt",
        shown_if=lambda panel: panel.metric == "logit_difference",
    )  # fmt: skip
    corrupted = field(
        str, label="Corrupted prompt", width="grow", group="prediction", new_row=True,
        placeholder="the clean prompt with other words",
        help="The clean prompt with the words changed that the answer depends on",
        shown_if=lambda panel: bool(panel.corrupted) or not panel.swap,
    )  # fmt: skip
    swap = field(
        str, label="Swap", group="prediction", new_row=True, placeholder="France → Italy",
        help="Words of the clean prompt, an arrow (→ or ->) and what the corrupted prompt has in their place, "
        "wherever they stand, in the response so far too",
        shown_if=lambda panel: not panel.corrupted,
        required="there is no corrupted prompt yet: type which words to swap, such as France → Italy",
    )  # fmt: skip
    direction, metric = metric_fields()
    alignment = field(
        str, label="Alignment", placeholder="from both ends", more=True,
        help="Positions of the clean and the corrupted prompt that belong together, such as 0:0 3:4; empty: equal "
        "tokens at the start, then token by token from the end. A token dragged onto one of the other prompt mends it",
    )  # fmt: skip
    color_range = field(
        Annotated[float, Bounds(0.05, 1.0, 0.05, slider=True, shown_as=".2f")], 1.0, label="Full colour at",
        more=True, redraws=True, help="The recovered part at which the colour saturates",
    )  # fmt: skip
    threshold = field(
        Annotated[float, Bounds(0.0, 1.0, 0.05, slider=True, shown_as=".2f")], 0.2, label="Numbers from",
        more=True, redraws=True, help="The recovered part from which a cell shows its number",
    )  # fmt: skip

    preset_fields = ("foil", "corrupted")
    mendable: ClassVar[bool] = True
    """Whether the alignment of the two prompts can be chosen."""

    def defaults(self, keywords: set[str]) -> dict[str, Any]:
        if "prompt" in keywords:
            return {}
        if {"corrupted", "swap"} & keywords:
            return {"prompt": CLEAN}
        others = [(one.prompt, one.corrupted) for one in PRESETS]
        clean, corrupted = opening_pair(self.models, [(CLEAN, CORRUPTED), *others])
        return {"prompt": clean, "corrupted": corrupted}

    @classmethod
    def preset_values(cls, chosen: Preset) -> dict[str, Any]:
        return super().preset_values(chosen) | {"swap": "", "alignment": ""}

    def build(self) -> None:
        self.example_button = W.Button(description="Example pair", tooltip=f"{CLEAN} … / {CORRUPTED} …")
        self.on_click(self.example_button, self.show_example)
        self.prompt_rows = [*self.text_inputs(), row(self.example_button)]
        self.inputs.children = [*self.prompt_rows, *self.controls.rows()]
        self.tokens = AlignedTokens(
            label="Clean prompt above the corrupted one", names=["Clean", "Corrupted"], empty="No prompts yet",
            writable=self.mendable,
        )  # fmt: skip
        self.pairing = W.ToggleButton(
            description="Pair by clicks", tooltip="Then click a token and its partner; again: they are parted"
        )
        self.unmended = W.Button(
            description="Align from both ends", tooltip="Forget the alignment that was typed or mended"
        )
        self.mending = row(self.pairing, self.unmended)
        shown_if(self.mending, self.mendable)
        self.aligned, self.words = W.HTML(""), W.HTML("")
        for part in (self.aligned, self.words):
            shown_if(part, False)
        self.matched = Matched((), ())
        """The tokens of the first model in both prompts."""
        self.on_user(self.tokens, "selected", lambda change: self._token_clicked(change.new))
        self.on_user(self.tokens, "pairs", lambda change: self._mended(change.new))
        self.watch(self.pairing, "value", lambda _: self._say_how())
        self.on_click(self.unmended, self._unmend)
        self._say_how()
        self.watch(self, ["corrupted", "swap", "alignment"], lambda _: self.texts_read())
        self.watch(self, "prompt", lambda _: self._take_partner())
        self.watch(self, ["corrupted", "swap"], lambda _: self._offer_example())
        if not {"corrupted", "swap"} & set(self.keywords):
            self._take_partner()
        self._offer_example()

    def show_example(self) -> None:
        """Both prompts of the opening example, on the whole workbench."""
        with self.batch_changes():
            self.swap = ""
            self.workbench.select(prompt=CLEAN, response="", prompt_token=-1, response_token=-1)
            self.corrupted, self.alignment = CORRUPTED, ""

    def _take_partner(self) -> None:
        """Without a corrupted prompt, take the one that belongs to the prompt of an example; the swap of the opening
        leaves with its words."""
        partners = {CLEAN: CORRUPTED, **{example.prompt: example.corrupted for example in PRESETS}}
        opening = opening_of(self.models)
        if self.swap and self.swap == opening.swap and words_of(self.swap)[0] not in self.prompt:
            self.swap = ""
        if not self.corrupted and not self.swap:
            self.corrupted = partners.get(self.prompt, "")
            self.swap = opening.swap if self.prompt == opening.prompt else ""

    def _offer_example(self) -> None:
        shown_if(self.example_button, not self.corrupted and not self.swap)

    def lay_out(self, maps: Any, details: Sequence[Any]) -> None:
        """Put prompts and words above the maps; on a screen, where space is short, into the details."""
        asked = [self.tokens, self.mending, self.aligned]
        for view in asked:
            view.add_class("iw-asked")  # as it is now, also while the maps are those of before
        above = [*asked, self.words]
        if self.screen is None:
            self.plot.children, self.details.children = [*above, maps], details
        else:
            self.plot.children, self.details.children = [maps], [*above, *details]

    # what the panel asks for ------------------------------------------------------------------------------------------

    def sites(self) -> tuple[str, ...]:
        """The sites that are patched."""
        raise NotImplementedError

    def arguments(self) -> dict[str, Any]:
        arguments = {
            name: value for name, value in super().arguments().items() if name not in ("corrupted", "swap", "foil")
        }
        return {**arguments, "sites": self.sites(), "alignment": self.pairs_of_positions()}

    def pairs_of_positions(self) -> tuple[tuple[int, int], ...] | str:
        """The alignment that was typed, or "ends"."""
        if not self.alignment.strip():
            return "ends"
        with hint_at("alignment"):
            pairs = re.split(r"[\s,;]+", self.alignment.strip(" ,;"))
            if not all(re.fullmatch(r"-?\d{1,6}:-?\d{1,6}", pair) for pair in pairs):
                raise ValueError("the alignment must be pairs clean:corrupted of positions, such as 0:0 3:4")
            numbers = [pair.split(":") for pair in pairs]
            return tuple((int(clean), int(corrupted)) for clean, corrupted in numbers)

    def corrupted_context(self) -> PerModel:
        """The corrupted prompt with the response so far, as an argument of the analysis."""
        prediction = self.prediction()
        if self.corrupted:
            return Continued(self.corrupted, prediction)
        self.require("swap")
        with hint_at("swap"):
            old, new = words_of(self.swap)
            prompt = prediction.prompt
            if old not in prompt:
                raise ValueError(f"{old!r} does not occur in the clean prompt: swap words that it has")
            swap = WordSwap.of(old, new, prompt)
            if isinstance(prompt, ChatText):
                messages = [{**each, "content": swap.swapped(each["content"])} for each in prompt.messages]
                return Swapped(chat_text(self.models, messages), swap, prediction)
            return Swapped(swap.swapped(prompt), swap, prediction)

    def both_prompts(self) -> tuple[Prompt, Prompt, Alignment]:
        """Both contexts as the first model reads them, and which positions belong together; hints where they do not
        fit."""
        prediction, model = self.prediction(), self.models[0]
        clean = checked(prediction, model, what="answer")
        with hint_at("corrupted" if self.corrupted else "swap"):
            ids = self.corrupted_context().read_by(model)
            corrupted = read_prompt(model, ids, what="corrupted prompt")
            if clean.ids == corrupted.ids:
                raise ValueError("both prompts are the same: change the words here that the answer depends on")
        pairs: Any = self.pairs_of_positions()
        with hint_at("alignment"):
            alignment = Alignment.of(PromptPair(clean, corrupted, None, None), pairs)
            check_columns(alignment)
        return clean, corrupted, alignment

    def request(self) -> Request:
        self.both_prompts()
        self.require()
        prediction, options = self.prediction(), self.arguments()
        texts = self.corrupted_context()
        answer, foil = self._tokens(texts)
        return Request.of(activation_patching, options | foil, prediction.ids, texts, answer)

    def _tokens(self, texts: PerModel) -> tuple[Any, dict[str, Any]]:
        """The answer, and the foil as a keyword: of two models, the second one's likeliest where none is typed."""
        prediction, model = self.prediction(), self.models[0]
        two = len(self.models) > 1
        chosen = bool(prediction.response or self.target)
        answer = prediction.answer if chosen or not two else Likeliest.after(prediction.ids, self.models, "answer")
        if self.metric != "logit_difference":
            return answer, {}
        if not self.foil:
            return answer, {"foil": Likeliest.after(texts, self.models, "foil")} if two else {}
        with hint_at("foil"):
            if chosen:
                check_foil(prediction, model, self.foil)
            else:
                single_token(model, self.foil, what="foil")
        return answer, {"foil": self.foil}

    def cost(self, request: Request, model: Model) -> Any:
        options = dict(request.arguments)
        run = request.inputs[1 if options["direction"] == "denoising" else 0].read_by(model)
        return activation_patching_cost(
            model, len(run), options["sites"], layers=options.get("layers"),
            positions=fed_positions(model, run, options.get("positions")), metric=options["metric"],
            method=options.get("method", "exact"),
        )  # fmt: skip

    # the tokens -------------------------------------------------------------------------------------------------------

    def texts_read(self) -> None:
        """Show the tokens of both prompts, and mark where they differ."""
        try:
            clean, corrupted, alignment = self.both_prompts()
        except ValueError:  # the request that follows says what is wrong
            self.matched = Matched(tuple(self.texts.axis), ())
        else:
            self.matched = Matched(clean.tokens(), corrupted.tokens(), alignment.clean, alignment.corrupted)
        self.tokens.set_tokens(*self.matched.tokens, self.matched.pairs)
        shown_if(self.unmended, self.mendable and bool(self.alignment.strip()))
        self.aligned.value = self.matched.in_words() if self.mendable else ""  # else they are refused
        shown_if(self.aligned, bool(self.aligned.value))

    def _token_clicked(self, at: int) -> None:
        self.position = at

    def _mended(self, pairs: Sequence[Sequence[int]]) -> None:
        """Take pairs of the page as the alignment: nothing typed where they are those from both ends."""
        clean, corrupted, _ = self.both_prompts()
        ends = Alignment.of(PromptPair(clean, corrupted, None, None), "ends")
        mended = Alignment(*zip(*pairs, strict=True))
        self.alignment = "" if mended == ends else " ".join(f"{first}:{second}" for first, second in pairs)

    def _unmend(self) -> None:
        self.alignment = ""

    def _say_how(self) -> None:
        self.tokens.pairing = self.pairing.value
        if self.pairing.value:
            self.tokens.instruction = "click a token, then its partner in the other prompt; a pair again to part it"
        elif self.mendable:
            self.tokens.instruction = "click a token to select it in both, drag one onto the other prompt to align them"
        else:
            self.tokens.instruction = "click a token to select it in both"

    # drawing ----------------------------------------------------------------------------------------------------------

    def draw_selection(self) -> None:
        at = self.position if 0 <= self.position < len(self.matched.clean) else -1
        self.tokens.selected = at

    def draw_words(self, *more: str) -> None:
        """Show what was measured, and more sentences."""
        each = zip(pair_view.letters(self.results), self.results, strict=True)
        self.words.value = "<br>".join([*(letter + in_words(result) for letter, result in each), *filter(None, more)])
        shown_if(self.words, True)


ONE_PAIR = f"One pair of prompts has no interval. {instruction('The tab Pairs tests cells on many.')}"
"""What a map of one pair says of chance."""


@dataclass(frozen=True)
class Matched:
    """The tokens of both prompts, and the positions that belong together."""

    clean: tuple[str, ...]
    corrupted: tuple[str, ...]
    at_clean: tuple[int, ...] = data(default=())
    at_corrupted: tuple[int, ...] = data(default=())

    @property
    def tokens(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Those of the clean prompt and of the corrupted one."""
        return self.clean, self.corrupted

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """(clean, corrupted) positions that belong together."""
        return list(zip(self.at_clean, self.at_corrupted, strict=True))

    def in_words(self) -> str:
        """Which tokens are aligned with none, as HTML; empty where all are."""
        parts = []
        for name, tokens, aligned in zip(
            ("clean", "corrupted"), self.tokens, (self.at_clean, self.at_corrupted), strict=True
        ):
            alone = [f"{quoted(token)} ({at})" for at, token in enumerate(tokens) if at not in aligned]
            if alone and aligned:
                parts.append(f"{', '.join(alone)} of the {name} prompt")
        sizes = f"{len(self.clean)} and {len(self.corrupted)} tokens. "
        return f"{sizes}Aligned with none, and not patched: {'; '.join(parts)}." if parts else ""


def measured(result: Any) -> str:
    """The metric in both runs, of several pairs its mean, as HTML."""
    clean, corrupted = float(np.mean(result.clean)), float(np.mean(result.corrupted))
    several = len(result.clean) > 1
    answer = "the answer" if several else quoted(result.answer_tokens[0])
    if result.metric == "kl":
        metric = "divergence from the clean run in nats"
    elif result.foils is not None:
        metric = f"logit of {answer} minus that of {'the foil' if several else quoted(result.foil_tokens[0])}"
    else:
        metric = f"{METRIC_NAMES[result.metric]} of {answer}"
    mean = f", mean of {len(result.clean)} pairs" * several
    words = f"{metric}{mean}: <b>{amount(clean)}</b> clean, <b>{amount(corrupted)}</b> corrupted."
    return words[:1].upper() + words[1:]


def in_words(result: ActivationPatchingResult) -> str:
    """The metric in both runs, as HTML."""
    words = measured(result)
    if result.undefined:
        return f"{words} Both are the same up to rounding: there is nothing to recover, and every cell is hatched."
    words += " 1 (red): answered as in the clean run; 0: as in the corrupted one."
    if result.estimated:
        return f"{words} {estimates_in_words(result)}"
    if result.missing:
        cells = sum(values.size for values in result.each.values())
        words += f" {result.missing:,} of {cells:,} cells are not computed yet (hatched)."
    return words


def estimates_in_words(result: ActivationPatchingResult) -> str:
    """Which cells are estimated, and how the estimates agree with those that are patched too, as HTML."""
    cells = sum(values.size for values in result.recovered.values())
    patched = sum(int(np.isfinite(values).sum()) for values in result.recovered.values())
    if result.strongest_first:
        return (
            f"<b>{patched:,} of {cells:,}</b> cells patched (crosses), those first that are estimated to be largest; "
            "the others are estimated by a gradient."
        )
    correlations = {SITES[site]: result.correlation(site) for site in result.sites}
    agreement = ", ".join(f"{name} <b>{part(r)}</b>" for name, r in correlations.items() if np.isfinite(r))
    words = f"<b>Estimated</b> by a gradient; {patched:,} of {cells:,} cells, drawn at random, are patched (crosses)"
    words += f", {result.missing:,} are still to be" * bool(result.missing)
    return words + f". Correlation of both: {agreement}" * bool(agreement) + "."


def drawn(result: ActivationPatchingResult, site: str) -> Array:
    """What a map shows of a site: the recovered parts or their estimates, in a partial map those of the other cells."""
    recovered = np.asarray(result.recovered[site], dtype=np.float64)
    estimated = np.asarray(result.estimated.get(site, recovered), dtype=np.float64)
    return np.where(np.isfinite(recovered), recovered, estimated) if result.strongest_first else estimated


def only_estimated(result: ActivationPatchingResult) -> bool:
    """Whether estimates are what was asked for."""
    return bool(result.estimated) and not result.strongest_first


def how_known(result: ActivationPatchingResult, site: str) -> list[str]:
    """What tooltips say of each cell of an estimated map: what patching it recovers, if that is known."""
    values = np.ravel(result.recovered[site]).tolist()
    return [f"patched {part(value)}" if np.isfinite(value) else "estimated" for value in values]


def notes_of(view: str, results: Sequence[ActivationPatchingResult], site: str) -> list[str]:
    """The tooltips of a view of a map; none where every cell was patched."""
    estimated = any(result.estimated for result in results)
    return cell_notes(view, results, partial(how_known, site=site)) if estimated else []


def patched_cells(
    view: str, results: Sequence[ActivationPatchingResult], sites: Mapping[str, str]
) -> dict[str, Any] | None:
    """By map the cells of an estimated site that were patched in all models of a view; None where every cell was."""
    shown = [results[index] for index in pair_view.models_of(view)]
    if not any(result.estimated for result in shown):
        return None
    patched = {name: [np.isfinite(result.recovered[site]) for result in shown] for name, site in sites.items()}
    if any(len({cells.shape for cells in each}) > 1 for each in patched.values()):
        return None  # models of two shapes have no difference
    return {name: np.logical_and.reduce(each).reshape(len(each[0]), -1) for name, each in patched.items()}


def rest(results: Sequence[ActivationPatchingResult]) -> str:
    """What the title of a map says of cells that were not patched."""
    if any(map(only_estimated, results)):
        return ", estimated"
    return ", partial" if any(result.partial for result in results) else ""


def largest(results: Sequence[ActivationPatchingResult]) -> str:
    """How a sentence begins that names the largest cells."""
    if any(map(only_estimated, results)):
        return "Largest estimates"
    return "Largest so far" if any(result.partial for result in results) else "Largest"


def part(value: float) -> str:
    """A recovered part for a sentence.

    >>> part(0.987), part(-0.2), part(-0.001)
    ('0.99', '−0.20', '0.00')
    """
    return f"{round(value, 2) + 0.0:.2f}".replace("-", "−")


def counted(number: int, name: str) -> str:
    """A number of things.

    >>> counted(1, "part"), counted(2, "part")
    ('1 part', '2 parts')
    """
    return f"{number} {name}{'s' * (number != 1)}"


def column_labels(result: ActivationPatchingResult) -> list[str]:
    """The tokens at the positions of a map: clean / corrupted where they differ."""
    labels = []
    for position, source in zip(result.positions, result.source_positions, strict=True):
        run, other = result.prompt_tokens[0][position], result.source_tokens[0][source]
        clean, corrupted = (other, run) if result.direction == "denoising" else (run, other)
        labels.append(clean if clean == corrupted else f"{clean}/{corrupted.strip()}")
    return labels


def clean_positions(result: ActivationPatchingResult) -> Sequence[int]:
    """The positions of the map in the clean prompt."""
    return result.source_positions if result.direction == "denoising" else result.positions


def put_in(result: ActivationPatchingResult, what: str, where: str, value: float, shown: float) -> str:
    """One cell in words, as HTML: the part that patching it recovers, and the one on the map, which may be an
    estimate."""
    source, run = ("clean", "corrupted") if result.direction == "denoising" else ("corrupted", "clean")
    clean, corrupted = float(result.clean[0]), float(result.corrupted[0])
    start = f"The {source} {what}{where} in the {run} run"
    if not np.isfinite(value) and np.isfinite(shown):
        return f"{start} is estimated to recover <b>{part(shown)}</b>; it was not patched."
    if not np.isfinite(value):
        return f"{start}: {'not computed yet' if result.missing else 'not defined'}."
    patched = amount(corrupted + value * (clean - corrupted))
    estimate = f" The estimate was {part(shown)}." if only_estimated(result) else ""
    return f"{start} recovers <b>{part(value)}</b>: the metric goes to {patched}.{estimate}"


def at(result: ActivationPatchingResult, column: int) -> str:
    """A position of the map in words, for HTML."""
    return f" at “{escape(visible(column_labels(result)[column]))}” ({clean_positions(result)[column]})"


def sites_of_all(models: Sequence[Model]) -> tuple[str, ...]:
    """The sites that all models have."""
    each = [possible_sites(model) for model in models]
    return tuple(site for site in SITES if all(site in sites for sites in each))
