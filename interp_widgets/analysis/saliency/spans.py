"""Spans of a prompt's tokens: words, sentences, roles and turns of a chat, or given spans."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

from interp_widgets.analysis._core.checks import check_choice, check_span
from interp_widgets.analysis._core.token_runs import runs
from interp_widgets.analysis.saliency.density import plain_text, sentence_spans
from interp_widgets.models.tokens import CONTINUATION

SpanKind = Literal["words", "sentences", "passages", "roles", "turns"]
"""How a prompt is divided into spans of tokens; passages are about eight stretches of whole sentences (of words,
where sentences are longer), roles and turns are those of a chat (`chat_prompt`)."""

PASSAGES = 8
"""Passages in a prompt without roles and special tokens, at most."""
_PASSAGE = 16
"""Fewest tokens of a passage, where the prompt has them."""

Spans = tuple[tuple[int, int], ...]
"""[start, end) tokens of each span."""

Characters = Sequence[Sequence[int]]
"""[start, end) characters of each token in the text."""

_WORD = re.compile(r"\w+(?:['’-]\w+)*|[^\w\s]+")


def word_spans(tokens: Sequence[str], characters: Characters | None = None) -> Spans:
    """Divide readable tokens into words: (first, past-last) token of each, covering every token once.

    A word is a run of letters and digits, with apostrophes and hyphens between them, or a run of other characters.
    Tokens that share a word are one span, and so are words that share a token. White space joins the word before it.
    With the ``characters`` [start, end) of the tokens in their text, these decide where there is white space.

    >>> word_spans(["The", " E", "iff", "el", " T", "ower", " isn", "'", "t", ",", " it", "'s", "."])
    ((0, 1), (1, 4), (4, 6), (6, 9), (9, 10), (10, 12), (12, 13))
    >>> word_spans([" don", " '", " t", " stop"], [(0, 3), (3, 4), (4, 5), (6, 10)])
    ((0, 3), (3, 4))
    """
    texts = [plain_text(token.replace(CONTINUATION, "")) for token in spaced_tokens(tokens, characters)]
    words = [match.span() for match in _WORD.finditer("".join(texts))]
    spans: list[tuple[int, int]] = []
    end, last = 0, -1  # end of the text so far, and the last word that began in it
    for number, text in enumerate(texts):
        start, end = end, end + len(text)
        inside = [word for word, (a, b) in enumerate(words) if a < end and b > start]
        if spans and (not inside or inside[0] <= last):
            spans[-1] = (spans[-1][0], number + 1)
        else:
            spans.append((number, number + 1))
        last = max([last, *inside])
    return tuple(spans)


def spaced_tokens(tokens: Sequence[str], characters: Characters | None) -> list[str]:
    """Readable tokens with white space only where their text has it.

    Vocabularies that mark where words begin or end show a space at each, also between letters and a comma. If the
    characters of a token leave its spaces out, a gap between two tokens is the white space.
    """
    if characters is None:
        return list(tokens)
    texts, before = [], 0
    for number, (token, (start, end)) in enumerate(zip(tokens, characters, strict=True)):
        bare = token.strip(" ")
        text = bare if len(bare) == end - start else token
        texts.append(f" {text}" if number and start > before and not text[:1].isspace() else text)
        before = max(before, end)
    return texts


def _sentences(tokens: Sequence[str], characters: Characters | None) -> Spans:
    return sentence_spans(spaced_tokens(tokens, characters))


def _parts(tokens: Sequence[str], characters: Characters | None, longest: float) -> Spans:
    """The sentences, longer ones cut into words."""
    texts, parts = spaced_tokens(tokens, characters), []
    for start, end in sentence_spans(texts):
        words = word_spans(texts[start:end]) if end - start > longest else ((0, end - start),)
        parts += [(start + a, start + b) for a, b in words]
    return tuple(parts)


_CUTS: dict[str, Callable[[Sequence[str], Characters | None], Spans]] = {"words": word_spans, "sentences": _sentences}


def read_spans(
    spans: Any,
    within: Any,
    tokens: Sequence[str],
    special: Sequence[bool],
    roles: Sequence[str] | None = None,
    turns: Sequence[int] | None = None,
    characters: Characters | None = None,
) -> Spans:
    """The requested spans in the order of the prompt: by kind, as given, or single tokens for None.

    Among words and sentences, special tokens are separate spans, and in a chat no word, sentence or passage crosses
    from one role to another. With ``within``, only the parts inside its tokens [start, end) are kept. ``roles`` and
    ``turns`` are those of a chat's tokens, ``characters`` those of the tokens in their text, if known.

    >>> read_spans("words", (1, 3), ["Two", " words", " more"], [False] * 3)
    ((1, 2), (2, 3))
    """
    size, owner = len(tokens), f"prompt of {len(tokens)} tokens"
    if spans is None:
        chosen = [(i, i + 1) for i in range(size)]
    elif isinstance(spans, str):
        check_choice("spans", spans, SpanKind)
        labels = {"roles": roles, "turns": turns}
        if spans in _CUTS:
            chosen = _cut(tokens, special, roles, characters, _CUTS[spans])
        elif spans == "passages":
            length = max(_PASSAGE, size / PASSAGES)
            parts = _cut(tokens, special, roles, characters, partial(_parts, longest=length))
            chosen = _passages(parts, length, [special[a] if roles is None else roles[a] for a, _ in parts])
        elif (label := labels[spans]) is not None:
            chosen = list(runs(label))
        else:
            raise ValueError(f"spans={spans!r} needs the prompt as a list of messages, each with a role and a content")
    else:
        chosen = sorted(check_span(span, size, "a span", owner) for span in spans)
        if not chosen:
            raise ValueError("spans must not be empty: give [start, end) tokens of each, 'words' or 'sentences'")
    if within is not None:
        start, end = check_span(within, size, "within", owner)
        chosen = [(max(a, start), min(b, end)) for a, b in chosen if a < end and b > start]
        if not chosen:
            raise ValueError(f"none of the spans overlaps within={(start, end)}: leave within out")
    return tuple(chosen)


def _cut(
    tokens: Sequence[str],
    special: Sequence[bool],
    roles: Sequence[str] | None,
    characters: Characters | None,
    cut: Callable[[Sequence[str], Characters | None], Spans],
) -> list[tuple[int, int]]:
    """Apply ``cut`` to each run of ordinary tokens of one role; special tokens are separate spans."""
    labels = [i if is_special else -1 if roles is None else roles[i] for i, is_special in enumerate(special)]
    return [
        (start + a, start + b)
        for start, end in runs(labels)
        for a, b in cut(tokens[start:end], None if characters is None else characters[start:end])
    ]


def _passages(parts: Sequence[tuple[int, int]], length: float, labels: Sequence[str | bool]) -> list[tuple[int, int]]:
    """Join neighbouring parts with one label whose middles are in the same stretch of ``length`` tokens.

    >>> _passages([(0, 1), (1, 3), (3, 4), (4, 8), (8, 16)], 4, "abbbb")
    [(0, 1), (1, 4), (4, 8), (8, 16)]
    """
    stretches = [int((a + b) / 2 // length) for a, b in parts]
    joined = runs(list(zip(stretches, labels, strict=True)))
    return [(parts[first][0], parts[stop - 1][1]) for first, stop in joined]


def span_fields(
    spans: Spans, tokens: Sequence[str], special: Sequence[bool], characters: Sequence[Sequence[int]] | None
) -> dict[str, Any]:
    """The fields of a `SaliencyResult` that describe its rows, for spans of these tokens."""
    spaced = spaced_tokens(tokens, characters)
    return {
        "prompt_tokens": ["".join(spaced[a:b]).replace(CONTINUATION, "") or CONTINUATION for a, b in spans],
        "prompt_special": [all(special[a:b]) for a, b in spans],
        "prompt_spans": None if characters is None else [(characters[a][0], characters[b - 1][1]) for a, b in spans],
        "spans": spans,
    }
