"""A prompt and its response as the input of the attribution methods."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from interp_widgets.analysis._core.arrays import Floats
from interp_widgets.analysis._core.prompts import Prompt, read_prompt_and_response, single_token
from interp_widgets.analysis._core.run import Check
from interp_widgets.analysis._core.targets import Target, Targets, check_foil, read
from interp_widgets.analysis._core.tensors import to_numpy, wide
from interp_widgets.models import Model
from interp_widgets.models.chat import PromptInput
from interp_widgets.models.engine import Prefix, decode, encode, prefix
from interp_widgets.models.top_k import ranked

RUNNER_UP = "runner_up"
"""As a foil: the likeliest other token in the place of each response token."""
_ROUNDINGS = 16
"""The rounding error of a pass through a model, in roundings of a single number."""


@dataclass(frozen=True)
class Case:
    """A prompt and response as fed to the model: all tokens but the last one of the response.

    `first` is the position whose hidden state predicts the first response token; prompt tokens shown are at positions
    ``prompt.offset``..first.
    """

    model: Model
    prompt: Prompt
    response_ids: tuple[int, ...]
    embeddings: Tensor
    """(1, fed, d_model) token embeddings."""
    targets: Targets
    foil: int | tuple[int, ...] | None
    prefix: Prefix
    """Keys and values of the prompt's positions in the clean run."""
    hidden: Tensor
    """(1, response, width) hidden states that predict the response in the clean run."""

    @property
    def n_prompt(self) -> int:
        """Prompt tokens on the axis."""
        return self.prompt.n_shown

    @property
    def n_response(self) -> int:
        """Response tokens."""
        return len(self.response_ids)

    @property
    def n_fed(self) -> int:
        """Tokens that the model reads."""
        return self.embeddings.shape[1]

    @property
    def first(self) -> int:
        """Position whose hidden state predicts the first response token."""
        return len(self.prompt.ids) - 1

    @property
    def shown(self) -> range:
        """Positions of the shown prompt tokens."""
        return range(self.prompt.offset, len(self.prompt.ids))

    @property
    def rows(self) -> slice:
        """Positions of the shown prompt tokens, as a slice."""
        return slice(self.shown.start, self.shown.stop)

    @property
    def probability(self) -> Floats:
        """(response,) probability of each response token."""
        return to_numpy(read(self.model, self.hidden, self.targets.probability())[0])

    @property
    def rounding(self) -> Floats:
        """(response,) rounding error of each target in its unit."""
        references = [self.targets]
        if self.targets.kind != "probability":  # a log-probability near 0 and a difference keep the rounding of logits
            references = [Targets("logit", ids) for ids in (self.targets.ids, self.targets.foils) if ids is not None]
        sizes = [to_numpy(read(self.model, self.hidden, targets)[0].abs()) for targets in references]
        return np.asarray(_ROUNDINGS * torch.finfo(self.model.precision).eps * np.maximum.reduce(sizes))


def make_case(
    model: Model,
    prompt: PromptInput,
    response: str | Sequence[int] | None,
    *,
    target: Target,
    foil: str | int | Sequence[int] | None,
    max_new_tokens: int,
    prepend_bos: bool | None,
    check: Check,
) -> Case:
    """Check a prompt, a response and a foil; without a response the model writes one.

    Raises ValueError for an input that `read_prompt_and_response` refuses, or a bad foil.
    """
    check_foil("target", target, foil)
    tokens, response_ids = read_prompt_and_response(
        model, prompt, response, max_new_tokens=max_new_tokens, prepend_bos=prepend_bos, check=check
    )
    embeddings, shared, hidden = _clean_run(model, tokens.ids, response_ids)
    is_runner_up = foil == RUNNER_UP
    foils = (
        _likeliest_others(model, hidden, response_ids) if is_runner_up else _foil_ids(model, foil, len(response_ids))
    )
    foil_tensor = None if foils is None else torch.tensor(foils, device=model.device)
    return Case(
        model=model,
        prompt=tokens,
        response_ids=response_ids,
        embeddings=embeddings,
        targets=Targets(target, torch.tensor(response_ids, device=model.device), foil_tensor),
        foil=None if foils is None else foils[0] if len(set(foils)) == 1 else tuple(foils),
        prefix=shared,
        hidden=hidden,
    )


@torch.no_grad()
def _clean_run(model: Model, prompt_ids: Sequence[int], response_ids: Sequence[int]) -> tuple[Tensor, Prefix, Tensor]:
    """The embeddings of all fed tokens, the prompt's keys and values, and the states that predict the response."""
    embeddings, first = model.token_embeddings([*prompt_ids, *response_ids[:-1]])[None], len(prompt_ids) - 1
    shared = prefix(model, embeddings[:, : first + 1])
    return embeddings, shared, encode(model, embeddings[:, first:], prefix=shared.first(first))


def runner_ups(
    model: Model, prompt: PromptInput, response: str | Sequence[int], *, check: Check = None
) -> tuple[int, ...]:
    """The likeliest other token in the place of each response token, as ids.

    Raises ValueError for an input that `read_prompt_and_response` refuses.
    """
    tokens, ids = read_prompt_and_response(
        model, prompt, response, max_new_tokens=0, prepend_bos=None, check=check
    )  # fmt: skip
    return tuple(_likeliest_others(model, _clean_run(model, tokens.ids, ids)[2], ids))


@torch.no_grad()
def _likeliest_others(model: Model, hidden: Tensor, response_ids: Sequence[int]) -> list[int]:
    """The likeliest other token in the place of each response token, from the states (1, response, width)."""
    found: list[int] = []
    for state, own in zip(hidden[0], response_ids, strict=True):
        best, second = ranked(wide(decode(model, state[None]))[0], 2)[1].tolist()
        found.append(second if best == own else best)
    return found


def _foil_ids(model: Model, foil: str | int | Sequence[int] | None, count: int) -> list[int] | None:
    if foil is None:
        return None
    if isinstance(foil, str | int):
        return [single_token(model, foil, what="foil")] * count
    if len(foil) != count:
        raise ValueError(f"foil must be one token, or one per response token ({count}), got {len(foil)}")
    return [single_token(model, token, what="foil") for token in foil]
