"""Random tokens: sequences without meaning, of a model's ordinary tokens."""

from __future__ import annotations

from interp_widgets.models import Model


def ordinary_tokens(model: Model) -> list[int]:
    """The ids of a vocabulary that are tokens of its tokenizer and not special."""
    known = model.d_vocab if model.tokenizer is None else min(model.d_vocab, len(model.tokenizer))
    special = model.is_special(range(known))
    return [token for token in range(known) if not special[token]]
