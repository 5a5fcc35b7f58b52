"""The sentences that all bias panels use, and the probes that several of them train."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, Literal

import traitlets as T

import interp_widgets
from interp_widgets.analysis._core.cost import Cost
from interp_widgets.analysis.bias import score_crows, score_stereoset, train_bias_probes
from interp_widgets.analysis.bias.probes import LEAST_GROUPS, bias_probes_cost
from interp_widgets.analysis.continuations import Continuation, continuations_cost
from interp_widgets.arguments import short
from interp_widgets.data.bias import (
    CrowsPair,
    LabeledTexts,
    SentencePair,
    StereoSetExample,
    demo_bias_texts,
    demo_stereoset,
    labeled_texts,
    read_bias_data,
)
from interp_widgets.data.files import existing_file
from interp_widgets.models import Model

from ..base.code import cell
from ..base.controls import checked_path
from ..base.fields import Bounds, Incomplete, Refused, Seed, field, hint_at
from ..base.panel import Panel
from ..base.request import File, PerModel, Request, suffixes

KINDS = (StereoSetExample, CrowsPair, SentencePair)
DEMO = {
    "scores": ("data", "demo_stereoset()"), "labels": ("texts", "demo_bias_texts('train')"),
    "pairs": ("pairs", "demo_stereoset('train')"),
}  # fmt: skip
"""The variable of the demo's data in copied code, and the call that makes them, for each use."""
SAMPLED = 64
"""Texts sampled to forecast the cost of all."""


class _Data(T.Any):
    """A trait for examples of one type, stored as a tuple, or for labelled texts."""

    def validate(self, obj: Any, value: Any) -> Any:
        if value is None or isinstance(value, LabeledTexts):
            return value
        items = tuple(value) if isinstance(value, Sequence) and not isinstance(value, str) else (value,)
        kinds = {type(item) for item in items}
        if len(kinds) != 1 or not kinds <= set(KINDS):
            raise T.TraitError(
                "data must be a list of StereoSetExample, of CrowsPair or of SentencePair, or LabeledTexts, got "
                f"{short(value)}"
            )
        return items


@dataclass(frozen=True)
class Examples(PerModel):
    """The user's own examples, those of a file, or the demo's; of all domains or one."""

    own: Any = None
    file: File | None = None
    domain: str = ""
    use: Literal["scores", "labels", "pairs"] = "scores"
    """What they are for: scoring, labelled texts for probes, or pairs that an edit is made from."""

    def read(self) -> Any:
        """The examples or labelled texts; OSError or ValueError if they cannot be read."""
        return _read(self)

    def read_by(self, model: Model) -> Any:
        return self.read()

    def code(self, name: str) -> tuple[list[str], str]:
        name, made = DEMO[self.use] if self.own is None and self.file is None else ("data", "data")
        if self.file is not None:
            made = f"read_bias_data({self.file.path!r})"
        lines = [f"{name} = {made}" + ("  # the data passed to the widget" if self.own is not None else "")]
        if self.domain:
            lines.append(f"{name} = [example for example in {name} if example.domain == {self.domain!r}]")
        if self.use == "scores" and isinstance(_all_domains(self)[0], SentencePair):
            return lines, f"[CrowsPair(pair.biased, pair.benign, 'stereo', pair.domain) for pair in {name}]"
        return lines, name


@lru_cache(maxsize=8)
def _read(examples: Examples) -> Any:
    data = _all_domains(examples)
    if isinstance(data, LabeledTexts):
        if examples.use != "labels":
            raise ValueError("labelled texts are not pairs to compare: use them on the Probes tab")
        return data
    if examples.domain:
        domains = dict.fromkeys(example.domain for example in data)
        data = tuple(example for example in data if example.domain == examples.domain)
        if not data:
            raise Incomplete("domain", f"the domain must be one of {', '.join(domains)}, got {examples.domain!r}")
    if examples.use == "labels":
        return labeled_texts(data)
    if examples.use == "scores" and isinstance(data[0], SentencePair):
        return tuple(CrowsPair(pair.biased, pair.benign, "stereo", pair.domain) for pair in data)
    return data


@lru_cache(maxsize=8)
def _all_domains(examples: Examples) -> Any:
    """The examples of all domains, or labelled texts."""
    if examples.own is not None:
        return examples.own
    if examples.file is not None:
        return read_bias_data(examples.file.path)
    if examples.use == "labels":
        return demo_bias_texts("train")
    return demo_stereoset("train" if examples.use == "pairs" else "held_out")


class BiasOptions(Panel):
    """Base of the panels about one set of examples."""

    data = field(_Data(None, allow_none=True))
    """Your own examples, from a reader or made by hand; None for those of the file or, without one, the demo's."""
    data_file = field(
        str, label="File", width="grow", placeholder="the demo's groups", personal=True,
        help="StereoSet (.json), CrowS-Pairs (.csv) or your own pairs (.csv with columns biased and benign); empty: "
        "the demo's", shown_if=lambda panel: panel.data is None,
    )  # fmt: skip
    domain = field(str, label="Domain", placeholder="all", help="Only examples of this domain, such as gender")

    def examples(self, use: Literal["scores", "labels", "pairs"] = "scores") -> Examples:
        """The examples that the settings select; a wrong setting becomes a hint at its control."""
        demo = self.data is None and not self.data_file
        with hint_at("data_file"):
            file = None
            if self.data is None and self.data_file:
                file = File.at(str(existing_file(checked_path(self.data_file, "the path"), "sentences about bias")))
            labelled = isinstance(self.data, LabeledTexts) or (demo and use == "labels")
            examples = Examples(self.data, file, "" if labelled else self.domain.strip(), use)
            examples.read()
        return examples


def cell_of(request: Request, models: Sequence[Any], shown: str = "result") -> str:
    """A cell that repeats a request and ends with the expression `shown`; it imports the functions that it calls."""
    variable, dot, rest = shown.partition(".")
    lines = [*request.lines(models), f"{variable}{suffixes(models)[-1]}{dot}{rest}"]
    called = {name for line in lines for name in re.findall(r"\w+(?=\()", line)}
    return cell(called & set(dir(interp_widgets)), models, lines)


def sentences_of(data: Any) -> list[str]:
    """All sentences of the examples, or the labelled texts."""
    if isinstance(data, LabeledTexts):
        return list(data.texts)
    if isinstance(data[0], CrowsPair):
        return [sentence for pair in data for sentence in (pair.more, pair.less)]
    return [sentence for example in data for sentence in example.sentences]


def lengths_of(model: Model, texts: Sequence[str]) -> tuple[list[int], float]:
    """Token counts of a sample of the texts, and the number of texts per sampled one."""
    some = texts[:: max(1, len(texts) // SAMPLED)]
    return [max(1, len(ids)) for ids in model.token_lists(list(some))], len(texts) / len(some)


def reading_cost(model: Model, texts: Sequence[str]) -> Cost:
    """The cost of scoring every token of the texts but the first."""
    return continuations_cost(
        model, [Continuation(tuple(ids[:1]), tuple(ids[1:])) for ids in model.token_lists(list(texts)) if len(ids) > 1]
    )


def sampled_cost(data: Sequence[Any], cost_of: Callable[[Sequence[Any]], Cost]) -> Cost:
    """The cost of scoring data, extrapolated from a sample."""
    some = data[:: max(1, len(data) // SAMPLED)]
    cost = cost_of(some)
    return Cost(cost.flops * len(data) / len(some), cost.bytes)


def scores_request(examples: Examples) -> Request:
    """The call that scores examples by the rules of their data set."""
    crows = isinstance(examples.read()[0], CrowsPair)
    return Request.of(score_crows if crows else score_stereoset, {}, examples)


def scores_cost(examples: Examples, model: Model) -> Cost:
    """The cost of scoring the examples."""
    return sampled_cost(examples.read(), lambda some: reading_cost(model, sentences_of(some)))


class ProbeOptions(BiasOptions):
    """Base of the panels that train probes."""

    cached_as = "bias"
    pool = field(
        {"mean": "mean over the tokens", "last": "last token"}, "mean", label="State",
        help="Residual-stream state of a text that a probe reads",
    )  # fmt: skip
    splits = field(
        Annotated[int, Bounds(2, 100)], 5, label="Splits", width="short", more=True,
        help="Number of random splits of the groups into training and test groups",
    )  # fmt: skip
    penalty = field(
        Annotated[float, Bounds(1e-9, 1e9)], 1.0, label="Penalty", width="short", more=True,
        help="Weight of the squared norm of a probe's coefficients",
    )  # fmt: skip
    seed = field(Seed, 0, label="Seed", width="short", more=True, help="Seed of the splits and of the shuffled labels")

    @property
    def n_neurons(self) -> int:
        """Number of MLP neurons of the smaller model."""
        return min(model.n_layers * model.d_mlp for model in self.models)

    def check_neurons(self, k: int) -> None:
        """Raise if k is more neurons than the smaller model has."""
        if k > self.n_neurons:
            raise Refused("k", f"k must be in 1..{self.n_neurons} for the neurons of these models, got {k}")

    def probes_request(self) -> Request:
        """The call that trains the probes."""
        examples = self.examples("labels")
        texts: LabeledTexts = examples.read()
        if len(set(texts.biased)) < 2:
            kind = "biased" if texts.biased[0] else "benign"
            raise Incomplete("data_file", f"the texts are all {kind}: a probe needs biased and benign ones")
        if texts.n_groups < LEAST_GROUPS:
            raise Incomplete("data_file", f"an accuracy of {texts.n_groups} groups says nothing: give {LEAST_GROUPS}")
        options = {name: getattr(self, name) for name in ("pool", "splits", "penalty", "seed")}
        return Request.of(train_bias_probes, options, examples)

    def probes_cost(self, request: Request, model: Model) -> Cost:
        """The cost of training the probes."""
        texts, options = sentences_of(request.inputs[0].read()), dict(request.arguments)
        lengths, times = lengths_of(model, texts)
        return bias_probes_cost(model, [round(sum(lengths) / len(lengths))] * round(times * len(lengths)),
                                splits=options["splits"])  # fmt: skip
