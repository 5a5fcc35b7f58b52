"""The analyses that can run on every row of a data set."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from interp_widgets.analysis._core.cost import Cost
from interp_widgets.analysis._core.result import Result
from interp_widgets.analysis.ablation import (
    ablate_heads,
    ablate_modules,
    ablation_cost,
    causal_trace,
    causal_trace_cost,
)
from interp_widgets.analysis.logit_lens import logit_lens, logit_lens_cost
from interp_widgets.analysis.saliency import prompt_saliency, saliency_cost
from interp_widgets.analysis.token_decomposition import decompose_logit, decomposition_cost
from interp_widgets.models import Model

MODULES = ("attn", "mlp")


@dataclass(frozen=True)
class RowAnalysis:
    """An analysis of one row."""

    label: str
    """Its name in the list."""
    function: Callable[..., Any]
    cost: Callable[[Model, int], Cost]
    """Cost for a prompt with this number of tokens."""
    needs_subject: bool = False
    whole_answer: bool = False
    """Whether it analyses the whole answer, not only its first token."""

    def lines(self, options: Mapping[str, str], name: str, variable: str) -> list[str]:
        """Lines of a cell that define a function called `name` for one row."""
        row = {field: f"row[{column!r}]" for field, column in options.items() if column}
        arguments = [variable, row["prompt"]]
        if self.needs_subject:
            arguments.append(row["subject"])
        before = []
        if "target" in row and self.whole_answer:
            arguments.append(row["target"])
        elif "target" in row:
            before = [f"    ids, answer = {variable}.split({row['prompt']}, {row['target']})"]
            if not self.needs_subject:
                arguments[1] = "ids"
            arguments.append("target=answer[0]")
        if self.function is ablate_modules:
            arguments.append(f"kinds={list(MODULES)!r}")
        return [f"def {name}(row):", *before, f"    return {self.function.__name__}({', '.join(arguments)})"]


ANALYSES: Mapping[str, RowAnalysis] = {
    "lens": RowAnalysis("Logit lens: what is predicted, from which layer on", logit_lens, logit_lens_cost),
    "modules": RowAnalysis(
        "Ablation: which attention or MLP it needs most", ablate_modules,
        lambda model, n: ablation_cost(model, n, MODULES),
    ),
    "heads": RowAnalysis(
        "Ablation: which head it needs most", ablate_heads,
        lambda model, n: ablation_cost(model, n, what="heads"),
    ),
    "tracing": RowAnalysis(
        "Causal tracing: where the subject is read", causal_trace, causal_trace_cost, needs_subject=True
    ),
    "decomposition": RowAnalysis(
        "Token decomposition: which token brings the answer", decompose_logit,
        lambda model, n: decomposition_cost(model, n, lens=False),
    ),
    "saliency": RowAnalysis(
        "Saliency: which token the answer depends on", prompt_saliency,
        lambda model, n: saliency_cost(model, n, 1, "exact"), whole_answer=True,
    ),
}  # fmt: skip


@dataclass(frozen=True)
class ChosenAnalysis:
    """An analysis and the columns that hold its inputs."""

    study: str
    """A key of `ANALYSES`."""
    prompt: str
    target: str = ""
    subject: str = ""

    @property
    def columns(self) -> dict[str, str]:
        """Column of each input."""
        return {"prompt": self.prompt, "target": self.target, "subject": self.subject}

    def parts(self, row: Mapping[str, Any]) -> tuple[str, str, str]:
        """Prompt, answer and subject of a row; empty without a column, ValueError if the row has no text in it."""
        missing = [column for column in self.columns.values() if column and not isinstance(row.get(column), str)]
        if missing:
            raise ValueError(f"{missing[0]!r} is not a text in this row")
        prompt, target, subject = (str(row[column]) if column else "" for column in self.columns.values())
        return prompt, target, subject

    def on(self, model: Model) -> Callable[[Mapping[str, Any]], Result]:
        """The function that a sweep calls for each row."""
        return partial(_analyse, model, self)


def _analyse(model: Model, chosen: ChosenAnalysis, row: Mapping[str, Any]) -> Result:
    analysis = ANALYSES[chosen.study]
    prompt, target, subject = chosen.parts(row)
    inputs: list[Any] = [prompt, subject] if analysis.needs_subject else [prompt]
    options: dict[str, Any] = {"kinds": MODULES} if analysis.function is ablate_modules else {}
    if target and analysis.whole_answer:
        inputs.append(target)
    elif target:
        ids, answer = model.split(prompt, target)  # together: both may share a token
        options["target"] = answer[0]
        if not analysis.needs_subject:
            inputs = [ids]
    result: Result = analysis.function(model, *inputs, **options)
    return result
