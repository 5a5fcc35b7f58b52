"""The names of parts of a model, as results have them: ``head 3.1``, ``mlp 5``, ``head_q 4.2``."""

from __future__ import annotations

import re

_NAME = re.compile(r"(?:(head(?:_[qkv])?|attn|mlp) )?(\d{1,6})(?:\.(\d{1,6}))?")


def read_name(name: str) -> tuple[str | int, ...]:
    """A name as a tuple, ``3.1`` as that of a head; any other text as it is.

    >>> read_name("head_q 4.2"), read_name("mlp 3"), read_name("3.1"), read_name("logits")
    (('head_q', 4, 2), ('mlp', 3), ('head', 3, 1), ('logits',))
    """
    found = _NAME.fullmatch(name.strip())
    if found is None:
        return (name,)
    kind, layer, head = found.groups()
    return (kind or "head", int(layer), *([] if head is None else [int(head)]))
