"""Word embeddings of a model: one per word, on the input or the output side."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from interp_widgets.analysis._core.checks import check_choice
from interp_widgets.analysis._core.run import RunOptions
from interp_widgets.analysis._core.tensors import wide
from interp_widgets.data.word_vectors import WordVectors, check_words, demo_word_vectors
from interp_widgets.models import Model

Side = Literal["input", "output"]
"""``input``: rows of the token embedding; ``output``: columns of the unembedding."""

Words = Sequence[str] | Mapping[str, int] | WordVectors | None
"""A word list: words in falling order of frequency, a mapping of words to counts, the words of a vector file, or None
for the demo's."""

_GATHERED = 2**22
"""Numbers of token embeddings held at once, beside the table."""


@dataclass(frozen=True, eq=False)
class WordTable:
    """The words of a list that a model can write, with one embedding each."""

    words: tuple[str, ...]
    """(words,) in the order of the list, without `unknown`."""
    embeddings: Tensor
    """(words, d_model) mean of the embeddings of each word's tokens, float32 or wider, on the model's device."""
    n_tokens: NDArray[np.int64]
    """(words,) tokens of each word in its leading-space form."""
    unknown: tuple[str, ...]
    """Words that the tokenizer cannot write; they have no embedding."""


def word_list(words: Words) -> tuple[str, ...]:
    """The words of a list, the most frequent first; ValueError for an empty list, an empty word or one word twice.

    >>> word_list({"dog": 3, "the": 90})
    ('the', 'dog')
    """
    if isinstance(words, str):
        raise TypeError("words must be a list of words, got one text: split it first, as with text.split()")
    if words is None:
        return demo_word_vectors().words
    if isinstance(words, WordVectors):
        return words.words
    if isinstance(words, Mapping):
        check_words(tuple(words))
        return tuple(sorted(words, key=lambda word: -words[word]))
    check_words(words)
    return tuple(words)


def word_table(
    model: Model, words: Words = None, *, side: Side = "input", check: Callable[[], None] | None = None
) -> WordTable:
    """One embedding per word: the mean of its tokens' embeddings, the word written as after a space.

    A token that holds only that space is left out of the mean. A word that the tokenizer replaces by its unknown token
    is left out of the table and listed in `unknown`.

    Args:
        model: what `load_model` returns, with a tokenizer.
        words: a word list, the most frequent first; default: the demo's.
        side: ``"input"`` or ``"output"``.
        check: called between batches; raises to cancel.

    Raises:
        ValueError: an empty or doubled word, no word that the tokenizer can write, a model without a tokenizer.

    Source: From Language Modeling to Instruction Following (Wu et al. 2024), sections 5.1 and 5.2 (E_i and E_o).

    Example:
        >>> word_table(model, ["dog", "quickly"]).embeddings.shape
        torch.Size([2, 192])
    """
    check_choice("side", side, Side)
    listed = word_list(words)
    ids = word_ids(model, listed)
    known = [number for number, tokens in enumerate(ids) if tokens]
    if not known:
        raise ValueError(f"the tokenizer of {model.name} can write none of the {len(listed)} words: give other words")
    table = model.weight("W_E") if side == "input" else model.weight("W_U").T
    return WordTable(
        words=tuple(listed[i] for i in known),
        embeddings=_means(table, [ids[i] for i in known], RunOptions(check=check)),
        n_tokens=np.array([len(ids[i]) for i in known], dtype=np.int64),
        unknown=tuple(word for word, tokens in zip(listed, ids, strict=True) if not tokens),
    )


def word_ids(model: Model, words: Sequence[str]) -> list[list[int]]:
    """The token ids of each word after a space; none for a word that the tokenizer cannot write."""
    # LLaMA's tokenizer adds the leading space itself, GPT-2's takes it from the text
    by_itself = model.token_strings(model.tokens("a", prepend_bos=False))[0].startswith(" ")
    encoded = model.token_lists([word if by_itself else f" {word}" for word in words])
    unknown = getattr(model.tokenizer, "unk_token_id", None)
    first = list({ids[0] for ids in encoded if len(ids) > 1})
    blank = {token for token, text in zip(first, model.single_token_strings(first), strict=True) if text == " "}
    written = [ids[1:] if len(ids) > 1 and ids[0] in blank else ids for ids in encoded]
    return [[] if unknown is not None and unknown in ids else ids for ids in written]


@torch.no_grad()
def _means(table: Tensor, ids: Sequence[Sequence[int]], run: RunOptions) -> Tensor:
    """(words, width) means of the table's rows, gathered in batches: a wide copy of the whole table is never made."""
    kind = wide(table[:1]).dtype
    means = torch.empty(len(ids), table.shape[1], dtype=kind, device=table.device)
    longest = max(map(len, ids))
    step = max(1, _GATHERED // (table.shape[1] * longest))
    for start in range(0, len(ids), step):
        run.stop_if_cancelled()
        batch = ids[start : start + step]
        lengths = torch.tensor([len(word) for word in batch], device=table.device)
        rows = table[torch.tensor([token for word in batch for token in word], device=table.device)].to(kind)
        owner = torch.repeat_interleave(torch.arange(len(batch), device=table.device), lengths, output_size=len(rows))
        sums = torch.zeros(len(batch), table.shape[1], dtype=kind, device=table.device).index_add_(0, owner, rows)
        means[start : start + len(batch)] = sums / lengths[:, None]
    return means
