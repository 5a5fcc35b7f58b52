"""One prompt and response, checked and turned into what the methods compute on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from interp_widgets.analysis.prompts import single_token, token_spans
from interp_widgets.analysis.targets import Aim, Target, read
from interp_widgets.analysis.tensors import to_numpy
from interp_widgets.models import Model
from interp_widgets.models.engine import encode


@dataclass(frozen=True)
class Case:
    """A prompt and response as the model is fed, and what of it the user sees.

    The tokens fed are all but the last response token. `first` is the position whose hidden state predicts the first
    response token; prompt tokens shown are at positions `offset`..first.
    """

    model: Model
    prompt_ids: tuple[int, ...]
    """Fed, with the BOS if there is one."""
    response_ids: tuple[int, ...]
    offset: int
    """1 if the prompt begins with a BOS, which is on no axis, else 0."""
    embeddings: Tensor
    """(1, fed, d_model) token embeddings."""
    aim: Aim
    foil: int | tuple[int, ...] | None
    spans: tuple[tuple[int, int], ...] | None
    """(prompt, 2) characters of each shown prompt token, where the prompt was given as text."""

    @property
    def n_prompt(self) -> int:
        """Prompt tokens on the axis."""
        return len(self.prompt_ids) - self.offset

    @property
    def n_response(self) -> int:
        """Response tokens."""
        return len(self.response_ids)

    @property
    def n_fed(self) -> int:
        """Tokens that the model reads."""
        return len(self.prompt_ids) + self.n_response - 1

    @property
    def first(self) -> int:
        """Position whose hidden state predicts the first response token."""
        return len(self.prompt_ids) - 1

    def rows(self) -> Tensor:
        """(prompt,) positions of the shown prompt tokens."""
        return torch.arange(self.offset, len(self.prompt_ids), device=self.embeddings.device)

    @torch.no_grad()
    def clean(self) -> Tensor:
        """(1, response, width) hidden states that predict the response, nothing changed."""
        return encode(self.model, self.embeddings, positions=slice(self.first, None))

    def probability(self, hidden: Tensor) -> NDArray[np.floating[Any]]:
        """(response,) probability of each response token from its hidden states (1, response, width)."""
        return to_numpy(read(self.model, hidden, self.aim.probability())[0])


def make_case(
    model: Model,
    prompt: str | Sequence[int],
    response: str | Sequence[int] | None,
    *,
    target: Target,
    foil: str | int | Sequence[int] | None,
    max_new_tokens: int,
    prepend_bos: bool | None,
    check: Callable[[], None] | None,
) -> Case:
    """Check a prompt and a response, let the model write the response if there is none.

    Raises ValueError in one sentence for an empty or too long prompt or response, special tokens only, a bad foil.
    """
    prompt_ids, response_ids = model.split(prompt, response, prepend_bos=prepend_bos)
    offset = int(bool(prompt_ids) and model.bos_token_id is not None and prompt_ids[0] == model.bos_token_id)
    if len(prompt_ids) == 0:
        raise ValueError("the prompt is empty: write at least one word")
    if all(model.is_special(prompt_ids)):
        raise ValueError("the prompt holds only special tokens, which have no words to attribute to: add some text")
    if response is None:
        response_ids = _write(model, prompt_ids, max_new_tokens, check)
    elif len(response_ids) == 0:
        raise ValueError("the response is empty: write some text, or leave it out and the model writes one")
    _check_length(model, len(prompt_ids), len(response_ids))
    foil_ids = _foil_ids(model, foil, target, len(response_ids))
    fed = [*prompt_ids, *response_ids[:-1]]
    device = model.device
    return Case(
        model=model,
        prompt_ids=tuple(prompt_ids),
        response_ids=tuple(response_ids),
        offset=offset,
        embeddings=model.token_embeddings(fed)[None],
        aim=Aim(
            target,
            torch.tensor(response_ids, device=device),
            None if foil_ids is None else torch.tensor(foil_ids, device=device),
        ),
        foil=None if foil_ids is None else foil_ids[0] if len(set(foil_ids)) == 1 else tuple(foil_ids),
        spans=token_spans(model, prompt, len(prompt_ids) - offset),
    )


def _write(model: Model, prompt_ids: Sequence[int], max_new_tokens: int, check: Callable[[], None] | None) -> list[int]:
    _check_length(model, len(prompt_ids), 1)
    room = min(max_new_tokens, model.n_ctx - len(prompt_ids))
    written: list[int] = model.generate_ids(prompt_ids, max_new_tokens=room, check=check)
    if not written:
        raise ValueError("the model ended its response at once: give a response, or change the prompt")
    return written


def _check_length(model: Model, n_prompt: int, n_response: int) -> None:
    if n_prompt >= model.n_ctx:
        raise ValueError(
            f"the prompt has {n_prompt} tokens and the model reads {model.n_ctx} with the response: "
            f"shorten it by at least {n_prompt + 1 - model.n_ctx}"
        )
    over = n_prompt + n_response - model.n_ctx
    if over > 0:
        raise ValueError(
            f"prompt ({n_prompt} tokens) and response ({n_response}) are {over} tokens longer than the model's context "
            f"of {model.n_ctx}: shorten either by {over}"
        )


def _foil_ids(model: Model, foil: str | int | Sequence[int] | None, target: Target, count: int) -> list[int] | None:
    if target != "logit_difference":
        if foil is not None:
            raise ValueError(f"a foil is only used by target='logit_difference', got target={target!r}: leave foil out")
        return None
    if foil is None or foil == "":
        raise ValueError("target 'logit_difference' needs a foil: give foil=, a token id or the text of one token")
    if isinstance(foil, str | int):
        return [single_token(model, foil, what="foil")] * count
    many = [int(i) for i in foil]
    if len(many) != count:
        raise ValueError(f"foil must be one token, or one per response token ({count}), got {len(many)}")
    wrong = next((i for i in many if not 0 <= i < model.d_vocab), None)
    if wrong is not None:
        raise ValueError(f"the foil must be in 0..{model.d_vocab - 1} for this vocabulary, got {wrong}")
    return many
