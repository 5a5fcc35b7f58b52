"""`text_activations`: activations of neurons, or of directions in MLP outputs, on texts; the most active texts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from interp_widgets.analysis._core.arrays import Floats, Ints, float64
from interp_widgets.analysis._core.checks import check_finite, check_range, layer_index, neuron_indices, row_of
from interp_widgets.analysis._core.chunks import Runner
from interp_widgets.analysis._core.prompts import read_prompt
from interp_widgets.analysis._core.result import Result, provenance, record, with_axes
from interp_widgets.analysis._core.run import RunOptions
from interp_widgets.analysis._core.tables import DataFrame, table
from interp_widgets.analysis._core.tensors import to_numpy, wide
from interp_widgets.arguments import checked
from interp_widgets.models import Model
from interp_widgets.models.chat import PromptInput
from interp_widgets.models.engine import can_pad, mlp_values


class TopText(NamedTuple):
    """A text in which a neuron or a direction is most active."""

    text: int
    """Its number in the list."""
    position: int
    """Position of the token with the largest activation, counted from 0 without a BOS."""
    value: float
    """That activation."""
    tokens: list[str]
    """Readable tokens of the text."""
    values: Floats
    """(tokens,) the activation at each of them."""


@record
class TextActivations(Result):
    """Activations of neurons or directions of one MLP at every token of some texts.

    Example:
        >>> result = text_activations(model, demo_texts(12), layer=5, neurons=[53])
        >>> best = result.top(53, 1)[0]
        >>> best.text, best.tokens[best.position], bool(best.value == result.values.max())
        (11, ':', True)
    """

    layer: int
    """Layer of the model."""

    numbers: Sequence[int] = with_axes("directions")
    """Indices of the neurons in the layer, or of the directions in their list."""

    tokens: Sequence[str] = with_axes("tokens")
    """Readable tokens of all texts, one text after the other, without a BOS."""

    offsets: Ints = with_axes("texts + 1")
    """Index of each text's first token in `tokens`."""

    values: Floats = with_axes("tokens", "directions")
    """For a neuron, the factor of its value vector at a token; for a direction, the MLP's output times the direction.
    """

    sink: bool = False
    """Whether the first token of a text carries the model's attention sink: it is active whatever it means, so that
    `top` looks at the tokens after it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not len(self.offsets) or self.offsets[-1] != len(self.tokens):
            raise ValueError(f"TextActivations.offsets must end with the number of tokens, {len(self.tokens)}")

    def top(self, number: int, top: int = 5, *, lowest: bool = False) -> list[TopText]:
        """The texts with the largest maximum activation (with `lowest`, the smallest minimum), the most extreme first.

        A first token that carries the attention sink does not count, unless it is the only one. Raises ValueError for a
        neuron or direction that was not computed.
        """
        check_range("top", top)
        values = self.values[:, row_of(number, self.numbers, "number")]
        sign, texts = -1 if lowest else 1, []
        for text, (start, stop) in enumerate(zip(self.offsets[:-1].tolist(), self.offsets[1:].tolist(), strict=True)):
            activations = values[start:stop]
            first = 1 if self.sink and len(activations) > 1 else 0
            position = first + int(np.argmax(sign * activations[first:]))
            texts.append(
                TopText(text, position, float(activations[position]), list(self.tokens[start:stop]), activations)
            )
        return sorted(texts, key=lambda text: -sign * text.value)[:top]

    def to_frame(self) -> DataFrame:
        """One row per token and neuron or direction: text, token, and activation."""
        text = np.repeat(np.arange(len(self.offsets) - 1), np.diff(self.offsets))
        frame = table({"position": range(len(self.tokens)), "number": self.numbers}, {"activation": self.values})
        frame.insert(0, "text", text[frame["position"]])
        frame["position"] -= np.asarray(self.offsets)[frame["text"]]
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
    """Activations of neurons, or of directions in an MLP's output, at every token of some texts.

    A neuron's activation is the factor of its value vector; that of a direction is the MLP's output, as added to the
    residual stream, times the direction. Texts of similar length run together; later layers do not run.

    Args:
        model: what `load_model` returns.
        texts: texts, or lists of token ids (to which nothing is added), such as `demo_texts()`.
        layer: of the model, counted from 0 or negative from the end.
        neurons: indices of neurons in the layer, negative ones from the end; default without ``directions``: all.
        directions: (n, d_model) directions instead, such as components of `ffn_concepts`.
        prepend_bos: overrides the model's BOS policy for texts.
        progress: called with (done, total) texts.
        check: called before every pass; raises to cancel.

    Raises:
        ValueError: no text, an empty or too long one, an unknown layer or neuron, directions of another width, or both
            neurons and directions.

    Example:
        >>> components = ffn_concepts(model, rank=3)
        >>> result = text_activations(model, demo_texts(12), layer=5, directions=components.directions[5])
        >>> result.values.shape[1], len(result.top(0, 4)), len(result.top(0, 4)[0].tokens) > 3
        (3, 4, True)
    """
    if neurons is not None and directions is not None:
        raise ValueError("got both neurons and directions: give one of them")
    layer, run = layer_index(model, layer), RunOptions(progress, check)
    if directions is None:
        chosen = _of_neurons(model, neurons)
    else:
        model.capabilities.require("mlp", "text_activations")
        chosen = _along(model, np.atleast_2d(float64(directions)))
    return _over_texts(model, texts, {layer: chosen}, prepend_bos, run)[layer]


@checked
@torch.no_grad()
def layer_activations(
    model: Model,
    texts: Sequence[PromptInput],
    neurons: Mapping[int, Sequence[int]],
    *,
    prepend_bos: bool | None = None,
    progress: Callable[[int, int], None] | None = None,
    check: Callable[[], None] | None = None,
) -> dict[int, TextActivations]:
    """`text_activations` for neurons of several layers, from one pass over each text.

    Args:
        neurons: for each layer, counted from 0, the indices of its neurons.
        model, texts, prepend_bos, progress, check: as in `text_activations`.

    Raises:
        ValueError: as `text_activations`.
    """
    chosen = {layer_index(model, layer): _of_neurons(model, numbers) for layer, numbers in neurons.items()}
    return _over_texts(model, texts, chosen, prepend_bos, RunOptions(progress, check)) if chosen else {}


class _Selection(NamedTuple):
    """The values to read at one layer."""

    site: Literal["mlp", "neuron"]
    numbers: Sequence[int]
    take: Callable[[Tensor], Tensor]
    """Maps the values (batch, tokens, width) at the site to (batch, tokens, numbers)."""


def _of_neurons(model: Model, neurons: Sequence[int] | None) -> _Selection:
    model.capabilities.require("mlp_neurons", "text_activations", "give directions=", using="mlp")
    numbers = neuron_indices(model, neurons)
    columns = torch.tensor(numbers, device=model.device)
    return _Selection("neuron", numbers, lambda value: wide(value[..., columns]))


def _along(model: Model, rows: NDArray[np.float64]) -> _Selection:
    if rows.shape[1] != model.d_model:
        raise ValueError(f"directions must be rows of {model.d_model} numbers, got shape {rows.shape}")
    along = torch.tensor(rows, dtype=torch.promote_types(model.dtype, torch.float32), device=model.device).T
    return _Selection("mlp", range(len(rows)), lambda value: wide(value) @ along)


def _over_texts(
    model: Model,
    texts: Sequence[PromptInput],
    chosen: Mapping[int, _Selection],
    prepend_bos: bool | None,
    run: RunOptions,
) -> dict[int, TextActivations]:
    """The activations of each layer, all at the same site; texts of similar length run together, the longest first."""
    if isinstance(texts, str) or len(texts) == 0:
        raise ValueError("texts must be a list of at least one text or list of token ids")
    (site,) = {item.site for item in chosen.values()}
    take = {layer: item.take for layer, item in chosen.items()}
    read = [read_prompt(model, text, prepend_bos=prepend_bos) for text in texts]
    offsets = np.concatenate([[0], np.cumsum([item.n_shown for item in read])])
    values = {layer: np.empty((offsets[-1], len(item.numbers)), dtype=np.float32) for layer, item in chosen.items()}
    ids = [item.ids for item in read]

    def work(batch: list[int], rows: Tensor) -> None:
        for layer, activations in mlp_values(model, rows, site, take).items():
            for text, rows_of_text in zip(batch, to_numpy(activations), strict=True):
                values[layer][offsets[text] : offsets[text + 1]] = rows_of_text[read[text].offset : len(ids[text])]

    runner = Runner(model, max(map(len, ids)), check=run.check, progress=run.progress, total=len(ids))
    runner.run_texts(ids, work, padded=can_pad(model))
    tokens = tuple(token for item in read for token in item.tokens())
    sink = max(read, key=lambda item: item.n_shown).first_is_sink  # the same for every first token
    for layer, item in chosen.items():
        check_finite(
            values[layer],
            lambda token, column, item=item: f"the activation of number {item.numbers[column]} at token {token}",
        )
    kinds = {"mlp": "directions", "neuron": "neurons"}[site]
    return {
        layer: TextActivations(
            layer=layer,
            numbers=tuple(item.numbers),
            tokens=tokens,
            offsets=offsets,
            values=values[layer],
            sink=sink,
            provenance=provenance(model.provenance(), layer=layer, texts=len(read), of=kinds),
        )
        for layer, item in chosen.items()
    }
