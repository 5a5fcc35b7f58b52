"""`text_activations`: the texts in which neurons, or directions that an MLP writes along, are most active."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike

from interp_widgets.analysis._core.arrays import Floats, Ints
from interp_widgets.analysis._core.checks import check_finite, check_range, layer_index, neuron_indices, place_of
from interp_widgets.analysis._core.prompts import read_prompt
from interp_widgets.analysis._core.result import Result, provenance, record, with_axes
from interp_widgets.analysis._core.run import RunOptions
from interp_widgets.analysis._core.tables import DataFrame, table
from interp_widgets.analysis._core.tensors import to_numpy, wide
from interp_widgets.arguments import checked
from interp_widgets.models import Model
from interp_widgets.models.chat import PromptInput

_TOKENS = 1024
"""Tokens of one pass."""


class TopText(NamedTuple):
    """A text in which a neuron or a direction is most active."""

    text: int
    """Its number in the list."""
    place: int
    """The token with the largest activation, counted from 0 without a BOS."""
    value: float
    """That activation."""
    tokens: list[str]
    """Readable tokens of the text."""
    values: Floats
    """(tokens,) the activation at each of them."""


@record
class TextActivations(Result):
    """How active neurons or directions of one MLP are at every token of some texts.

    Example:
        >>> found = text_activations(model, demo_texts(12), layer=5, neurons=[53])
        >>> best = found.top(53, 1)[0]
        >>> best.text, best.tokens[best.place], bool(best.value == found.values.max())
        (11, ':', True)
    """

    layer: int
    """Layer of the model."""

    numbers: Sequence[int] = with_axes("directions")
    """Numbers of the neurons in the layer, or of the directions in their list."""

    tokens: Sequence[str] = with_axes("tokens")
    """Readable tokens of all texts, one text after the other, without a BOS."""

    offsets: Ints = with_axes("texts + 1")
    """Where each text begins in `tokens`."""

    values: Floats = with_axes("tokens", "directions")
    """What multiplies a neuron's value vector at a token; of a direction, how far the MLP's output goes along it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not len(self.offsets) or self.offsets[-1] != len(self.tokens):
            raise ValueError(f"TextActivations.offsets must end with the number of tokens, {len(self.tokens)}")

    def top(self, number: int, top: int = 5, *, lowest: bool = False) -> list[TopText]:
        """The texts with the largest activation at any of their tokens (`lowest`: the smallest), the largest first.

        Raises ValueError for a neuron or direction that was not asked for.
        """
        check_range("top", top)
        values = self.values[:, place_of(number, self.numbers, "number")]
        sign, found = -1 if lowest else 1, []
        for text, (start, stop) in enumerate(zip(self.offsets[:-1].tolist(), self.offsets[1:].tolist(), strict=True)):
            own = values[start:stop]
            place = int(np.argmax(sign * own))
            found.append(TopText(text, place, float(own[place]), list(self.tokens[start:stop]), own))
        return sorted(found, key=lambda one: -sign * one.value)[:top]

    def to_frame(self) -> DataFrame:
        """One row per token and neuron or direction: text, token, and activation."""
        text = np.repeat(np.arange(len(self.offsets) - 1), np.diff(self.offsets))
        frame = table({"place": range(len(self.tokens)), "number": self.numbers}, {"activation": self.values})
        frame.insert(0, "text", text[frame["place"]])
        frame["place"] -= np.asarray(self.offsets)[frame["text"]]
        frame.insert(2, "token", np.repeat(np.asarray(self.tokens, dtype=object), len(self.numbers)))
        return frame


@checked
@torch.no_grad()
def text_activations(
    model: Model,
    texts: Sequence[PromptInput],
    *,
    layer: int,
    neurons: Sequence[int] | None = None,
    directions: ArrayLike | None = None,
    prepend_bos: bool | None = None,
    progress: Callable[[int, int], None] | None = None,
    check: Callable[[], None] | None = None,
) -> TextActivations:
    """How active neurons, or directions of what an MLP writes, are at every token of some texts.

    A neuron's activation is what multiplies its value vector; that of a direction is the MLP's output, as it is added
    to the residual stream, times the direction. Texts of equal length run together.

    Args:
        model: what `load_model` returns.
        texts: texts, or lists of token ids (to which nothing is added), such as `demo_texts()`.
        layer: of the model, counted from 0 or negative from the end.
        neurons: numbers of neurons in the layer, negative ones from the end; default without ``directions``: all.
        directions: (n, d_model) directions instead, such as components of `ffn_concepts`.
        prepend_bos: overrides the model's BOS policy for texts.
        progress: called with (done, total) texts.
        check: called before every pass; raises to cancel.

    Raises:
        ValueError: no text, an empty or too long one, a layer or neuron that is not there, directions of another width,
            neurons and directions at once.

    Example:
        >>> components = ffn_concepts(model, rank=3)
        >>> found = text_activations(model, demo_texts(12), layer=5, directions=components.directions[5])
        >>> found.values.shape[1], len(found.top(0, 4)), len(found.top(0, 4)[0].tokens) > 3
        (3, 4, True)
    """
    if isinstance(texts, str) or len(texts) == 0:
        raise ValueError("texts must be a list of at least one text or list of token ids")
    if neurons is not None and directions is not None:
        raise ValueError("neurons and directions are two questions: give one of them")
    layer, run = layer_index(model, layer), RunOptions(progress, check)
    along = None
    if directions is None:
        model.capabilities.require("mlp_neurons", "text_activations", "give directions=", using="mlp")
        numbers: Sequence[int] = neuron_indices(model, neurons)
        hook = f"blocks.{layer}.mlp.hook_post"
    else:
        model.capabilities.require("mlp", "text_activations")
        rows = np.atleast_2d(np.asarray(directions, dtype=np.float64))
        if rows.shape[1] != model.d_model:
            raise ValueError(f"directions must be rows of {model.d_model} numbers, got shape {rows.shape}")
        numbers, hook = range(len(rows)), f"blocks.{layer}.hook_mlp_out"
        along = torch.tensor(rows, dtype=torch.promote_types(model.dtype, torch.float32), device=model.device).T
    columns = torch.tensor(list(numbers), device=model.device)
    read = [read_prompt(model, text, prepend_bos=prepend_bos) for text in texts]
    sizes = [len(one.shown_ids) for one in read]
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    values = np.empty((offsets[-1], len(numbers)), dtype=np.float32)
    order = sorted(range(len(read)), key=lambda text: len(read[text].ids))
    done = 0
    while done < len(order):
        length = len(read[order[done]].ids)
        most = max(1, _TOKENS // length)
        batch = [text for text in order[done : done + most] if len(read[text].ids) == length]
        run.stop_if_cancelled()
        found = wide(model.run([list(read[text].ids) for text in batch], capture=hook).activations[hook])
        chosen = found[..., columns] if along is None else found @ along
        for text, own in zip(batch, to_numpy(chosen), strict=True):
            values[offsets[text] : offsets[text + 1]] = own[read[text].offset :]
        done += len(batch)
        run.report(done, len(order))
    check_finite(values, lambda token, column: f"the activation of number {numbers[column]} at token {token}")
    return TextActivations(
        layer=layer,
        numbers=tuple(numbers),
        tokens=tuple(token for one in read for token in one.tokens()),
        offsets=offsets,
        values=values,
        provenance=provenance(
            model.provenance(), layer=layer, texts=len(read), of="neurons" if along is None else "directions"
        ),
    )
