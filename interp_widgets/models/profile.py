"""`ModelProfile`: what a short pass measures of a model, from which the panels take their defaults."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from . import engine
from .devices import device_kind
from .network import Network
from .state import State, remembered, state_key
from .stopping import unstoppable
from .threads import few_threads, pay_off, threads_kept
from .top_k import ranked

SINK_RATIO = 10.0
"""How many times longer than the others the residual stream of a sink is, at some layer."""
TOKENS = 32
"""Tokens of a probing text: a first token's stream is the same whatever follows."""
PROBE = (
    "The sun rose over the quiet harbour while the fishermen carried their nets down to the boats. Nobody spoke much, "
    "because the news from the city had arrived late in the night."
)
"""The text that is read; any ordinary one does."""

_MOST_DIMENSIONS = 3
_WORTH_IT = 1.2
"""More threads are used if they make a pass so many times faster."""
_KEPT = 64


@dataclass(frozen=True)
class ModelProfile:
    """Measurements of a model on one short text, the source of the defaults of panels.

    It is the model's own, in its present state: an edit, another dtype or another tokenizer gives another profile.

    Example:
        >>> profile = model.profile
        >>> profile.sink is None, len(profile.stream_norms), profile.adds_bos, profile.chat_template
        (True, 7, True, True)
        >>> bool(profile.stream_norm(3) > 0), profile.words[:3]
        (True, (' the', ' to', ' and'))
        >>> print(profile.describe().splitlines()[0])
        demo-base begins a text with its BOS token and has a chat template.
    """

    model: str
    """Name of the model."""
    bos_is_sink: bool
    """Whether a BOS at the start of a text is an attention sink: at some layer the norm of its residual stream is more
    than 10 times the median norm of the others. False for a model without a BOS."""
    first_is_sink: bool
    """Whether the first token of a text without a BOS is one."""
    sink_ratio: float
    """Largest ratio, over layers, of the first token's norm to the median norm of the others, as the model reads texts;
    NaN if it shows no residual stream."""
    sink_layers: tuple[int, ...]
    """The streams (0..n_layers, that entering each block and the final norm) in which the ratio is above 10."""
    sink_dimensions: tuple[int, ...]
    """The dimensions with the largest entries of the sink, the largest first, at the layer of the largest entry; empty
    without a sink."""
    sink_sizes: tuple[float, ...]
    """Those entries, with their signs."""
    stream_norms: tuple[float, ...]
    """(layers + 1,) median norm of the residual stream entering every block and, last, the final norm, over all tokens
    but the first; empty if the model shows no residual stream."""
    common_logit: float
    """Standard deviation, over positions, of the mean logit of the whole vocabulary: how far all logits move together,
    which no probability shows."""
    logit_spread: float
    """Median, over positions, of the standard deviation of the logits around their mean."""
    adds_bos: bool
    """Whether a text gets a BOS in front."""
    chat_template: bool
    """Whether the tokenizer has a chat template."""
    tokens: int
    """Number of tokens of the text that was read."""
    words: tuple[str, ...] = field(repr=False)
    """The words that are single tokens of the vocabulary: a space and at least two letters, in the order of their ids,
    which is about that of their frequency. Some are the beginnings of longer words."""
    seconds: Mapping[int, float] = field(compare=False)
    """Seconds of one pass over the text, with logits, by number of processor threads: one, and all unless a quick trial
    shows that they only wait for each other."""

    @property
    def sink(self) -> Literal["BOS", "first token"] | None:
        """Where the attention sink is when the model reads a text: at its BOS, at the first token of the text, or
        nowhere."""
        if self.adds_bos:
            return "BOS" if self.bos_is_sink else None
        return "first token" if self.first_is_sink else None

    @property
    def threads(self) -> int:
        """The fewest threads with which a pass is about as fast as with any other measured number."""
        best = min(self.seconds.values())
        return min(number for number, seconds in self.seconds.items() if seconds <= _WORTH_IT * best)

    @property
    def logits_move_together(self) -> bool:
        """Whether what is common to all logits moves more than half of what sets them apart: then a raw logit says
        little about a probability."""
        return 2 * self.common_logit > self.logit_spread

    def stream_norm(self, layer: int) -> float:
        """The norm of an ordinary token's residual stream that enters a block, or the final norm (``n_layers``, -1).

        Raises ValueError if the model has no such layer or shows no residual stream.
        """
        streams = len(self.stream_norms)
        if not -streams <= layer < streams:
            allowed = f"0..{streams - 1}" if streams else "absent: the model does not show its residual stream"
            raise ValueError(f"the layers of {self.model}'s residual stream are {allowed}, got {layer}")
        return self.stream_norms[layer]

    def describe(self) -> str:
        """The profile in plain sentences, one per line."""
        begins = "begins a text with its BOS token" if self.adds_bos else "adds no BOS token"
        lines = [f"{self.model} {begins} and has {'a' if self.chat_template else 'no'} chat template."]
        if not self.stream_norms:
            lines.append("It does not show its residual stream.")
        else:
            lines.append(self._sink_sentence())
            low, high = min(self.stream_norms), max(self.stream_norms)
            middle = self.stream_norms[len(self.stream_norms) // 2]
            lines.append(
                f"The residual stream of an ordinary token has norm {low:.3g} to {high:.3g}, {middle:.3g} at layer "
                f"{len(self.stream_norms) // 2}."
            )
        shown = "a raw logit misleads" if self.logits_move_together else "a raw logit may be read"
        lines.append(
            f"From position to position all logits move together by {self.common_logit:.3g}; around their mean they "
            f"spread by {self.logit_spread:.3g}: {shown}."
        )
        times = ", ".join(
            f"{seconds * 1000:.0f} ms with {number} thread{'s' * (number > 1)}"
            for number, seconds in sorted(self.seconds.items())
        )
        lines.append(f"A pass over {self.tokens} tokens takes {times}.")
        examples = ", ".join(word.strip() for word in self.words[:5])
        lines.append(
            f"{len(self.words):,} words are single tokens of its vocabulary ({examples}, …)."
            if self.words
            else "No word is a single token of its vocabulary."
        )
        return "\n".join(lines)

    def _sink_sentence(self) -> str:
        if self.sink is None:
            return (
                f"It has no attention sink: its first token's stream is {self.sink_ratio:.3g} times as long as others."
            )
        where = "its BOS token" if self.sink == "BOS" else "the first token, whatever it means"
        entries = ", ".join(
            f"dimension {dimension} ({size:,.0f})"
            for dimension, size in zip(self.sink_dimensions, self.sink_sizes, strict=True)
        )
        return (
            f"The attention sink is {where}: in {_spans(self.sink_layers)} its residual stream is up to "
            f"{self.sink_ratio:,.0f} times as long as others, by {entries}."
        )


def _spans(layers: Sequence[int]) -> str:
    """Layers in words.

    >>> _spans([1, 5, 6, 7]), _spans([2])
    ('layers 1 and 5 to 7', 'layer 2')
    """
    spans: list[list[int]] = []
    for layer in layers:
        if spans and spans[-1][1] == layer - 1:
            spans[-1][1] = layer
        else:
            spans.append([layer, layer])
    written = [str(first) if first == last else f"{first} to {last}" for first, last in spans]
    return f"layer{'s' * (len(layers) > 1)} {' and '.join(written)}"


@dataclass(frozen=True)
class ReadText:
    """How a model reads the probing text, and what its tokenizer knows."""

    ids: tuple[int, ...]
    """Ids of the text, without a BOS."""
    bos: int | None
    """The model's BOS; None if there is none."""
    chat_template: bool


def profile_of(network: Network, read: Callable[[], ReadText], words: Callable[[], tuple[str, ...]]) -> ModelProfile:
    """The profile of a network in its present state, measured unless it was before.

    Of a large model not every byte is read to see whether it is as before (`state_key`): a few values that were changed
    behind PyTorch's back (``weight.data[...] = ``) can leave a profile that is no longer true.
    """
    with network.lock, unstoppable():
        state = state_key(network)
        key = (state, str(network.device), network.name)
        held = _held.get(key) if state.known_code else None
        if held is None:
            with few_threads(network.parameter_count, trial=True):
                held = _measure(network, read(), words())
        if state.known_code:
            while len(_held) >= _KEPT:
                _held.pop(next(iter(_held)), None)
            _held[key] = held
        return held


_held: dict[tuple[State, str, str], ModelProfile] = {}
"""The profiles of all models of the process, by their states."""


def vocabulary_words(strings: Sequence[str], special: Sequence[bool]) -> tuple[str, ...]:
    """The tokens that are a space and at least two letters, in their order.

    >>> vocabulary_words([" the", "the", " a", " <s>", " it's", " The"], [False] * 6)
    (' the', ' The')
    """
    found = (
        text
        for text, skip in zip(strings, special, strict=True)
        if not skip and len(text) > 2 and text[0] == " " and text[1:].isalpha()
    )
    return tuple(dict.fromkeys(found))


@torch.no_grad()
def _measure(network: Network, text: ReadText, words: tuple[str, ...]) -> ModelProfile:
    ids = list(text.ids[: max(1, min(TOKENS, network.n_ctx - 1))])
    with_bos = ids if text.bos is None else [text.bos, *ids]
    fed = with_bos if network.prepend_bos else ids
    norms: dict[bool, Tensor] = {}
    streams = None
    if network.capabilities.residual_stream:
        for bos in (True, False) if text.bos is not None else (False,):
            found = engine.residual_streams(network, with_bos if bos else ids).cpu()
            norms[bos] = first_ratio(found)
            streams = found if bos == network.prepend_bos else streams
    logits = engine.forward(network, network.embed(network._batch(fed)))[0]
    means, spreads = logits.mean(-1, dtype=torch.float32), logits.float().std(-1)
    is_sink = {bos: bool((ratio > SINK_RATIO).any()) for bos, ratio in norms.items()}
    layers, dimensions, sizes = _sink(streams, norms[network.prepend_bos]) if streams is not None else ((), (), ())
    return ModelProfile(
        model=network.name,
        bos_is_sink=is_sink.get(True, False),
        first_is_sink=is_sink.get(False, False),
        sink_ratio=float(norms[network.prepend_bos].max()) if norms else float("nan"),
        sink_layers=layers,
        sink_dimensions=dimensions,
        sink_sizes=sizes,
        stream_norms=() if streams is None else tuple(_median_norms(streams)),
        common_logit=float(means.std(correction=0)),
        logit_spread=float(spreads.median()),
        adds_bos=network.prepend_bos,
        chat_template=text.chat_template,
        tokens=len(fed),
        words=words,
        seconds=remembered(network, "seconds of a pass", lambda: _seconds(network, fed)),
    )


def first_ratio(streams: Tensor) -> Tensor:
    """(layers + 1,) norm of the first token's stream over the median norm of the others; 0 for a single token."""
    lengths = streams.norm(dim=-1)
    if lengths.shape[1] < 2:
        return torch.zeros(len(lengths))
    return lengths[:, 0] / lengths[:, 1:].median(dim=-1).values.clamp(min=torch.finfo(lengths.dtype).tiny)


def _median_norms(streams: Tensor) -> list[float]:
    lengths = streams.norm(dim=-1)
    ordinary = lengths[:, 1:] if lengths.shape[1] > 1 else lengths
    return [float(norm) for norm in ordinary.median(dim=-1).values]


def _sink(streams: Tensor, ratio: Tensor) -> tuple[tuple[int, ...], tuple[int, ...], tuple[float, ...]]:
    """The layers of a sink, and the largest entries of the first token at the layer where they are largest."""
    layers = tuple((ratio > SINK_RATIO).nonzero()[:, 0].tolist())
    if not layers:
        return (), (), ()
    row = streams[layers, 0][streams[layers, 0].abs().amax(-1).argmax()]
    # those that carry the sink: at least a tenth of the largest
    order = ranked(row.abs(), min(_MOST_DIMENSIONS, len(row)))[1]
    kept = [int(index) for index in order if row[index].abs() >= row[order[0]].abs() / 10]
    return layers, tuple(kept), tuple(float(row[index]) for index in kept)


def _seconds(network: Network, ids: list[int]) -> dict[int, float]:
    """Seconds of one pass by number of threads: one, and all that are in force if they pay off."""
    now = torch.get_num_threads()
    numbers = [now] if now == 1 or device_kind(network.device) != "cpu" else [1, now] if pay_off() else [1]
    batch, found = network.embed(network._batch(ids)), {}
    with threads_kept():
        for number in numbers:
            torch.set_num_threads(number)
            began = time.perf_counter()
            float(engine.forward(network, batch)[0, -1, 0])  # reading a number waits for the device
            found[number] = time.perf_counter() - began
    return found
