"""The logit lens of single parts of a residual stream: final norm and unembedding applied to each part."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from interp_widgets.analysis._core.checks import check_top, index
from interp_widgets.analysis._core.tensors import log_sum
from interp_widgets.analysis.token_decomposition.decomposition_result import TokenDecompositionResult
from interp_widgets.models import Model
from interp_widgets.models.devices import accumulation_dtype, device_kind
from interp_widgets.models.engine import ReadOut, read_out
from interp_widgets.models.engine.linearised import rounded_gain, rounds_norms
from interp_widgets.models.top_k import ranked

Lens = Literal["own", "frozen"]
"""The scale by which the final norm divides a part: its ``own``, or the ``frozen`` one of the whole stream."""

_LOGITS = {"cpu": 2**18, "accelerator": 2**26}
"""Logits in memory at once: a megabyte in float32 on a CPU, which fits in the cache."""
_ROWS = 128


@dataclass(frozen=True)
class PartLens:
    """The lens of the parts of one residual stream."""

    model: Model
    read: ReadOut
    gain: Tensor
    """(layers + 1, d_model) factor of the final norm for the whole (centred) stream."""
    shift: Tensor
    """(d_model,) its bias."""

    @staticmethod
    def of(model: Model, residual: Tensor) -> PartLens:
        """For the stream ``residual`` (layers + 1, d_model)."""
        weight, shift = (model.weight(name).to(residual.dtype) for name in ("ln_final_w", "ln_final_b"))
        lens = PartLens(model, read_out(model), weight.expand_as(residual), shift)
        variance = lens._centred(residual).pow(2).mean(-1, keepdim=True)
        gain = weight / (variance + model.norm_epsilon).sqrt()
        if rounds_norms(model):
            gain = rounded_gain(gain, residual, lens.read.normed(residual))
        return replace(lens, gain=gain)

    def _centred(self, x: Tensor) -> Tensor:
        return x - x.mean(-1, keepdim=True) if self.model.normalization == "LayerNorm" else x

    def frozen(self, parts: Tensor) -> Tensor:
        """(layers + 1, sources, d_model) parts of the final norm's output, which is their sum plus `shift`."""
        return self._centred(parts) * self.gain[:, None]

    def directions(self, token: int) -> Tensor:
        """(layers + 1, d_model) gradient of one token's logit at the stream, with the whole stream's scale fixed."""
        column: Tensor = self.model.weight("W_U")[:, token].to(self.gain.dtype)
        return self._centred(column * self.gain)

    def last_directions(self, tokens: Tensor) -> Tensor:
        """(tokens, d_model) gradients of these tokens' logits at the last stream, with its scale fixed."""
        table = self.model.weight("W_U")
        return self._centred(table[:, tokens.to(table.device)].T.to(self.gain.dtype) * self.gain[-1])

    def drawn_directions(self, target: int, foil: int | None, draws: int, rng: np.random.Generator) -> Tensor:
        """(1 + draws, d_model) unit vectors on the CPU: the direction of the target (less that of the foil), then those
        of random other tokens (pairs of them); without a foil less the mean of all these, which all logits share. All
        other tokens where a vocabulary has no more."""
        others = np.setdiff1d(np.arange(self.model.d_vocab), [target] if foil is None else [target, foil])
        if foil is None:
            drawn = rng.choice(others, min(draws, len(others)), replace=False)
            directions = self.last_directions(torch.tensor([target, *drawn]))
            directions = directions - directions.mean(0)
        else:
            first = rng.integers(0, len(others), draws)
            second = (first + rng.integers(1, len(others), draws)) % len(others)
            plus, minus = [target, *others[first]], [foil, *others[second]]
            directions = self.last_directions(torch.tensor(plus)) - self.last_directions(torch.tensor(minus))
        exact = directions.cpu().double()
        unit: Tensor = exact / exact.norm(dim=-1, keepdim=True).clamp(min=1e-30)
        return unit

    def logit(self, parts: Tensor, token: int) -> Tensor:
        """(layers + 1, sources) contributions of parts to one token's logit in the lens of the whole stream."""
        return (parts @ self.directions(token)[..., None])[..., 0]

    def constant(self, token: int) -> float:
        """Contribution of the biases of the final norm and the unembedding to one token's logit."""
        column = self.model.weight("W_U")[:, token].to(self.shift.dtype)
        return float(self.shift @ column + self.model.weight("b_U")[token])

    def top(self, parts: Tensor, kind: Lens, target: int | None) -> tuple[Tensor, Tensor, Tensor | None]:
        """Top id, its probability and that of ``target``, each (layers + 1, sources), for parts (layers + 1, sources,
        d_model). Parts that are zero have id -1 and probability 0."""
        shape = parts.shape[:-1]
        chosen = parts.flatten(0, -2).any(-1).nonzero()[:, 0]
        rows = (self.frozen(parts) if kind == "frozen" else parts).flatten(0, -2)
        ids = torch.full((len(rows),), -1, dtype=torch.long, device=parts.device)
        best = torch.zeros(len(rows), dtype=accumulation_dtype(parts.device), device=parts.device)
        of_target = torch.zeros_like(best)
        for chunk in torch.split(chosen, _ROWS):
            ids[chunk], best[chunk], of_target[chunk] = self._reduce(rows[chunk], kind, target)
        return ids.view(shape), best.view(shape), None if target is None else of_target.view(shape)

    def _reduce(self, rows: Tensor, kind: Lens, target: int | None) -> tuple[Tensor, Tensor, Tensor]:
        """Top id, its probability and the target's for rows (rows, d_model), over blocks of the vocabulary."""
        total = torch.full((len(rows),), -torch.inf, dtype=accumulation_dtype(rows.device), device=rows.device)
        best, of_target = total.clone(), total.clone()
        ids = torch.zeros(len(rows), dtype=torch.long, device=rows.device)
        for first, logits in self._blocks(rows, kind):
            high, column = logits.max(-1)
            better = high > best
            best = torch.where(better, high.to(best.dtype), best)
            ids = torch.where(better, column + first, ids)
            total = log_sum(total, logits)
            if target is not None and 0 <= target - first < logits.shape[-1]:
                of_target = logits[:, target - first].to(total.dtype)
        return ids, (best - total).exp(), (of_target - total).exp()

    def _blocks(self, rows: Tensor, kind: Lens) -> Iterator[tuple[int, Tensor]]:
        """Logits of rows (rows, d_model) in blocks of the vocabulary: (first id, (rows, block))."""
        vocabulary = self.model.d_vocab
        columns = max(256, _LOGITS[device_kind(rows.device)] // max(len(rows), 1))
        if kind == "own":
            if not self.read.in_blocks:
                yield 0, self.read.whole(rows[:, None])[:, 0]
                return
            hidden = self.read.normed(rows)
            for first in range(0, vocabulary, columns):
                yield first, self.read.block(hidden, first, min(first + columns, vocabulary))
            return
        table = self.model.weight("W_U")
        for first in range(0, vocabulary, columns):
            yield first, rows @ table[:, first : first + columns].to(rows.dtype)

    def logits(self, part: Tensor, layer: int, kind: Lens) -> Tensor:
        """(..., d_vocab) logits of one part (d_model,), or of several (parts, d_model), at one layer."""
        if kind == "frozen":
            part = self._centred(part) * self.gain[layer]
        rows = part.reshape(-1, part.shape[-1])
        logits = torch.cat([block for _, block in self._blocks(rows, kind)], dim=-1)
        return logits.reshape(*part.shape[:-1], -1)


@dataclass(frozen=True)
class PartTokens:
    """The prediction of a single part."""

    ids: tuple[int, ...]
    """(top,) token ids, likeliest first; empty where the part is zero."""
    tokens: tuple[str, ...]
    """(top,) their texts."""
    probability: tuple[float, ...]
    """(top,) their probabilities, 0..1."""


@torch.no_grad()
def part_tokens(
    model: Model, result: TokenDecompositionResult, layer: int, source: int | None, *, top: int = 10
) -> PartTokens:
    """The likeliest next tokens in the lens of one part of a decomposition.

    Args:
        model: the `Model` that the result is of.
        result: what `decompose_tokens` gave, with a lens.
        layer: the stream entering that block; ``n_layers`` (or -1) is what the final norm reads.
        source: position of the part's token, negative from the end; None for the biases and BOS.
        top: number of tokens.

    Raises:
        ValueError: a layer, source or number out of range, a result without a lens, or of a model of another size.

    Source: Explainability in Large Language Models: Pathways to Refinement and Alignment (Luo 2024), section 4.1.1,
    Fig. 4.4.

    Example:
        >>> from interp_widgets import decompose_tokens
        >>> result = decompose_tokens(model, "The Eiffel Tower is in the city of")
        >>> part_tokens(model, result, result.n_layers, 1, top=3).tokens
        (' Paris', ' of', ' city')
    """
    rows, sources, width = result.parts.shape
    layer = index(layer, rows, "layer", f"result of {rows} streams, the last that before the final norm")
    source = None if source is None else index(source, sources, "source", f"result of {sources} tokens")
    if (model.n_layers + 1, model.d_model) != (rows, width):
        raise ValueError(
            f"the result is of a model of {rows - 1} layers and d_model {width}, {model.name} has "
            f"{model.n_layers} and {model.d_model}: give the model that was decomposed"
        )
    check_top(top, model)
    if result.lens is None:
        raise ValueError("the result has no lens: decompose with lens='own' or lens='frozen'")
    kind: Lens = "frozen" if result.lens == "frozen" else "own"
    vector = result.bias[layer] if source is None else result.parts[layer, source]
    part = torch.from_numpy(vector.copy()).to(model.device)
    if not bool(part.any()):
        return PartTokens((), (), ())
    lens = PartLens.of(model, torch.from_numpy(result.residual.copy()).to(model.device))
    logits = lens.logits(part, layer, kind).cpu().double()
    ids = ranked(logits, top)[1]
    chance = logits.softmax(-1)[ids]
    texts = model.single_token_strings(ids)
    return PartTokens(tuple(ids.tolist()), texts, tuple(chance.tolist()))
