"""What a logit lens explorer asks for: one frozen object per run."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from interp_widgets.analysis._core.prompts import read_prompt, single_token
from interp_widgets.analysis.logit_lens import Cost, LogitLensResult, logit_lens, logit_lens_cost
from interp_widgets.models import Model

from ..base.code import call
from ..base.prediction import Prediction
from ..base.request import model_variables, result_variables

LEAST_TOP = 10
"""Tokens kept per cell at least, so that shorter lists need no run."""


@dataclass(frozen=True)
class LensRequest:
    """One lens on a prompt and response as a whole; which of their positions is looked at makes no other request."""

    prompt: str
    response: str = ""
    target: str | int | None = None
    """Text or id of the token that is followed; None: what the (of two, the second) model finds likeliest."""
    top: int = LEAST_TOP
    """Likeliest tokens kept per cell."""
    translators: str = ""
    """Path of the tuned lens's translators; empty: the logit lens."""
    stamp: tuple[int, int] | None = None
    """Size and time of that file, so that another file under the same name is another request."""

    def ids(self, model: Model) -> list[int]:
        """Ids of prompt and response, with the BOS where the model has one."""
        prompt, response = model.split(self.prompt, self.response)
        return [*prompt, *response]

    def answer(
        self, model: Model, chooser: Any, *, progress: Callable[[int, int], None], check: Callable[[], None]
    ) -> LogitLensResult:
        """Run the lens on one model; `chooser` is the model whose likeliest token is the target where none is given."""
        ids = self.ids(model)
        target = self.target
        if target is None:
            check()
            target = likeliest(chooser, ids)
        return logit_lens(
            model, ids, target=target, top=min(self.top, model.d_vocab), translators=self.translators or None,
            progress=progress, check=check,
        )  # fmt: skip

    def cost(self, model: Model) -> Cost:
        """Operations and bytes."""
        return logit_lens_cost(model, len(self.ids(model)))

    def code(self, models: Sequence[Any], target: str | int | None) -> list[str]:
        """Lines of a cell that repeat it; `target` as it is to be written."""
        names = model_variables(models)
        lines = [f"prompt = {self.prompt!r}"]
        sequence = "prompt"
        if self.response:
            lines = [
                f"prompt, response = {self.prompt!r}, {self.response!r}",
                f"prompt_ids, response_ids = {names[0]}.split(prompt, response)",
            ]
            sequence = "[*prompt_ids, *response_ids]"
        options: dict[str, Any] = {"target": target, "top": self.top}
        if self.translators:
            options["translators"] = self.translators
        for name, result in zip(names, result_variables(models), strict=True):
            lines.append(f"{result} = {call('logit_lens', name, sequence, **options)}")
        return lines


def likeliest(model: Model, ids: list[int]) -> int:
    """The token that a model finds likeliest after a sequence."""
    read_prompt(model, ids)  # says what is wrong with an empty or too long one
    logits = model.forward(model.token_embeddings(ids)[None], positions=slice(-1, None))
    return int(logits[0, -1].argmax())


def stamp(path: str) -> tuple[int, int] | None:
    """Size and time of change of a file of translators; None for no path. FileNotFoundError where there is no file."""
    if not path:
        return None
    try:
        found = os.stat(os.path.expanduser(path))
    except OSError as error:
        raise FileNotFoundError(
            f"there is no file of translators at {path}: check the path, or empty the box for the logit lens"
        ) from error
    return found.st_size, found.st_mtime_ns


def request_of(prediction: Prediction, model: Model, *, top: int, translators: str) -> LensRequest:
    """The request that answers a prediction: its response token, chosen by place, becomes a target by id.

    Raises ValueError for a text that does not fit or a target of several tokens, before there is a run to wait for.
    """
    target, path = prediction.read(model)[1], translators.strip()
    request = LensRequest(prediction.prompt, prediction.response, target, max(top, LEAST_TOP), path, stamp(path))
    read_prompt(model, request.ids(model), what="prompt with its response" if prediction.response else "prompt")
    if target is not None:
        single_token(model, target)
    return request


def token_text(model: Model, token: int) -> str | None:
    """The text that is read as just this token; None where there is none, as for a part of a character."""
    text: str = model.token_strings([token])[0]
    return text if model.tokens(text, prepend_bos=False) == [token] else None
