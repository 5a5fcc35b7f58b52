"""Counts of each token in the training text of the shipped models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from interp_widgets.data.files import read_arrays

DEMO_COUNTS = Path(__file__).resolve().parents[1] / "assets" / "demo" / "token_counts.npz"


def demo_token_counts(name: str | None) -> NDArray[np.integer[Any]] | None:
    """(d_vocab,) occurrences of each token in the training text of ``demo-base`` or ``demo-tuned``; None for others.

    >>> counts = demo_token_counts("demo-base")
    >>> len(counts), int((counts == 0).sum()) > 100, demo_token_counts("gpt2")
    (4096, True, None)
    """
    return read_arrays(DEMO_COUNTS, "token counts", names=("demo-base", "demo-tuned")).get(name or "")
