"""The replacement value of a removed part: zero, a mean over reference texts, or another prompt's value."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from interp_widgets.analysis._core.checks import check_choice
from interp_widgets.analysis._core.prompts import Prompt, read_prompt
from interp_widgets.analysis._core.tensors import wide
from interp_widgets.models.chat import PromptInput
from interp_widgets.models.engine import Trace, trace
from interp_widgets.models.patching import Patch, Site

Replacement = Literal["zero", "mean", "resample"]
"""The kind of replacement value."""

SiteOfLayer = tuple[Site, int]


@dataclass
class ReplacementValues:
    """The values that replace those of a clean trace."""

    kind: Replacement
    clean: Trace
    corrupted: Trace | None = None
    """The other prompt's trace, for ``resample``."""
    means: dict[SiteOfLayer, Tensor] = field(default_factory=dict)
    """For ``mean``, (tokens, ..., width) by part and layer."""

    def value(self, site: Site, layer: int) -> Tensor:
        """(tokens, [heads or neurons,] width) the replacement values of a site at every position."""
        if self.kind == "zero":
            clean = self.clean.value(site, layer)[0]
            return clean.new_zeros(()).expand(clean.shape)
        if self.corrupted is not None:
            return self.corrupted.value(site, layer)[0]
        return self.means["attn" if site == "attn_to_mlp" else site, layer]

    def patch(self, site: Site, layer: int, cells: Tensor, positions: Tensor, index: Tensor | None = None) -> Patch:
        """The patch of cells (n,) at positions (n,), each of one head or neuron where an index (n,) is given."""
        value = self.value(site, layer)
        rows = value[positions] if index is None else value[positions, index]
        return Patch(site, layer, rows, positions, cells, index)


def check_replacement(replacement: str, reference: Sequence[PromptInput] | None, corrupted: PromptInput | None) -> None:
    """ValueError for an unknown replacement, or a reference or corrupted prompt that is missing or superfluous."""
    check_choice("replacement", replacement, Replacement)
    for name, value, user, advice in (
        ("reference", reference, "mean", "a list of texts"),
        ("corrupted", corrupted, "resample", "a prompt with as many tokens"),
    ):
        if replacement == user and value is None:
            raise ValueError(f"replacement={user!r} needs {name}=: give {advice}")
        if replacement != user and value is not None:
            raise ValueError(
                f"{name} is only used by replacement={user!r}, got replacement={replacement!r}: leave {name} out"
            )


def replacement_values(
    prompt: Prompt,
    clean: Trace,
    replacement: Replacement,
    sites: Sequence[SiteOfLayer],
    *,
    reference: Sequence[PromptInput] | None = None,
    pooled: bool = True,
    corrupted: PromptInput | None = None,
    prepend_bos: bool | None = None,
    check: Callable[[], None] | None = None,
) -> ReplacementValues:
    """Check and prepare a replacement.

    Args:
        prompt, clean: the prompt and its trace.
        sites: (site, layer) of the values that will be replaced.
        reference: texts (or ids) for ``mean``.
        pooled: one mean over all positions; otherwise one per position, for texts as long as the prompt.
        corrupted: the prompt for ``resample``, of the same number of tokens.
        check: called between texts; raises to cancel.

    A beginning-of-sequence token attends only to itself, so that its values are the same in every text and are kept.

    Raises:
        ValueError: an unknown replacement; reference or corrupted missing or superfluous; another number of tokens.
    """
    check_replacement(replacement, reference, corrupted)
    neurons = tuple(layer for site, layer in sites if site == "neuron")
    if corrupted is not None:
        other = read_prompt(prompt.model, corrupted, prepend_bos=prepend_bos, what="corrupted prompt")
        same_length(prompt, other, "the corrupted prompt")
        return ReplacementValues("resample", clean, trace(prompt.model, other.embeddings(), neurons=neurons))
    if reference is not None:
        texts = _references(prompt, reference, pooled, prepend_bos)
        return ReplacementValues("mean", clean, means=_means(prompt, clean, texts, pooled, sites, check))
    return ReplacementValues("zero", clean)


def _references(
    prompt: Prompt, reference: Sequence[PromptInput], pooled: bool, prepend_bos: bool | None
) -> list[Prompt]:
    texts = [read_prompt(prompt.model, text, prepend_bos=prepend_bos, what="reference text") for text in reference]
    if not texts:
        raise ValueError("reference is empty: give at least one text")
    if not pooled:
        for text in texts:
            same_length(prompt, text, "a reference text (pooled=False)")
    return texts


def same_length(prompt: Prompt, other: Prompt, what: str) -> None:
    """ValueError that shows both token lists unless two prompts have as many tokens."""
    if len(other.ids) != len(prompt.ids) or other.offset != prompt.offset:
        shown = [" ".join(repr(token) for token in each.tokens()) for each in (prompt, other)]
        raise ValueError(
            f"{what} must have as many tokens as the prompt, {prompt.n_shown}, got {other.n_shown}: "
            f"the prompt's are {shown[0]}, the other's {shown[1]}"
        )


def _means(
    prompt: Prompt,
    clean: Trace,
    texts: Sequence[Prompt],
    pooled: bool,
    sites: Sequence[SiteOfLayer],
    check: Callable[[], None] | None,
) -> dict[SiteOfLayer, Tensor]:
    # a dict keeps the order and drops repeats
    distinct: dict[SiteOfLayer, None] = {
        ("attn" if site == "attn_to_mlp" else site, layer): None for site, layer in sites
    }
    neurons = tuple(layer for site, layer in distinct if site == "neuron")
    totals: dict[SiteOfLayer, Tensor] = {}
    count = 0
    for text in texts:
        if check is not None:
            check()
        reference = trace(prompt.model, text.embeddings(), neurons=neurons)
        count += text.n_shown if pooled else 1
        for site, layer in distinct:
            rows = wide(reference.value(site, layer)[0, text.offset :])
            rows = rows.sum(0, keepdim=True) if pooled else rows
            totals[site, layer] = totals.get((site, layer), 0) + rows
    means: dict[SiteOfLayer, Tensor] = {}
    for (site, layer), total in totals.items():
        clean_rows = clean.value(site, layer)[0]
        mean = (total / count).to(clean_rows.dtype).expand(prompt.n_shown, *clean_rows.shape[1:])
        means[site, layer] = torch.cat([clean_rows[: prompt.offset], mean])
    return means
