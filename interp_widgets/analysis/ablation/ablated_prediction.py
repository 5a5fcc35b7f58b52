"""`ablated_prediction`: the next-token distribution with and without an ablation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from interp_widgets.analysis._core.arrays import Floats
from interp_widgets.analysis._core.checks import check_finite, check_top
from interp_widgets.analysis._core.prompts import Prompt, read_prompt
from interp_widgets.analysis._core.result import Result, provenance, record, with_axes
from interp_widgets.analysis._core.tables import DataFrame, table
from interp_widgets.analysis.ablation.contexts import Ablation, as_list, patches_of
from interp_widgets.arguments import checked
from interp_widgets.models import Model
from interp_widgets.models.chat import PromptInput
from interp_widgets.models.engine import forward
from interp_widgets.models.patching import PassPatch, patched_passes
from interp_widgets.models.top_k import ranked


@record
class AblatedPrediction(Result):
    """The likeliest next tokens without and with the ablations, and the KL divergence between the distributions."""

    ids: Sequence[int] = with_axes("tokens")
    """Ids of the likeliest tokens: first those before the ablation, then the likeliest after it that are new, both
    in falling order of probability."""

    tokens: Sequence[str] = with_axes("tokens")
    """Readable tokens."""

    before: Floats = with_axes("tokens", nan=False)
    """Probability without the ablations, 0..1."""

    after: Floats = with_axes("tokens", nan=False)
    """Probability with them, 0..1."""

    kl: float
    """KL(before ‖ after) over the whole vocabulary, nats; infinite where the ablation rules a possible token out."""

    prompt_tokens: Sequence[str] = with_axes("positions")
    """Readable tokens of the prompt, without the BOS."""

    ablations: Sequence[Ablation] = with_axes("ablations")
    """The ablations that were applied."""

    @property
    def change(self) -> NDArray[np.floating[Any]]:
        """(tokens,) probability after minus before."""
        return np.asarray(self.after - self.before)

    def to_frame(self) -> DataFrame:
        """One row per token: id, token, probability before, after, and the change."""
        columns = {"token": self.tokens, "before": self.before, "after": self.after, "change": self.change}
        return table({"id": self.ids}, columns)


@checked
def ablated_prediction(
    model: Model,
    prompt: PromptInput,
    ablations: Iterable[Ablation] | Ablation,
    *,
    top: int = 10,
    prepend_bos: bool | None = None,
) -> AblatedPrediction:
    """The next token's probabilities after a prompt, with and without some ablations.

    Both passes take the same route through the model, so that without ablations the change is exactly zero.

    Args:
        model: what `load_model` returns.
        prompt: text, token ids (then nothing is added) or the messages of a chat (`chat_prompt`).
        ablations: `Ablation` objects, with positions inside the prompt.
        top: number of likeliest tokens listed, before and after.
        prepend_bos: overrides the model's BOS policy for a text.

    Raises:
        ValueError: an empty or too long prompt, a position outside of it, ``top`` out of range, what `ablation`
            refuses, or logits that are not finite.

    Example:
        >>> result = ablated_prediction(model, "The Eiffel Tower is in the city of", Ablation("mlp", 5))
        >>> result.to_frame().head(1).round(2)
             id   token  before  after  change
        0  1691   Paris     1.0   0.98   -0.02
    """
    read = read_prompt(model, prompt, prepend_bos=prepend_bos)
    check_top(top, model)
    listed = as_list(ablations)
    patches = patches_of(model, listed)
    for ablated in listed:
        read.positions(ablated.positions)
    before, after = _log_probabilities(read, []), _log_probabilities(read, patches)
    ids: list[int] = ranked(before, top)[1].tolist()
    ids += [i for i in ranked(after, top)[1].tolist() if i not in ids]
    kl = torch.where(before > -torch.inf, before.exp() * (before - after), 0.0).sum()
    return AblatedPrediction(
        ids=ids,
        tokens=model.single_token_strings(ids),
        before=before[ids].exp().numpy(),
        after=after[ids].exp().numpy(),
        kl=max(0.0, float(kl)),  # rounding may make it negative
        prompt_tokens=read.tokens(),
        ablations=listed,
        provenance=provenance(model.provenance(), top=top, bos=read.offset == 1),
    )


@torch.no_grad()
def _log_probabilities(prompt: Prompt, patches: Sequence[PassPatch]) -> Tensor:
    """(d_vocab,) natural log-probabilities of the next token, float64 on the CPU."""
    unchanged = PassPatch("resid", 0, lambda value: value)
    with patched_passes(prompt.model, [unchanged, *patches]):
        last = torch.tensor([len(prompt.ids) - 1], device=prompt.model.device)
        logits = forward(prompt.model, prompt.embeddings(), positions=last)[0, 0].cpu().double()
    # hooks may set logits to minus infinity to forbid tokens
    check_finite(logits.max(), f"the largest logit {'with these ablations' if patches else 'on this prompt'}")
    return logits.log_softmax(-1)
