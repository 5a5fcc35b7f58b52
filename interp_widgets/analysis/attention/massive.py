"""`massive_activations`: the largest entries of the residual stream, and what the model's loss is without them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from interp_widgets.analysis._core.arrays import Bools, Floats, Ints, ratio
from interp_widgets.analysis._core.checks import check_choice, check_finite, check_range, stream_indices
from interp_widgets.analysis._core.prompts import Prompt, read_prompt
from interp_widgets.analysis._core.result import Result, provenance, record, with_axes
from interp_widgets.analysis._core.run import RunOptions
from interp_widgets.analysis._core.tables import DataFrame, table
from interp_widgets.analysis._core.targets import Targets, read
from interp_widgets.analysis._core.tensors import as_array, to_numpy, wide
from interp_widgets.analysis.attention.random_tokens import ordinary_tokens
from interp_widgets.arguments import checked
from interp_widgets.models import Model
from interp_widgets.models.chat import PromptInput
from interp_widgets.models.engine import encode, has_hooks, read_values, residual_streams
from interp_widgets.models.patching import PassPatch, as_text_positions, patched_passes
from interp_widgets.models.profile import TOKENS
from interp_widgets.models.stopping import stopping

Replaced = Literal["zero", "mean", "other"]
"""What the activation is replaced by: zero, its mean over random texts, or (a control) another dimension by zero."""

_LARGE, _TIMES = 100.0, 1000.0
"""An activation is massive above this size, and so many times the median (Sun et al. 2024)."""
_RISEN = 0.5
"""The layer of the replacement is the first at which the activation has this share of its largest size."""


@record
class MassiveActivations(Result):
    """The largest entry of every layer's residual stream on one prompt, and the loss without the largest of them.

    The axis of positions holds every token that the model reads, the BOS included. The axis of streams has the residual
    stream entering every block and, last, the final norm.

    Example:
        >>> result = massive_activations(model, "The Eiffel Tower is in the city of Paris")
        >>> result.to_frame().columns.tolist()
        ['layer', 'value', 'dimension', 'position', 'token', 'median', 'ratio', 'massive']
        >>> int(result.dimension[2]), int(result.position[2]), bool(result.massive.any())  # a small model has none
        (62, 0, False)
    """

    tokens: Sequence[str] = with_axes("positions")
    """Readable tokens, all those that the model reads."""

    ids: Sequence[int] = with_axes("positions")
    """Their ids."""

    special: Sequence[bool] = with_axes("positions")
    """Whether each is a special token."""

    value: Floats = with_axes("streams")
    """The entry of largest size of each stream, with its sign."""

    dimension: Ints = with_axes("streams")
    """Its dimension."""

    position: Ints = with_axes("streams")
    """Its position."""

    median: Floats = with_axes("streams")
    """Median size of all entries of each stream."""

    layer: int
    """The stream in which the replacements are made."""

    loss: float
    """Mean negative log-probability of every token after the first, in nats."""

    loss_zero: float
    """The loss with the activation set to zero in that stream."""

    loss_mean: float
    """The loss with it set to `mean`."""

    mean: float
    """Mean of the dimension's largest entry in that stream, over texts of random tokens."""

    other_dimensions: Sequence[int] = with_axes("others")
    """Dimensions drawn at random, set to zero at the same place instead: the control."""

    loss_other: Floats = with_axes("others")
    """The loss with each of them set to zero."""

    attention: Floats | None = with_axes("layers", default=None)
    """Mean attention, over heads and later tokens, that each layer pays the position of the stream that enters it. NaN
    where no token is later; None for a model that shows no patterns."""

    bos: bool = False
    """Whether the first token is the model's BOS."""

    @property
    def ratio(self) -> NDArray[np.float64]:
        """(streams,) size of the largest entry over the median."""
        return ratio(np.abs(self.value), self.median)

    @property
    def massive(self) -> Bools:
        """(streams,) whether the largest entry is massive: above 100, and above 1,000 times the median."""
        large: Bools = (np.abs(self.value) > _LARGE) & (self.ratio > _TIMES)
        return large

    @property
    def peak(self) -> int:
        """The stream whose largest entry is the largest: its `position` and `dimension` are replaced."""
        return int(np.abs(self.value).argmax())

    def replaced(self, by: Replaced) -> float:
        """The loss with the activation set to ``"zero"`` or to its ``"mean"``, or with ``"other"`` dimensions set to
        zero instead (the mean of these losses)."""
        check_choice("by", by, Replaced)
        if by == "other":
            return float(self.loss_other.mean(dtype=np.float64))
        return self.loss_zero if by == "zero" else self.loss_mean

    def measures(self) -> dict[str, float | int | str | bool | None]:
        """The largest entry and where it is, its ratio to the median, and the losses."""
        peak = self.peak
        return {
            "value": float(self.value[peak]),
            "dimension": int(self.dimension[peak]),
            "position": int(self.position[peak]),
            "ratio": float(self.ratio[peak]),
            "massive": bool(self.massive.any()),
            "loss": self.loss,
            "loss_zero": self.loss_zero,
            "loss_mean": self.loss_mean,
            "loss_other": self.replaced("other"),
        }

    def to_frame(self) -> DataFrame:
        """One row per stream: its largest entry, where that is, the median and whether it is massive."""
        columns = {
            "value": self.value,
            "dimension": self.dimension,
            "position": self.position,
            "token": [self.tokens[position] for position in self.position],
            "median": self.median,
            "ratio": self.ratio,
            "massive": self.massive,
        }
        return table({"layer": range(len(self.value))}, columns)


@checked
@torch.no_grad()
def massive_activations(
    model: Model,
    prompt: PromptInput,
    *,
    layer: int | None = None,
    others: int = 5,
    references: int = 8,
    seed: int = 0,
    prepend_bos: bool | None = None,
    progress: Callable[[int, int], None] | None = None,
    check: Callable[[], None] | None = None,
) -> MassiveActivations:
    """The largest activations of the residual stream (massive activations), and what the model loses without them.

    In many models a few entries of the stream, in one dimension at the first token, are thousands of times larger than
    all others, hardly depend on the text, and hold the attention sink. Set to zero in one layer's stream the loss is
    much higher; written back at their mean, as a constant, it is as before; and zero in another dimension changes
    nothing.

    Args:
        model: what `load_model` returns.
        prompt: text, token ids (then nothing is added) or the messages of a chat (`chat_prompt`); the losses are of
            its own tokens.
        layer: the stream in which the largest entry is replaced: that entering this block, or ``n_layers`` (or -1) for
            the one before the final norm; default: the first in which it has half its largest size.
        others: dimensions drawn for the control.
        references: texts of random tokens whose mean is written back.
        seed: of both draws.
        prepend_bos: overrides the model's BOS policy for texts.
        progress: called with (done, total) passes.
        check: called before every pass; raises to cancel.

    Raises:
        ValueError: a bad prompt or layer, a prompt of one token, which has no loss, or a model that does not show its
            residual stream.

    Source: Massive Activations in Large Language Models (Sun et al. 2024), sections 2 and 3.

    Example:
        >>> result = massive_activations(model, "The Eiffel Tower is in the city of Paris", others=2)
        >>> result.value.shape, result.attention.shape, len(result.loss_other)
        ((7,), (6,), 2)
    """
    model.capabilities.require("residual_stream", "massive_activations")
    check_range("others", others, 1, model.d_model - 1, "this model's other dimensions")
    check_range("references", references, 1)
    tokens, run = read_prompt(model, prompt, prepend_bos=prepend_bos), RunOptions(progress, check)
    if len(tokens.ids) < 2:
        raise ValueError("the prompt has one token, and the loss is that of later ones: write at least two")
    chosen = None if layer is None else stream_indices(model, layer)[0]
    with stopping(check):
        streams = residual_streams(model, list(tokens.ids))
        check_finite(streams, lambda at, *_: f"the residual stream of {model.name} at layer {at}")
        value, position, dimension, median = _largest(streams)
        peak = int(value.abs().argmax())
        where, which = int(position[peak]), int(dimension[peak])
        sizes = streams[:, where, which].abs()
        chosen = int((sizes >= _RISEN * sizes[peak]).nonzero()[0, 0]) if chosen is None else chosen
        attention = _attention(model, tokens, position)
        rng = np.random.default_rng(seed)
        mean = _mean_largest(model, tokens, chosen, which, references, rng)
        free = [index for index in range(model.d_model) if index != which]
        drawn = sorted(rng.choice(free, others, replace=False).tolist())
        losses = []
        plans: list[tuple[int, float] | None] = [None, (which, 0.0), (which, mean), *((index, 0.0) for index in drawn)]
        for number, plan in enumerate(plans):
            run.stop_if_cancelled()
            losses.append(_loss(model, tokens, chosen, where, plan))
            run.report(number + 1, len(plans))
    options = {"layer": chosen, "references": references, "seed": seed, "bos": tokens.offset == 1}
    return MassiveActivations(
        tokens=tuple(model.token_strings(tokens.ids)),
        ids=tokens.ids,
        special=tuple(model.is_special(tokens.ids)),
        value=to_numpy(value),
        dimension=as_array(dimension),
        position=as_array(position),
        median=to_numpy(median),
        layer=chosen,
        loss=losses[0],
        loss_zero=losses[1],
        loss_mean=losses[2],
        mean=mean,
        other_dimensions=drawn,
        loss_other=np.array(losses[3:]),
        attention=attention,
        bos=tokens.offset == 1,
        provenance=provenance(model.provenance(), **options),
    )


def _largest(streams: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(streams,) the entry of largest size of streams (streams, n, d_model), its position and dimension, and the median
    size."""
    flat = streams.flatten(1)
    at = flat.abs().argmax(-1)
    value = flat.gather(1, at[:, None])[:, 0]
    median = torch.stack([stream.abs().median() for stream in flat])
    return value, at // streams.shape[-1], at % streams.shape[-1], median


def _attention(model: Model, prompt: Prompt, position: Tensor) -> Floats | None:
    """(layers,) mean attention of the later tokens to the position of each block's stream."""
    if not model.capabilities.attention_patterns:
        return None
    shares = [float("nan")] * model.n_layers

    def reader(layer: int, at: int) -> Callable[[Tensor], None]:
        def reduce(pattern: Tensor) -> None:
            if at + 1 < pattern.shape[-2]:
                shares[layer] = float(wide(pattern[0, :, at + 1 :, at]).mean())

        return reduce

    places = position.tolist()
    hooks = [(f"blocks.{layer}.attn.hook_pattern", reader(layer, places[layer])) for layer in range(model.n_layers)]
    read_values(model, list(prompt.ids), hooks)
    return np.array(shares)


def _mean_largest(
    model: Model, prompt: Prompt, layer: int, dimension: int, references: int, rng: np.random.Generator
) -> float:
    """Mean of a dimension's entry of largest size in one stream, over texts of random tokens as long as the prompt (or
    its first tokens, where a sink is)."""
    ordinary = ordinary_tokens(model)
    # hooks of the user see the positions that they see in any other pass
    length = len(prompt.ids) if has_hooks(model.tl_model) else min(len(prompt.ids), TOKENS)
    found = []
    for _ in range(references):
        text = [*prompt.ids[: prompt.offset], *rng.choice(ordinary, length - prompt.offset).tolist()]
        column = residual_streams(model, text)[layer, :, dimension]
        found.append(float(column[column.abs().argmax()]))
    return float(np.mean(found))


def _loss(model: Model, prompt: Prompt, layer: int, position: int, plan: tuple[int, float] | None) -> float:
    """Mean loss of the prompt's tokens after the first, with one entry of a stream replaced by a number."""
    patches = []
    if plan is not None:
        dimension, number = plan

        def replaced(old: Tensor) -> Tensor:
            new = old.clone()
            new[..., dimension] = number
            return new

        patches = [PassPatch("resid", layer, replaced, as_text_positions(torch.tensor([position]), prompt.offset))]
    with patched_passes(model, patches):
        hidden = encode(model, prompt.embeddings(), positions=slice(0, len(prompt.ids) - 1))
        log_prob = read(model, hidden, Targets("log_prob", prompt.fed_ids()[0, 1:]))
    return -float(log_prob.cpu().double().mean())
