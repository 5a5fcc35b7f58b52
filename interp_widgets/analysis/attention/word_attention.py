"""`weights_against_text`: whether heads attend, in real texts, along the word pairs that their weights name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from interp_widgets.analysis._core.arrays import Floats, Ints, ratio
from interp_widgets.analysis._core.checks import check_finite, check_range, index, row_of
from interp_widgets.analysis._core.cost import Cost
from interp_widgets.analysis._core.prompts import Prompt
from interp_widgets.analysis._core.result import Result, provenance, record, with_axes
from interp_widgets.analysis._core.run import RunOptions
from interp_widgets.analysis._core.statistics import bootstrap_mean
from interp_widgets.analysis._core.tables import DataFrame, table
from interp_widgets.analysis._core.tensors import as_array, wide
from interp_widgets.analysis._core.word_embeddings import word_ids
from interp_widgets.analysis.attention.text_patterns import check_room, patterns_of_texts, read_texts, texts_cost
from interp_widgets.analysis.head_words import HeadWordResult
from interp_widgets.arguments import checked
from interp_widgets.models import Model
from interp_widgets.models.chat import PromptInput

FEWEST_PAIRS = 5
"""Fewest different pairs of a head in the texts for an interval: it is drawn over them."""
RESAMPLES = 999


class PairAttention(NamedTuple):
    """A word pair of a head, and the attention that its query word pays its key word in the texts."""

    query: str
    key: str
    occurrences: int
    """How often it occurs in the texts where there are other words to compare with."""
    attention: float
    """Mean attention from the query word to the key word."""
    matched: float
    """Mean attention of the other words that are compared with it."""
    auc: float
    """Share of the other words that get less attention, ties by half."""


class PairPlace(NamedTuple):
    """One occurrence of a head's word pair in a text."""

    text: int
    """Number of the text in the list."""
    query: int
    """Position of the query word's last token, counted from 0 without a BOS."""
    key: int
    """Position of the key word's last token."""
    query_word: str
    key_word: str
    attention: float
    """From the one to the other."""
    matched: float
    """Mean attention of the other words that are compared with it; NaN without any."""
    auc: float
    """Share of these that get less attention, ties by half; NaN without any."""


@record
class WeightsAgainstText(Result):
    """How well the word pairs that heads have by their weights predict where they attend in texts.

    Example:
        >>> texts = demo_texts(40)
        >>> result = weights_against_text(model, texts, head_word_pairs(model, layers=[0]))
        >>> result.auc.shape, result.interval.shape
        ((1, 6), (2, 1, 6))
        >>> result.to_frame().columns.tolist()[:6]
        ['layer', 'head', 'auc', 'low', 'high', 'control']
    """

    layers: Sequence[int] = with_axes("layers")
    """Layers of the model, those of the pairs."""

    auc: Floats = with_axes("layers", "heads")
    """Probability that a pair of the head gets more attention than other words at the same distance and of the same
    frequencies, ties by half; 0.5 by chance, NaN for a head without an occurrence to compare."""

    interval: Floats = with_axes(2, "layers", "heads")
    """95% bootstrap interval of it over the different pairs: low, high; NaN with fewer than five of them."""

    control: Floats = with_axes("shuffles", "layers", "heads")
    """The AUC with each word of the pairs replaced by a random one of the same frequency; NaN where no such pair
    occurs."""

    occurrences: Ints = with_axes("layers", "heads")
    """Occurrences of a head's pairs that are compared with others."""

    unmatched: Ints = with_axes("layers", "heads")
    """Occurrences that are left out, since no other words stand at that distance with those frequencies."""

    n_pairs: Ints = with_axes("layers", "heads")
    """Different pairs in `occurrences`."""

    texts_with: Ints = with_axes("layers", "heads")
    """Texts in which at least one pair of a head occurs."""

    n_texts: int
    """Texts that were read."""

    n_candidates: int
    """All occurrences of two different words of the list, the key before the query."""

    words: Sequence[str] = with_axes("words")
    """Words of the pairs that occur."""

    cells: Ints = with_axes("places", 2)
    """Row of the layer, and head, of every occurrence of a pair of a head."""

    word_pairs: Ints = with_axes("places", 2)
    """Query and key word of each, indices into `words`."""

    places: Ints = with_axes("places", 3)
    """Text, and positions of the last tokens of query and key word, counted from 0 without a BOS."""

    attention: Floats = with_axes("places")
    """Attention from the one to the other."""

    matched: Floats = with_axes("places")
    """Mean attention of the other words that are compared with it; NaN without any."""

    above: Floats = with_axes("places")
    """Share of these that get less attention, ties by half; NaN without any. Its mean over a head is `auc`."""

    seed: int = 0
    """Seed of the shuffles and the interval."""

    def _cell(self, layer: int, head: int) -> tuple[int, int]:
        heads = self.auc.shape[1]
        return row_of(layer, self.layers, "layer"), index(head, heads, "head", f"result with {heads} heads per layer")

    def _control(self, cell: tuple[int, int]) -> Floats:
        """(shuffles,) the controls of a head that there are."""
        control = self.control[:, *cell]
        return control[np.isfinite(control)]

    def found(self, layer: int, head: int) -> list[PairPlace]:
        """Every occurrence of a head's pairs, in the order of the texts.

        Raises ValueError for a layer or head that is not in the result.
        """
        at = np.flatnonzero((self.cells == self._cell(layer, head)).all(axis=1))
        numbers = np.stack([self.attention[at], self.matched[at], self.above[at]], axis=1)
        places = zip(self.places[at].tolist(), self.word_pairs[at].tolist(), numbers.tolist(), strict=True)
        return [
            PairPlace(text, query, key, self.words[first], self.words[second], *measured)
            for (text, query, key), (first, second), measured in places
        ]

    def pairs(self, layer: int, head: int) -> list[PairAttention]:
        """A head's pairs that occur and can be compared, those with the most attention first.

        Raises ValueError for a layer or head that is not in the result.
        """
        grouped: dict[tuple[str, str], list[PairPlace]] = {}
        for place in self.found(layer, head):
            if np.isfinite(place.auc):
                grouped.setdefault((place.query_word, place.key_word), []).append(place)
        pairs = [
            PairAttention(*words, len(places), *(
                float(np.mean([getattr(place, name) for place in places])) for name in ("attention", "matched", "auc")
            ))
            for words, places in grouped.items()
        ]  # fmt: skip
        return sorted(pairs, key=lambda pair: (-pair.attention, pair.query, pair.key))

    def beyond_chance(self, layer: int, head: int) -> bool:
        """Whether a head attends along its pairs more than by chance: the interval of its AUC lies above 0.5, and 95%
        of the shuffled controls below the AUC.

        Raises ValueError for a layer or head that is not in the result.
        """
        cell = self._cell(layer, head)
        limit = np.quantile([0.5, *self._control(cell)], 0.95)
        return bool(self.interval[0][cell] > 0.5 and self.auc[cell] > limit)

    def in_words(self, layer: int, head: int) -> str:
        """What was found for a head, in a sentence; ValueError for a layer or head that is not in the result."""
        cell = self._cell(layer, head)
        count, pairs = int(self.occurrences[cell]), int(self.n_pairs[cell])
        where = f"in {self.texts_with[cell]} of {self.n_texts:,} text{'s' * (self.n_texts != 1)}"
        if not self.texts_with[cell]:
            return (
                f"None of the pairs of head {layer}.{head} occurs in the {self.n_texts:,} "
                f"text{'s' * (self.n_texts != 1)}, so there is no AUC"
            )
        if not count:
            return (
                f"The pairs of head {layer}.{head} occur {where}, but no other words of the same frequencies stand at "
                "the same distances, so there is no AUC"
            )
        low, high = self.interval[:, *cell]
        start = f"{count:,} occurrence{'s' * (count != 1)} of {pairs} pair{'s' * (pairs != 1)} {where}: AUC "
        start += f"{self.auc[cell]:.2f}"
        if not np.isfinite(low):
            return f"{start}, without an interval, which needs {FEWEST_PAIRS} different pairs"
        control, shuffled = self._control(cell), ""
        if len(control):
            limit = np.quantile([0.5, *control], 0.95)
            shuffled = f"; with shuffled words {control.mean():.2f}, 95% of them below {limit:.2f}"
        if self.beyond_chance(layer, head):
            verdict = "beyond chance"
        elif high < 0.5:
            verdict = "less attention than other words get"
        else:
            verdict = "not beyond chance"
        return f"{start} (95% interval {low:.2f} to {high:.2f}{shuffled}), {verdict}"

    def measures(self) -> dict[str, float | int | str | bool | None]:
        """Heads beyond chance, heads with an interval, and the head with the largest lower end of the interval."""
        low = np.where(np.isfinite(self.interval[0]), self.interval[0], -np.inf)
        row, head = divmod(int(low.argmax()), low.shape[1])
        known = bool(np.isfinite(low[row, head]))
        heads = [(layer, number) for layer in self.layers for number in range(low.shape[1])]
        return {
            "heads_beyond_chance": sum(self.beyond_chance(*each) for each in heads),
            "heads_with_interval": int(np.isfinite(low).sum()),
            "head": f"{self.layers[row]}.{head}" if known else None,
            "auc": float(self.auc[row, head]) if known else None,
        }

    def to_frame(self) -> DataFrame:
        """One row per head: AUC, interval, mean of the control, and what it is measured on."""
        finite = np.isfinite(self.control)
        columns: dict[str, Any] = {
            "auc": self.auc,
            "low": self.interval[0],
            "high": self.interval[1],
            "control": ratio(np.nansum(self.control, axis=0), finite.sum(axis=0)),
            "pairs": self.n_pairs,
            "occurrences": self.occurrences,
            "unmatched": self.unmatched,
            "texts": self.texts_with,
        }
        return table({"layer": list(self.layers), "head": range(self.auc.shape[1])}, columns)


@checked
@torch.no_grad()
def weights_against_text(
    model: Model,
    texts: Sequence[PromptInput],
    pairs: HeadWordResult,
    *,
    shuffles: int = 20,
    seed: int = 0,
    prepend_bos: bool | None = None,
    progress: Callable[[int, int], None] | None = None,
    check: Callable[[], None] | None = None,
) -> WeightsAgainstText:
    """Whether heads attend, in texts, along the word pairs that their weights name, beside other words.

    A word occurs where its tokens stand as after a space, and no letter follows. Attention is read from the last token
    of the query word, which has read all of it, to the last token of the key word, which stands earlier; a word that
    begins with the first token that the model reads, often an attention sink, is no key. An occurrence of one of a
    head's pairs is compared with all occurrences of two words that are not a pair of the head, at the same distance
    (exact up to 4 tokens, then within half an octave), of query words of the same frequency and key words of the same
    frequency (rank in the list of words, within an octave), since attention depends on all three. The AUC is the share
    of these that get less attention, ties by half, averaged over the occurrences. The interval draws different pairs
    anew, since occurrences of one pair are alike. The control replaces the words of the pairs by others of the same
    frequency that occur in the texts, and keeps which pairs share a word.

    Args:
        model: what `load_model` returns.
        texts: texts, or lists of token ids (to which nothing is added), such as `demo_texts()`.
        pairs: of the heads, what `head_word_pairs` returns for this model; its layers are looked at.
        shuffles: controls, 1 to 1,000.
        seed: of the controls and the interval.
        prepend_bos: overrides the model's BOS policy for texts.
        progress: called with (done, total) texts.
        check: called before every pass and between heads; raises to cancel.

    Raises:
        ValueError: no text, an empty or too long one, pairs of a model with other layers or heads, or a model that
            shows no patterns.
        MemoryError: more occurrences than fit in the free memory.

    Source: the pairs are from From Language Modeling to Instruction Following (Wu et al. 2024), section 5.1; the AUC is
    the Mann-Whitney statistic within strata.

    Example:
        >>> result = weights_against_text(model, demo_texts(40), head_word_pairs(model, layers=[0]), shuffles=5)
        >>> print(result.in_words(0, 3))
        6 occurrences of 3 pairs in 6 of 40 texts: AUC 0.20, without an interval, which needs 5 different pairs
    """
    model.capabilities.require("attention_patterns", "weights_against_text")
    check_range("shuffles", shuffles, 1, most=1000)
    _check_pairs(model, pairs)
    run = RunOptions(progress, check)
    read = read_texts(model, texts, prepend_bos)
    events = _Events.of(read, _Words(model, pairs.vocabulary))
    heads = range(model.n_heads)
    check_room(
        4 * len(events.text) * len(pairs.layers) * len(heads),
        f"the attention of {len(pairs.layers) * len(heads)} heads between {len(events.text):,} pairs of words",
        "give pairs of fewer layers, or fewer or shorter texts",
    )
    attention = np.zeros((len(pairs.layers), len(heads), len(events.text)), dtype=np.float32)
    starts = np.searchsorted(events.text, np.arange(len(read) + 1))

    def take(text: int, row: int, pattern: Tensor) -> None:
        part = slice(starts[text], starts[text + 1])
        query, key = (torch.from_numpy(at[part]).to(pattern.device) for at in (events.query, events.key))
        attention[row, :, part] = as_array(wide(pattern[:, query, key]))

    log = patterns_of_texts(model, read, pairs.layers, take, run)
    check_finite(attention, lambda i, j, _: f"the attention of head {pairs.layers[i]}.{j} of {model.name}")
    return _compared(model, pairs, events, attention, read, shuffles, seed, run, log.facts())


def weights_against_text_cost(model: Model, lengths: Sequence[int], last: int) -> Cost:
    """Forecast of `weights_against_text` up to a last layer in texts of these lengths, in tokens with the BOS.

    Example:
        >>> weights_against_text_cost(model, [20], 5).flops == 2 * weights_against_text_cost(model, [20], 2).flops
        True
    """
    return texts_cost(model, lengths, last)


def _check_pairs(model: Model, pairs: HeadWordResult) -> None:
    if max(pairs.layers) >= model.n_layers or pairs.n_heads != model.n_heads:
        raise ValueError(
            f"pairs must be those of this model with {model.n_layers} layers of {model.n_heads} heads, got pairs of "
            f"layer {max(pairs.layers)} with {pairs.n_heads} heads per layer: call head_word_pairs on this model"
        )


class _Words:
    """Finds the words of a list in tokenised texts."""

    def __init__(self, model: Model, vocabulary: Sequence[str]) -> None:
        self.model = model
        self.by_ids: dict[tuple[int, ...], int] = {}
        for number, ids in enumerate(word_ids(model, vocabulary)):
            if ids:
                self.by_ids.setdefault(tuple(ids), number)
        self.longest = max(map(len, self.by_ids), default=0)
        first = model.single_token_strings([ids[0] for ids in self.by_ids])
        self.marks_spaces = any(text.startswith(" ") for text in first)
        """Whether tokens show where words begin; else every token begins one."""

    def find(self, ids: Sequence[int]) -> list[tuple[int, int, int]]:
        """First token, last token and number of each word in a text, the longest at each place."""
        found, at, strings = list[tuple[int, int, int]](), 0, self.model.token_strings(ids)
        while at < len(ids):
            for length in range(min(self.longest, len(ids) - at), 0, -1):
                word = self.by_ids.get(tuple(ids[at : at + length]))
                end = at + length
                goes_on = self.marks_spaces and end < len(ids) and strings[end][:1].isalnum()
                if word is not None and not goes_on:
                    found.append((at, end - 1, word))
                    at = end - 1
                    break
            at += 1
        return found


@dataclass(frozen=True)
class _Events:
    """Two different words of a text, the key before the query, in the order of the texts."""

    text: Ints
    query: Ints
    """Position of its last token among those that the model reads."""
    key: Ints
    query_word: Ints
    key_word: Ints

    @classmethod
    def of(cls, read: Sequence[Prompt], words: _Words) -> _Events:
        parts: list[NDArray[np.int64]] = []
        for number, item in enumerate(read):
            found = np.array(words.find(item.ids), dtype=np.int64).reshape(-1, 3)
            key, query = np.triu_indices(len(found), 1)
            kept = (found[key, 0] > 0) & (found[key, 2] != found[query, 2])
            key, query = key[kept], query[kept]
            parts.append(np.stack([
                np.full(len(key), number), found[query, 1], found[key, 1], found[query, 2], found[key, 2],
            ]))  # fmt: skip
        return cls(*np.concatenate(parts, axis=1))

    @property
    def strata(self) -> NDArray[np.int64]:
        """The number of each event's stratum: its distance, and the frequencies of its words."""
        octaves = [_octave(word) for word in (self.query_word, self.key_word)]
        distance = np.floor(2 * np.log2(np.maximum(self.query - self.key, 1)) + 1e-9).astype(np.int64)
        code = (distance * 64 + octaves[0]) * 64 + octaves[1]
        strata: NDArray[np.int64] = np.unique(code, return_inverse=True)[1].reshape(-1)
        return strata


def _octave(word: NDArray[Any]) -> NDArray[np.int64]:
    """The octave of a word's rank in the list: 1st, 2nd and 3rd, 4th to 7th, …"""
    octaves: NDArray[np.int64] = np.floor(np.log2(word + 1) + 1e-9).astype(np.int64)
    return octaves


def _compared(
    model: Model,
    pairs: HeadWordResult,
    events: _Events,
    attention: NDArray[np.float32],
    read: Sequence[Prompt],
    shuffles: int,
    seed: int,
    run: RunOptions,
    facts: dict[str, int],
) -> WeightsAgainstText:
    n_words = len(pairs.vocabulary)
    code = events.query_word * n_words + events.key_word
    by_code = np.argsort(code, kind="stable")
    sorted_code, strata = code[by_code], events.strata
    there = np.unique(np.concatenate([events.query_word, events.key_word]))
    orders = [_shuffled(n_words, there, np.random.default_rng([seed, number])) for number in range(shuffles)]
    shape = attention.shape[:2]
    auc, interval = np.full(shape, np.nan), np.full((2, *shape), np.nan)
    control = np.full((shuffles, *shape), np.nan)
    occurring, unmatched, n_pairs, texts_with = (np.zeros(shape, dtype=np.int64) for _ in range(4))
    cells, kept = [], []
    for row, head in np.ndindex(*shape):
        run.stop_if_cancelled()
        own = pairs.head_pairs[row, head][pairs.head_counts[row, head] > 0].astype(np.int64)
        ranks = _Ranks(attention[row, head], strata)

        def occurrences(words: NDArray[np.int64]) -> NDArray[np.int64]:
            codes = np.unique(words[:, 0] * n_words + words[:, 1])
            first, last = (np.searchsorted(sorted_code, codes, side) for side in ("left", "right"))
            spans = [by_code[start:stop] for start, stop in zip(first, last, strict=True)]
            return np.sort(np.concatenate(spans)) if spans else np.empty(0, dtype=np.int64)

        at = occurrences(own)
        above, matched = ranks.against_others(at)
        known = np.isfinite(above)
        _, pair = np.unique(code[at[known]], return_inverse=True)
        occurring[row, head], unmatched[row, head] = known.sum(), (~known).sum()
        n_pairs[row, head] = pair.max(initial=-1) + 1
        texts_with[row, head] = len(np.unique(events.text[at]))
        if known.any():
            auc[row, head] = above[known].mean()
        if n_pairs[row, head] >= FEWEST_PAIRS:
            drawn = bootstrap_mean(above[known, None], clusters=pair, resamples=RESAMPLES, seed=seed)
            interval[:, row, head] = drawn[:, 0]
        for number, order in enumerate(orders):
            shares, _ = ranks.against_others(occurrences(order[own]))
            if np.isfinite(shares).any():
                control[number, row, head] = np.nanmean(shares)
        cells += [(row, head)] * len(at)
        kept.append((at, attention[row, head, at], matched, above))
    place, strength, matched, above = (np.concatenate(part) for part in zip(*kept, strict=True))
    word_pairs = np.stack([events.query_word[place], events.key_word[place]], axis=1)
    used, numbers = np.unique(word_pairs, return_inverse=True)
    offsets = np.array([item.offset for item in read], dtype=np.int64)[events.text[place]]
    return WeightsAgainstText(
        layers=pairs.layers,
        auc=auc,
        interval=interval,
        control=control,
        occurrences=occurring,
        unmatched=unmatched,
        n_pairs=n_pairs,
        texts_with=texts_with,
        n_texts=len(read),
        n_candidates=len(code),
        words=tuple(pairs.vocabulary[word] for word in used.tolist()),
        cells=np.array(cells, dtype=np.int64).reshape(-1, 2),
        word_pairs=numbers.reshape(-1, 2),
        places=np.stack([events.text[place], events.query[place] - offsets, events.key[place] - offsets], axis=1),
        attention=strength,
        matched=matched,
        above=above,
        seed=seed,
        provenance=provenance(
            model.provenance(), texts=len(read), words=n_words, shuffles=shuffles, seed=seed, **facts
        ),
    )  # fmt: skip


def _shuffled(n_words: int, there: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
    """(words,) the words with those that occur permuted within their octave of frequency."""
    order, octave = np.arange(n_words), _octave(there)
    for each in np.unique(octave):
        members = there[octave == each]
        order[members] = rng.permutation(members)
    return order


class _Ranks:
    """The attention of one head between all pairs of words, ranked within the strata."""

    def __init__(self, values: NDArray[np.float32], strata: NDArray[np.int64]) -> None:
        self.values, self.strata = values.astype(np.float64), strata
        self.ranks = _mid_ranks(self.values, strata)
        count = int(strata.max(initial=-1)) + 1
        self.sizes = np.bincount(strata, minlength=count)
        self.sums = np.bincount(strata, self.values, minlength=count)

    def against_others(self, at: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """For each of these events, the share of the others of its stratum with less attention, ties by half, and their
        mean attention; NaN without others."""
        values, strata = self.values[at], self.strata[at]
        count = len(self.sizes)
        n_others = (self.sizes - np.bincount(strata, minlength=count))[strata]
        lower = self.ranks[at] - _mid_ranks(values, strata)
        sums = (self.sums - np.bincount(strata, values, minlength=count))[strata]
        return ratio(lower, n_others), ratio(sums, n_others)


def _mid_ranks(values: NDArray[np.float64], groups: NDArray[np.int64]) -> NDArray[np.float64]:
    """For each value, how many of its group are smaller, equal ones by half.

    >>> _mid_ranks(np.array([3.0, 1.0, 1.0, 5.0]), np.array([0, 0, 0, 1])).tolist()
    [2.0, 0.5, 0.5, 0.0]
    """
    order = np.lexsort((values, groups))
    in_order, group = values[order], groups[order]
    begins = np.r_[True, group[1:] != group[:-1]][: len(order)]
    differs = begins | np.r_[True, in_order[1:] != in_order[:-1]][: len(order)]
    first = np.flatnonzero(differs)
    middle = (first + np.r_[first[1:], len(order)][: len(first)] - 1) / 2
    start = np.maximum.accumulate(np.where(begins, np.arange(len(order)), 0))
    ranks = np.empty(len(order))
    ranks[order] = middle[np.cumsum(differs) - 1] - start
    return ranks
