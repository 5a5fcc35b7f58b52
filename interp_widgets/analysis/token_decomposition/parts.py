"""Sources through the frozen layers: the parts of one position's residual stream, and their lens."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from interp_widgets.analysis.prompts import Prompt
from interp_widgets.analysis.tensors import as_array, to_numpy
from interp_widgets.analysis.token_decomposition.lens import Lens, PartLens
from interp_widgets.analysis.token_decomposition.result import TokenDecompositionResult
from interp_widgets.models.devices import widest
from interp_widgets.models.engine.linearised import LinearisedPass

Biases = Literal["separate", "spread"]
"""Where the model's biases go: a part of their own, or onto the tokens' parts in proportion to their norms."""


@dataclass
class Parts:
    """The parts of one position's stream while they are computed, chunk of sources by chunk."""

    prompt: Prompt
    frozen: LinearisedPass
    lens: PartLens
    last: int
    biases: Biases
    kind: Lens | None
    target: int | None

    def __post_init__(self) -> None:
        layers, width = self.frozen.residual.shape
        start, sources = self.frozen.start, self.last + 1
        self.parts = start.new_full((layers, sources, width), math.nan)
        self.bias = start.new_full((layers, width), math.nan)
        self.top = start.new_full((layers, sources + 1), -1, dtype=torch.long)
        """The lens of every source and, last, of what no shown token brought."""
        self.probability = start.new_full((layers, sources + 1), math.nan, dtype=widest(start.device))
        self.wanted = self.probability.clone()

    def propagate(self, start: int, stop: int) -> None:
        """The sources start..stop through all layers; the biases go with the first."""
        bias = start == 0
        found = self.frozen.parts(start, stop, bias=bias)
        self.parts[:, start:stop] = found[:, int(bias) :]
        if bias:
            self.bias[:] = found[:, 0]
        if self.biases == "separate":
            self._read(start, stop)
            if bias:
                self._read_bias()

    def _read(self, start: int, stop: int) -> None:
        if self.kind is not None:
            self._note(slice(start, stop), self.parts[:, start:stop])

    def _note(self, places: slice, parts: Tensor) -> None:
        if self.kind is None:
            return
        self.top[:, places], self.probability[:, places], wanted = self.lens.top(parts, self.kind, self.target)
        if wanted is not None:
            self.wanted[:, places] = wanted

    def _read_bias(self) -> None:
        """The lens of what no shown token brought."""
        self._note(slice(self.last + 1, None), self._rest()[:, None])

    def _rest(self) -> Tensor:
        """(layers + 1, d_model) biases and BOS."""
        found: Tensor = self.bias + self.parts[:, 0] if self.prompt.offset else self.bias
        return found

    def finish(self) -> None:
        """Spread the biases where asked, and read what was not read yet."""
        if self.biases == "separate":
            return
        norms = torch.linalg.vector_norm(self.parts, dim=-1, keepdim=True)
        self.parts += norms / norms.sum(1, keepdim=True) * self.bias[:, None]
        self.bias.zero_()
        self._read(0, self.last + 1)
        self._read_bias()

    def error(self) -> Tensor:
        """(layers + 1,) relative error of the sum."""
        residual = self.frozen.residual
        missing = self.parts.sum(1) + self.bias - residual
        found: Tensor = torch.linalg.vector_norm(missing, dim=-1) / torch.linalg.vector_norm(residual, dim=-1)
        return found

    def result(self, told: dict[str, Any], *, partial: bool = False) -> TokenDecompositionResult:
        prompt, offset, later = self.prompt, self.prompt.offset, len(self.prompt.ids) - 1 - self.last
        shown = slice(offset, self.last + 1)
        bias = self._rest()
        fields: dict[str, Any] = {}
        if self.kind is not None:
            fields |= {"top_token": as_array(_padded(self.top[:, shown], later, -1))}
            fields |= {"probability": to_numpy(_padded(self.probability[:, shown], later, 0))}
            fields |= {"bias_top_token": as_array(self.top[:, -1])}
            fields |= {"bias_probability": to_numpy(self.probability[:, -1])}
            held = np.unique(np.concatenate([fields["top_token"].ravel(), fields["bias_top_token"]]))
        else:
            held = np.zeros(0, dtype=int)
        if self.target is not None:
            fields |= {"target": self.target, "target_token": prompt.model.token_strings([self.target])[0]}
            fields |= {"target_logit": to_numpy(_padded(self.lens.logit(self.parts[:, shown], self.target), later, 0))}
            share = self.lens.logit(bias[:, None], self.target)[:, 0] + self.lens.constant(self.target)
            fields |= {"target_bias": to_numpy(share)}
            if self.kind is not None:
                fields |= {"target_probability": to_numpy(_padded(self.wanted[:, shown], later, 0))}
        ids = sorted(
            {*held[held >= 0].tolist(), *prompt.shown_ids, *([self.target] if self.target is not None else [])}
        )
        texts = [prompt.model.token_strings([token])[0] for token in ids]
        return TokenDecompositionResult(
            parts=to_numpy(_padded(self.parts[:, shown], later, 0)),
            bias=to_numpy(bias),
            error=to_numpy(self.error()),
            tokens=prompt.tokens(),
            ids=prompt.shown_ids,
            special=prompt.special(),
            position=self.last - offset,
            residual=to_numpy(self.frozen.residual),
            bos=to_numpy(self.parts[:, 0]) if offset else None,
            bos_id=prompt.bos_id,
            biases=self.biases,
            lens=self.kind,
            names={str(token): text for token, text in zip(ids, texts, strict=True)},
            partial=partial,
            provenance=told,
            **fields,
        )


def _padded(found: Tensor, later: int, fill: float) -> Tensor:
    """With sources after the position, which brought nothing; a copy."""
    more = found.new_full((found.shape[0], later, *found.shape[2:]), fill)
    return torch.cat([found, more], dim=1)
