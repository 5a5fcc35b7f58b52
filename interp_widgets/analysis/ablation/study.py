"""What the three ablation maps share: reading the inputs, running chunks of cells, and the fields of a result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from interp_widgets.analysis._core.checks import whole_number
from interp_widgets.analysis._core.chunks import Runner
from interp_widgets.analysis._core.prompts import Prompt, read_prompt
from interp_widgets.analysis._core.result import provenance
from interp_widgets.analysis.ablation.question import Metric, Question, ask, check_metric
from interp_widgets.analysis.ablation.replacement import (
    Replacement,
    ReplacementValues,
    SiteOfLayer,
    Text,
    check_replacement,
    replacement_values,
)
from interp_widgets.models import Model
from interp_widgets.models.engine import Trace, patched, trace
from interp_widgets.models.patching import Patch

Check = Callable[[], None] | None
Progress = Callable[[int, int], None] | None


@dataclass(frozen=True)
class Asked:
    """The options that every ablation map takes, as the user gave them; what can be is checked at once."""

    target: str | int | None
    metric: str
    foil: str | int | None
    replacement: str
    reference: Sequence[Text] | None
    pooled: bool
    corrupted: Text | None
    prepend_bos: bool | None
    batch_size: int | None
    progress: Progress
    check: Check

    def __post_init__(self) -> None:
        check_metric(self.metric, self.foil)
        check_replacement(self.replacement, self.reference, self.corrupted)


@dataclass
class Study:
    """One prompt, what is asked of its next token, and the replacement values."""

    model: Model
    prompt: Prompt
    clean: Trace
    question: Question
    replacement: ReplacementValues
    runner: Runner
    asked: Asked

    def run(self, patches: Sequence[Patch], cells: int) -> Tensor:
        """(cells,) effects of one chunk."""
        hidden = patched(self.model, self.clean, patches, cells, check=self.asked.check)
        return self.question.effect(hidden)

    def fields(self, **options: Any) -> dict[str, Any]:
        """What a result says about the prompt, the target and how it was made."""
        asked, question = self.asked, self.question
        told: dict[str, Any] = {"metric": asked.metric, "target": question.target, "bos": self.prompt.offset == 1}
        told |= {"replacement": asked.replacement, **options}
        told |= {"foil": question.foil} if question.foil is not None else {}
        told |= {"pooled": asked.pooled, "reference": repr(asked.reference)} if asked.replacement == "mean" else {}
        told |= {"corrupted": repr(asked.corrupted)} if asked.replacement == "resample" else {}
        told |= {"largest_chunk": self.runner.log.largest, "chunk_halvings": self.runner.log.halvings}
        return {
            "prompt_tokens": self.prompt.tokens(),
            "prompt_ids": self.prompt.shown_ids,
            "prompt_special": self.prompt.special(),
            "target": question.target,
            "target_token": self.model.token_strings([question.target])[0],
            "metric": asked.metric,
            "clean": question.clean,
            "replacement": asked.replacement,
            "foil": question.foil,
            "bos_id": self.prompt.bos_id,
            "provenance": provenance(self.model.provenance(), **told),
        }


def make_study(
    model: Model,
    prompt: Prompt,
    asked: Asked,
    sites: Sequence[SiteOfLayer],
    total: int,
) -> Study:
    """Trace the prompt, check target and metric, prepare the replacement values of ``sites`` (site, layer)."""
    if asked.check is not None:
        asked.check()
    neurons = tuple(layer for site, layer in sites if site == "neuron")
    clean = trace(model, prompt.embeddings(), neurons=neurons)
    question = ask(model, clean.hidden, asked.target, metric=cast("Metric", asked.metric), foil=asked.foil)
    replacement = replacement_values(
        prompt, clean, cast("Replacement", asked.replacement), sites,
        reference=asked.reference, pooled=asked.pooled, corrupted=asked.corrupted,
        prepend_bos=asked.prepend_bos, check=asked.check,
    )  # fmt: skip
    runner = Runner(
        model, len(prompt.ids), asked.batch_size, asked.check, asked.progress, total=total,
        # as fast, less is computed twice where positions differ, and a cancel between layers is heard sooner
        fewest_tokens=256 if model.device.type == "cpu" else None,
    )  # fmt: skip
    return Study(model, prompt, clean, question, replacement, runner, asked)


def read(model: Model, prompt: Text, asked: Asked) -> Prompt:
    """The prompt, checked."""
    return read_prompt(model, prompt, prepend_bos=asked.prepend_bos)


def chosen_layers(model: Model, layers: Any) -> tuple[int, ...]:
    """Layer numbers, negative ones counted from the end; ValueError for an empty list or one out of range."""
    if layers is None:
        return tuple(range(model.n_layers))
    found = tuple(layer_number(model, layer) for layer in layers)
    return _without_repeats(found, "layers", f"0..{model.n_layers - 1}")


def layer_number(model: Model, layer: Any) -> int:
    """One layer, negative ones counted from the end."""
    count: int = model.n_layers
    found = whole_number(layer, "layer")
    if not -count <= found < count:
        raise ValueError(f"layer must be in 0..{count - 1} for this {count}-layer model, got {layer}")
    return found % count


def chosen_positions(prompt: Prompt, positions: Any) -> tuple[int, ...]:
    """Positions on the axis; ValueError for an empty list or one out of range."""
    if positions is None:
        return tuple(range(prompt.n_shown))
    found = tuple(prompt.position(position) for position in positions)
    return _without_repeats(found, "positions", f"0..{prompt.n_shown - 1}")


def _without_repeats(found: tuple[int, ...], what: str, allowed: str) -> tuple[int, ...]:
    if not found:
        raise ValueError(f"{what} is empty: name at least one of {allowed}, or leave {what} out for all")
    twice = next((one for one in found if found.count(one) > 1), None)
    if twice is not None:
        raise ValueError(f"{what} names {twice} twice: name each once")
    return found


def check_finite(effect: NDArray[np.floating[Any]], name: Callable[[tuple[int, ...]], str]) -> None:
    """ValueError that says where the first effect that is no number lies."""
    places = np.argwhere(~np.isfinite(effect))
    if places.size:
        where = name(tuple(int(i) for i in places[0]))
        raise ValueError(
            f"the effect of removing {where} is not finite, like {len(places)} of {effect.size} in all: look for "
            "broken weights, an edit by a hook, or half precision that overflows"
        )


def empty(study: Study, *shape: int) -> Tensor:
    """A map of NaN, float32 or wider."""
    kind = torch.float64 if study.model.dtype == torch.float64 else torch.float32
    return torch.full(shape, torch.nan, dtype=kind, device=study.model.device)
