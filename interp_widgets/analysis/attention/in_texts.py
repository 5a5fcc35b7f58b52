"""`attention_in_texts`: the strongest attention of heads over many texts, and a sample of all strengths."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from interp_widgets.analysis._core.arrays import Floats, Ints
from interp_widgets.analysis._core.checks import check_finite, check_range, indices, layer_index, row_of
from interp_widgets.analysis._core.cost import Cost
from interp_widgets.analysis._core.result import Result, provenance, record, with_axes
from interp_widgets.analysis._core.run import RunOptions
from interp_widgets.analysis._core.tables import DataFrame, table
from interp_widgets.analysis._core.tensors import as_array, wide
from interp_widgets.analysis.attention.text_patterns import patterns_of_texts, read_texts, texts_cost
from interp_widgets.arguments import checked
from interp_widgets.models import Model
from interp_widgets.models.chat import PromptInput

DECILES = 10


class AttendedToken(NamedTuple):
    """A token of a text, and the token that a head attends to most from it."""

    text: int
    """Number of the text in the list."""
    query: int
    """Position of the query, counted from 0 without a BOS."""
    key: int
    """Position of the key."""
    attention: float
    """From the one to the other."""
    decile: int
    """Tenth of all queries by this attention: 1 the weakest, 10 the strongest."""


@record
class AttentionInTexts(Result):
    """For every token of some texts, the token that each head of a layer attends to most.

    The first token that the model reads, often an attention sink, and special tokens are no queries and no keys.

    Example:
        >>> result = attention_in_texts(model, demo_texts(12), layer=3, heads=[0])
        >>> best = result.top(0, 1)[0]
        >>> best.decile, bool(best.attention == np.nanmax(result.attention))
        (10, True)
        >>> len(result.sample(0, per_decile=2))
        20
    """

    layer: int
    """Layer of the model."""

    heads: Sequence[int] = with_axes("heads")
    """The heads of the layer that were asked for, counted from 0."""

    tokens: Sequence[str] = with_axes("tokens")
    """Readable tokens of all texts, one text after the other, without a BOS."""

    offsets: Ints = with_axes("texts + 1")
    """Index of each text's first token in `tokens`."""

    keys: Ints = with_axes("tokens", "heads")
    """Position in the text of the key with the most attention, counted from 0 without a BOS; -1 for a token that is no
    query."""

    attention: Floats = with_axes("tokens", "heads")
    """Attention to that key; NaN for a token that is no query."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not len(self.offsets) or self.offsets[-1] != len(self.tokens):
            raise ValueError(f"AttentionInTexts.offsets must end with the number of tokens, {len(self.tokens)}")

    @property
    def n_texts(self) -> int:
        """Texts that were read."""
        return len(self.offsets) - 1

    def text_tokens(self, text: int) -> tuple[str, ...]:
        """Readable tokens of one text."""
        return tuple(self.tokens[self.offsets[text] : self.offsets[text + 1]])

    def deciles(self, head: int) -> NDArray[np.int64]:
        """(tokens,) the tenth of each query by its attention, 1 the weakest to 10 the strongest.

        Equal ones are in the order of the texts; 0 for a token that is no query. Raises ValueError for a head that was
        not computed.
        """
        values = self.attention[:, row_of(head, self.heads, "head")]
        known = np.flatnonzero(np.isfinite(values))
        order = known[np.argsort(values[known], kind="stable")]
        deciles = np.zeros(len(values), dtype=np.int64)
        deciles[order] = np.arange(len(order)) * DECILES // max(1, len(order)) + 1
        return deciles

    def top(self, head: int, top: int = 5) -> list[AttendedToken]:
        """The queries with the most attention, at most one of a text, the strongest first.

        Raises ValueError for a head that was not computed.
        """
        check_range("top", top)
        values, column = self.attention[:, row_of(head, self.heads, "head")], self.deciles(head)
        best = [
            int(start + np.nanargmax(values[start:stop]))
            for start, stop in zip(self.offsets[:-1].tolist(), self.offsets[1:].tolist(), strict=True)
            if np.isfinite(values[start:stop]).any()
        ]
        chosen = sorted(best, key=lambda at: -values[at])[:top]
        return self._named(head, chosen, column)

    def sample(self, head: int, per_decile: int = 3, *, seed: int = 0) -> list[AttendedToken]:
        """Queries drawn at random from each tenth of all queries by attention, the strongest tenth first.

        Args:
            head: one of `heads`.
            per_decile: queries of each tenth; all where there are fewer.
            seed: of the draw.

        Raises ValueError for a head that was not computed.
        """
        check_range("per_decile", per_decile)
        deciles, rng = self.deciles(head), np.random.default_rng(seed)
        values = self.attention[:, row_of(head, self.heads, "head")]
        chosen: list[int] = []
        for decile in range(DECILES, 0, -1):
            members = np.flatnonzero(deciles == decile)
            drawn = rng.permutation(members)[:per_decile].tolist()
            chosen += sorted(drawn, key=lambda at: -values[at])
        return self._named(head, chosen, deciles)

    def _named(self, head: int, at: Sequence[int], deciles: NDArray[np.int64]) -> list[AttendedToken]:
        column = row_of(head, self.heads, "head")
        texts = np.searchsorted(self.offsets, at, side="right") - 1
        return [
            AttendedToken(
                text, index - int(self.offsets[text]), int(self.keys[index, column]),
                float(self.attention[index, column]), int(deciles[index]),
            )
            for index, text in zip(at, texts.tolist(), strict=True)
        ]  # fmt: skip

    def measures(self) -> dict[str, float | int | str | bool | None]:
        """Number of queries, and the head with the most attention on average: its mean and its nine-tenths quantile."""
        known = np.isfinite(self.attention).any(axis=1)
        if not known.any():
            return {"queries": 0, "head": None, "mean": None, "quantile_90": None}
        means = self.attention[known].mean(axis=0, dtype=float)
        best = int(means.argmax())
        return {
            "queries": int(known.sum()),
            "head": f"{self.layer}.{self.heads[best]}",
            "mean": float(means[best]),
            "quantile_90": float(np.quantile(self.attention[known, best], 0.9)),
        }

    def to_frame(self) -> DataFrame:
        """One row per token and head: the text, query and key with their tokens, the attention and its decile."""
        text = np.repeat(np.arange(self.n_texts), np.diff(self.offsets))
        start = np.asarray(self.offsets)[text]
        names = np.asarray(self.tokens, dtype=object)
        columns = {
            "text": text[:, None],
            "query": (np.arange(len(names)) - start)[:, None],
            "key": self.keys,
            "query_token": names[:, None],
            "key_token": np.where(self.keys >= 0, names[(start[:, None] + self.keys).clip(0)], None),
            "attention": self.attention,
            "decile": np.stack([self.deciles(head) for head in self.heads], axis=1),
        }
        return table({"token": range(len(names)), "head": self.heads}, columns)


@checked
@torch.no_grad()
def attention_in_texts(
    model: Model,
    texts: Sequence[PromptInput],
    *,
    layer: int,
    heads: Sequence[int] | None = None,
    prepend_bos: bool | None = None,
    progress: Callable[[int, int], None] | None = None,
    check: Callable[[], None] | None = None,
) -> AttentionInTexts:
    """Where in some texts the attention heads of a layer attend most: from every token, the token with most attention.

    As the texts that activate a neuron most tell what it is for, the strongest attention of a head tells what it looks
    for. The strongest alone mislead: `sample` draws from every tenth. The first token that the model reads, often an
    attention sink, and special tokens do not count. Later layers do not run.

    Args:
        model: what `load_model` returns.
        texts: texts, or lists of token ids (to which nothing is added), such as `demo_texts()`.
        layer: of the model, counted from 0 or negative from the end.
        heads: of the layer, negative ones from the end; default: all.
        prepend_bos: overrides the model's BOS policy for texts.
        progress: called with (done, total) texts.
        check: called before every pass and layer; raises to cancel.

    Raises:
        ValueError: no text, an empty or too long one, an unknown layer or head, or a model that shows no patterns.

    Source: Attention heads (Elhage et al. 2021, A Mathematical Framework for Transformer Circuits) on a data set;
    sampling from every interval of strength follows Towards Monosemanticity (Bricken et al. 2023).

    Example:
        >>> result = attention_in_texts(model, demo_texts(12), layer=3)
        >>> event = result.top(0, 1)[0]
        >>> tokens = result.text_tokens(event.text)
        >>> len(result.heads), event.key <= event.query < len(tokens)
        (6, True)
    """
    model.capabilities.require("attention_patterns", "attention_in_texts")
    layer, run = layer_index(model, layer), RunOptions(progress, check)
    chosen = indices(heads, model.n_heads, "head", f"model with {model.n_heads} heads per layer")
    read = read_texts(model, texts, prepend_bos)
    offsets = np.concatenate([[0], np.cumsum([item.n_shown for item in read])])
    keys = np.full((offsets[-1], len(chosen)), -1, dtype=np.int64)
    attention = np.full(keys.shape, np.nan, dtype=np.float32)
    counts = [~np.array(model.is_special(item.ids), dtype=bool) for item in read]
    for ordinary in counts:
        ordinary[0] = False

    def take(text: int, _: int, pattern: Tensor) -> None:
        ordinary, offset = torch.from_numpy(counts[text]).to(pattern.device), read[text].offset
        seen = (ordinary[:, None] & ordinary).tril()
        values = wide(pattern[list(chosen)])
        most, at = values.masked_fill(~seen, -1.0).max(-1)
        check_finite(most, lambda head, _: f"the attention of head {layer}.{chosen[head]} of {model.name}")
        rows = np.flatnonzero(counts[text])
        places = offsets[text] + rows - offset
        attention[places], keys[places] = as_array(most.T)[rows], as_array(at.T)[rows] - offset

    log = patterns_of_texts(model, read, [layer], take, run)
    return AttentionInTexts(
        layer=layer,
        heads=chosen,
        tokens=tuple(token for item in read for token in item.tokens()),
        offsets=offsets,
        keys=keys,
        attention=attention,
        provenance=provenance(model.provenance(), layer=layer, texts=len(read), **log.facts()),
    )


def attention_in_texts_cost(model: Model, lengths: Sequence[int], layer: int) -> Cost:
    """Forecast of `attention_in_texts` for texts of these lengths, in tokens with the BOS.

    Example:
        >>> attention_in_texts_cost(model, [20], 5).flops > attention_in_texts_cost(model, [20], 0).flops
        True
    """
    return texts_cost(model, lengths, layer)
