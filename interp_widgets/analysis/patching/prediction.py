"""`patched_prediction`: the next-token distributions of both prompts and with one value patched."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from interp_widgets.analysis._core.arrays import Floats
from interp_widgets.analysis._core.checks import check_choice, check_finite, check_top
from interp_widgets.analysis._core.result import Result, provenance, record, with_axes
from interp_widgets.analysis._core.tables import DataFrame, table
from interp_widgets.analysis.patching.activation import HEAD_SITES, PatchSite, cell_patch, check_sites, ordered
from interp_widgets.analysis.patching.pairs import Alignment, Direction, read_pairs
from interp_widgets.arguments import checked
from interp_widgets.models import Model
from interp_widgets.models.chat import PromptInput
from interp_widgets.models.engine import Trace, decode, patched, trace
from interp_widgets.models.patching import Patch
from interp_widgets.models.top_k import ranked


@record
class PatchedPrediction(Result):
    """The likeliest next tokens of the clean, the corrupted and the patched run.

    Example:
        >>> clean, corrupted = "The capital of France is", "The capital of Italy is"
        >>> result = patched_prediction(model, clean, corrupted, "head", 0, head=1, top=2)
        >>> result.tokens[:2], result.patched.shape == result.clean.shape
        ((' Paris', ' Rome'), True)
    """

    ids: Sequence[int] = with_axes("tokens")
    """Ids of the likeliest tokens: of the patched run, then those of the clean and the corrupted run not among them,
    each in falling order of probability."""

    tokens: Sequence[str] = with_axes("tokens")
    """Readable tokens."""

    clean: Floats = with_axes("tokens", nan=False)
    """Probability after the clean prompt, 0..1."""

    corrupted: Floats = with_axes("tokens", nan=False)
    """Probability after the corrupted prompt, 0..1."""

    patched: Floats = with_axes("tokens", nan=False)
    """Probability in the patched run, 0..1."""

    site: str
    """What was patched, a :data:`PatchSite`."""

    direction: str
    """``denoising`` or ``noising``."""

    def to_frame(self) -> DataFrame:
        """One row per token: id, token, and its probability in each run."""
        columns = {"token": self.tokens, "clean": self.clean, "corrupted": self.corrupted, "patched": self.patched}
        return table({"id": self.ids}, columns)


@checked
def patched_prediction(
    model: Model,
    clean: PromptInput,
    corrupted: PromptInput,
    site: PatchSite,
    layer: int,
    *,
    head: int | None = None,
    position: int = -1,
    direction: Direction = "denoising",
    alignment: Sequence[Sequence[int]] | Literal["ends"] | None = None,
    top: int = 10,
    prepend_bos: bool | None = None,
) -> PatchedPrediction:
    """The next token's probabilities after both prompts and with one cell of `activation_patching` patched.

    Args:
        model: what `load_model` returns.
        clean, corrupted: text, token ids or the messages of a chat.
        site, layer, head, position: the cell; a head for sites with heads, a position of the prompt that is run (not
            for ``"pattern"``).
        direction, alignment: as in `activation_patching`.
        top: number of likeliest tokens listed of each run.
        prepend_bos: overrides the model's BOS policy for texts.

    Raises:
        ValueError: a cell that the model does not have, a position that is aligned with none, what
            `activation_patching` refuses.

    Example:
        >>> result = patched_prediction(model, "The capital of France is", "The capital of Italy is", "resid_pre", 5)
        >>> result.to_frame().head(1).round(2)
             id   token  clean  corrupted  patched
        0  1691   Paris    1.0        0.0      1.0
    """
    check_choice("direction", direction, Direction)
    check_sites(model, (site,))
    check_top(top, model)
    (pair,) = read_pairs(model, clean, corrupted, None, None, "logit_difference", prepend_bos)
    run_positions, sources = Alignment.of(pair, alignment).into(direction)
    run_prompt, source_prompt = ordered(pair.clean, pair.corrupted, direction)
    at = run_prompt.position(position)
    if site != "pattern" and at not in run_positions:
        raise ValueError(f"position {at} is aligned with none in the other prompt: add it to alignment")
    taken = 0 if site == "pattern" else sources[run_positions.index(at)] + source_prompt.offset
    inside = HEAD_SITES.get(site)
    traces = [
        trace(model, prompt.embeddings(), sites=() if inside is None else (inside,))
        for prompt in (pair.clean, pair.corrupted)
    ]
    run, source = ordered(traces[0], traces[1], direction)
    patch = cell_patch(model, site, source, layer, head, at + run_prompt.offset, taken)
    probabilities = _probabilities(model, traces, run, patch)
    ids: list[int] = []
    for row in (2, 0, 1):
        ids += [i for i in ranked(probabilities[row], top)[1].tolist() if i not in ids]
    first, second, third = (probabilities[row, ids].numpy() for row in range(3))
    return PatchedPrediction(
        ids=ids,
        tokens=model.single_token_strings(ids),
        clean=first,
        corrupted=second,
        patched=third,
        site=site,
        direction=direction,
        provenance=provenance(
            model.provenance(), layer=layer, head=head, position=at, top=top, bos=run_prompt.offset == 1
        ),
    )


@torch.no_grad()
def _probabilities(model: Model, traces: Sequence[Trace], run: Trace, patch: Patch) -> Tensor:
    """(3, d_vocab) next-token probabilities of the clean, the corrupted and the patched run, float64 on the CPU: in
    float32, different logits can have equal probabilities."""
    hidden = torch.cat([*(one.hidden for one in traces), patched(model, run, [patch], 1)])
    logits: Tensor = decode(model, hidden).cpu().double()
    names = ("clean", "corrupted", "patched")
    check_finite(logits.amax(-1), lambda number: f"the largest logit of the {names[number]} run")
    return logits.softmax(-1)
