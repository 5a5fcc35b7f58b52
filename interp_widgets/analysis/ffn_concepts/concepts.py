"""`ffn_concepts`: the directions in which a layer's MLP writes, read as words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from interp_widgets.analysis.chunks import ChunkLog
from interp_widgets.analysis.ffn_concepts.directions import most_components, nearest_words, principal_directions
from interp_widgets.analysis.ffn_concepts.result import FFNConceptResult
from interp_widgets.analysis.result import provenance
from interp_widgets.analysis.tensors import as_array, check_finite
from interp_widgets.analysis.words import Words, chosen_layers, word_table
from interp_widgets.arguments import checked
from interp_widgets.models import Model


@checked
@torch.no_grad()
def ffn_concepts(
    model: Model,
    *,
    words: Words = None,
    rank: int = 300,
    top: int = 15,
    layers: Sequence[int] | None = None,
    keep_directions: bool = True,
    progress: Callable[[int, int], None] | None = None,
    check: Callable[[], None] | None = None,
    on_partial: Callable[[FFNConceptResult], None] | None = None,
) -> FFNConceptResult:
    """The main directions of each MLP's output weights, read as the words whose output embeddings lie along them.

    The rows of a layer's output weights (one per neuron, d_model numbers), their columns centred, are decomposed into
    principal components in float64; a word's projection on a component is its cosine with the word's *output*
    embedding (the mean of its tokens' columns of the unembedding, made length 1). The final norm's scale is left out,
    as in the paper; a model loaded with ``processed=True`` has it in its unembedding.

    Args:
        model: what `load_model` returns, with a tokenizer.
        words: a word list; default: the demo's.
        rank: components per layer; at most min(d_mlp - 1, d_model), which is what narrower models give.
        top: words per component.
        layers: of the model; default: all.
        keep_directions: whether the result holds the components themselves, rank times d_model numbers a layer;
            `compare_concepts` needs them.
        progress: called with (done, total) layers.
        check: called between tiles; raises to cancel.
        on_partial: receives, after every layer but the last, a partial result with the layers done so far.

    Raises:
        ValueError: an empty or doubled word, an option out of range, a layer that is not there, a model whose MLP has
            no single output matrix (a mixture of experts).

    Source: From Language Modeling to Instruction Following (Wu et al. 2024), section 5.2, Eq. 3; the cumulative
    variance is its Figure 8.

    Example:
        >>> found = ffn_concepts(model, rank=100)
        >>> found.words(5, 6)[:4], round(float(found.cumulative[5, 99]), 2)
        (('sad', 'lonely', 'tired', 'lost'), 0.81)
    """
    for name, value in (("rank", rank), ("top", top)):
        if value < 1:
            raise ValueError(f"{name} must be 1 or more, got {value}")
    numbers = chosen_layers(model, layers)
    rank = min(rank, most_components(model))
    table = word_table(model, words, side="output", check=check)
    check_finite("the output embeddings of the words", table.embeddings)
    units = torch.nn.functional.normalize(table.embeddings, dim=-1)
    log = ChunkLog()
    found: dict[str, list[Any]] = {}

    def result(*, partial: bool = False) -> FFNConceptResult:
        arrays = {name: np.stack(rows) for name, rows in found.items()}
        told = {"words": len(table.words), "rank": rank, "top": top, "chunk_halvings": log.halvings}
        return FFNConceptResult(
            vocabulary=table.words,
            layers=tuple(numbers[: len(found["plus"])]),
            unknown=table.unknown,
            partial=partial,
            provenance=provenance(model.provenance(), **told),
            **arrays,
        )

    for done, layer in enumerate(numbers, start=1):
        if check is not None:
            check()
        with model.lock:
            directions, shares = principal_directions(model.weight("W_out", layer), rank, check)
        near = nearest_words(directions, units, min(top, len(table.words)), check=check, log=log)
        kept = {name: getattr(near, name) for name in ("plus", "plus_scores", "minus", "minus_scores")}
        kept["explained_variance"] = shares
        if keep_directions:
            kept["directions"] = (as_array(directions) * near.sign[:, None]).astype(np.float32)
        for name, value in kept.items():
            found.setdefault(name, []).append(value)
        if progress is not None:
            progress(done, len(numbers))
        if on_partial is not None and done < len(numbers):
            on_partial(result(partial=True))
    return result()
