"""`part_tokens`: the likeliest tokens in the lens of one part, which a result holds the best of only."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from interp_widgets.analysis.token_decomposition.lens import Lens, PartLens
from interp_widgets.analysis.token_decomposition.result import TokenDecompositionResult
from interp_widgets.models import Model


@dataclass(frozen=True)
class PartTokens:
    """What one part alone would predict."""

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
        layer: the stream entering that block, or ``n_layers``: what the final norm reads.
        source: position of the token whose part it is; None for what no shown token brought (biases, BOS).
        top: how many.

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
    if not 0 <= layer < rows:
        raise ValueError(f"layer must be in 0..{rows - 1} for this result ({rows - 1}: the final norm's), got {layer}")
    if source is not None and not 0 <= source < sources:
        raise ValueError(f"source must be in 0..{sources - 1} for these {sources} tokens, or None, got {source}")
    if (model.n_layers + 1, model.d_model) != (rows, width):
        raise ValueError(
            f"the result is of a model of {rows - 1} layers and d_model {width}, {model.name} has "
            f"{model.n_layers} and {model.d_model}: give the model that was decomposed"
        )
    if not 1 <= top <= model.d_vocab:
        raise ValueError(f"top must be in 1..{model.d_vocab} for this vocabulary, got {top}")
    if result.lens is None:
        raise ValueError("the result has no lens: decompose with lens='own' or lens='frozen'")
    kind: Lens = "frozen" if result.lens == "frozen" else "own"
    vector = result.bias[layer] if source is None else result.parts[layer, source]
    part = torch.from_numpy(vector.copy()).to(model.device)
    if not bool(part.any()):
        return PartTokens((), (), ())
    lens = PartLens.of(model, torch.from_numpy(result.residual.copy()).to(model.device))
    chance, ids = lens.logits(part, layer, kind).cpu().double().softmax(-1).topk(top)
    found = tuple(ids.tolist())
    texts = tuple(model.token_strings([token])[0] for token in found)  # each by itself: they are no sequence
    return PartTokens(found, texts, tuple(chance.tolist()))
