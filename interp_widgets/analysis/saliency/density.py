"""Normalised scores, densities, instruction scores and position profiles from raw importance.

Source: From Language Modeling to Instruction Following: Understanding the Behavior Shift in LLMs after Instruction
Tuning (Wu et al. 2024), sections 4.1 and 4.2, appendix B.3.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from interp_widgets.analysis._core.arrays import Bools, float64
from interp_widgets.analysis._core.checks import check_range, check_span
from interp_widgets.arguments import checked

FLOOR = 0.01
"""The default floor: a response token counts if its largest importance reaches it, in the target's unit."""


@checked
def normalize_importance(
    importance: ArrayLike, *, levels: int = 10, threshold: float = 0, min_importance: float = 0.0
) -> NDArray[np.float64]:
    """Rescale importance so that prompt tokens can be compared across response tokens.

    `importance` is (prompt, response). Negative values count as 0; each response token's column is divided by its
    maximum (plus 1e-7, so that a column without any importance stays 0) and rounded up to whole levels; scores not
    above `threshold` (0..levels) become 0. Use 0 for maps and 7 for densities. Returns (prompt, response) whole numbers
    0..levels. Raises ValueError for another shape, NaN, or options out of range.

    This stretches every column to the full scale, even if its maximum is a millionth. With `min_importance`, in the
    unit of the target, columns with a smaller maximum score 0; 0 gives the paper's rule.

    Source: Wu et al. 2024, section 4.1, Eq. 2; the floor is ours.

    Example:
        >>> normalize_importance([[0.2, -0.1, 2e-6], [0.05, 0.3, 1e-6]])
        array([[10.,  0., 10.],
               [ 3., 10.,  5.]])
        >>> normalize_importance([[0.2, -0.1, 2e-6], [0.05, 0.3, 1e-6]], min_importance=0.01)
        array([[10.,  0.,  0.],
               [ 3., 10.,  0.]])
    """
    values = float64(importance)
    if values.ndim != 2:
        raise ValueError(f"importance must have shape (prompt, response), got {values.shape}")
    check_range("levels", levels)
    check_range("threshold", threshold, 0, levels, f"{levels} levels")
    check_range("min_importance", min_importance, 0)
    if not np.isfinite(values).all():
        raise ValueError(f"importance must be finite, got NaN or infinity in {np.sum(~np.isfinite(values))} places")
    positive = np.maximum(values, 0)
    scores = np.ceil(levels * positive / (positive.max(axis=0, initial=0) + 1e-7))
    return np.where((scores > threshold) & ~under_floor(values, min_importance), scores, 0.0)


def under_floor(importance: ArrayLike, min_importance: float) -> Bools:
    """(response,) whether the largest importance (prompt, response) of a response token is under a floor.

    >>> under_floor([[0.2, -0.1, 2e-6], [0.05, 0.3, 1e-6]], 0.01).tolist()
    [False, False, True]
    """
    return np.asarray(float64(importance).max(axis=0, initial=0) < min_importance)


@checked
def importance_density(scores: ArrayLike, *, p: float = 4) -> NDArray[np.float64]:
    """The density of each prompt token: roughly, the number of response tokens it is important for.

    `scores` is (prompt, response), usually from :func:`normalize_importance` with threshold 7. Returns (prompt,) ratios
    of the l1 norm over the response to the lp norm: 0 for a row of zeros, 1 for a row with one score, rising with the
    number of equal scores k as k^(1 - 1/p). Raises ValueError for another shape or p not above 0.

    Source: Wu et al. 2024, section 4.2.

    Example:
        >>> importance_density([[8, 8, 8, 8], [0, 9, 0, 0], [0, 0, 0, 0]], p=2).round(3).tolist()
        [2.0, 1.0, 0.0]
    """
    values = np.abs(float64(scores))
    if values.ndim != 2:
        raise ValueError(f"scores must have shape (prompt, response), got {values.shape}")
    if not p > 0:
        raise ValueError(f"p must be above 0, got {p}")
    top = values.max(axis=1, initial=0)
    share = np.divide(values, top[:, None], out=np.zeros_like(values), where=top[:, None] > 0)
    norm = top * (share**p).sum(axis=1) ** (1 / p)  # scaled by the maximum first: a large p would overflow
    return np.asarray(values.sum(axis=1) / (norm + 1e-9))


@checked
def instruction_score(density: ArrayLike, mask: ArrayLike) -> float:
    """How strongly the marked prompt tokens drive the response as a whole.

    `density` is (prompt,), `mask` (prompt,) is true at instruction tokens. The density is divided by its maximum over
    the whole prompt, summed over the marked tokens, and divided by log2(2 + number of marked tokens). The paper's text
    leaves both divisions out but its tables need them: without the division by the maximum, the difference of its
    Table 2 changes sign. Returns 0 when no token is marked or the density is 0 everywhere. Raises ValueError when the
    shapes differ or the mask is not of booleans (or 0 and 1).

    Source: Wu et al. 2024, section 4.2, Tables 1 and 2.

    Example:
        >>> instruction_score([4.0, 2.0, 1.0], [True, True, False])
        0.75
    """
    values = float64(density)
    marked = float64(mask)
    if values.ndim != 1 or marked.shape != values.shape:
        raise ValueError(f"density and mask must be (prompt,) of one length, got {values.shape} and {marked.shape}")
    if not np.isin(marked, (0, 1)).all():
        raise ValueError("mask must hold true/false (or 1/0) for every prompt token")
    marked = marked.astype(bool)
    top = values.max(initial=0)
    if top <= 0:
        return 0.0
    return float((values / top)[marked].sum() / np.log2(2 + marked.sum()))


def plain_text(token: str) -> str:
    """A token's text, with the vocabulary's symbols for spaces and line breaks replaced."""
    return token.replace("\u2581", " ").replace("\u0120", " ").replace("\u010a", "\n")


def sentence_spans(tokens: Sequence[str]) -> tuple[tuple[int, int], ...]:
    """Cut readable tokens into sentences: (first, past-last) token of each, covering every token once.

    A sentence ends after a full stop, exclamation or question mark (with closing quotes or brackets) that is followed
    by white space or the end, and at every line break. White space alone joins the sentence before it.

    >>> sentence_spans(["Add", " 1", ".", "5", ".", " Then", " stop", ".", "\\n", "Input", ":"])
    ((0, 5), (5, 9), (9, 11))
    """
    spans: list[tuple[int, int]] = []
    start = 0
    for number, token in enumerate(tokens):
        text = plain_text(token)
        following = tokens[number + 1] if number + 1 < len(tokens) else " "
        spaced = following[:1].isspace() or following[:1] in ("\u2581", "\u0120", "\u010a")
        mark = text.rstrip().rstrip("\"'”’)]")
        ends = "\n" in text or (mark.endswith((".", "!", "?", "。", "？", "！")) and (spaced or text != text.rstrip()))
        if not ends:
            continue
        if not "".join(tokens[start : number + 1]).strip(" \t\r\n\u2581\u0120\u010a") and spans:
            spans[-1] = (spans[-1][0], number + 1)
        else:
            spans.append((start, number + 1))
        start = number + 1
    if start < len(tokens):
        spans.append((start, len(tokens)))
    return tuple(spans)


def sentence_profiles(
    density: ArrayLike, sentences: Sequence[Sequence[int]], *, segments: int = 4, min_tokens: int = 4
) -> NDArray[np.float64]:
    """Share of each sentence's density that falls in each of its equal segments.

    `density` is (prompt,); `sentences` are (first, past-last) token pairs, as :func:`sentence_spans` gives. A token on
    a border counts for both segments in proportion, so that a uniform density gives equal shares for any length.
    Sentences shorter than `min_tokens` or without density are left out. Returns (sentences kept, segments); rows sum to
    1. Raises ValueError for spans outside the prompt.

    Source: Wu et al. 2024, appendix B.3.
    """
    values = float64(density)
    if values.ndim != 1:
        raise ValueError(f"density must have shape (prompt,), got {values.shape}")
    check_range("segments", segments)
    check_range("min_tokens", min_tokens)
    rows = []
    for sentence in sentences:
        start, stop = check_span(sentence, len(values), "a sentence", f"prompt of {len(values)} tokens")
        total = values[start:stop].sum()
        if stop - start < min_tokens or total <= 0:
            continue
        edges = np.linspace(0, stop - start, segments + 1)
        below = np.interp(edges, np.arange(stop - start + 1), np.concatenate([[0], np.cumsum(values[start:stop])]))
        rows.append(np.diff(below) / total)
    return np.array(rows, dtype=np.float64).reshape(-1, segments)


@checked
def position_profile(
    density: ArrayLike, sentences: Sequence[Sequence[int]], *, segments: int = 4, min_tokens: int = 4
) -> NDArray[np.float64]:
    """Where in a sentence the important prompt tokens are, averaged over the sentences of one prompt.

    `density` is (prompt,); `sentences` are (first, past-last) token pairs, each divided into `segments` equal segments.
    Sentences shorter than `min_tokens` or without density are left out. Returns (segments,) shares that sum to 1, NaN
    when no sentence counts. Raises ValueError for spans outside the prompt or a number below 1.

    Source: Wu et al. 2024, appendix B.3, Fig. 6.

    Example:
        >>> position_profile([3, 1, 1, 1, 1, 1, 1, 3], [(0, 8)]).round(3).tolist()
        [0.333, 0.167, 0.167, 0.333]
    """
    rows = sentence_profiles(density, sentences, segments=segments, min_tokens=min_tokens)
    return rows.mean(axis=0) if len(rows) else np.full(segments, np.nan)
