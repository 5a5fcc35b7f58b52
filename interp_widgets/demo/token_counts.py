"""How often each token occurs in the training batches of the demo models."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from interp_widgets.atomic import whole_file
from interp_widgets.data.token_counts import DEMO_COUNTS
from interp_widgets.demo.batches import Stage, batches_from
from interp_widgets.demo.pair import ASSETS, CONFIGS, MODELS


def token_counts(stage: Stage, tokenizer: Tokenizer, *, steps: int | None = None) -> NDArray[np.int64]:
    """(d_vocab,) occurrences of each token in the first `steps` batches of a training, all of them by default."""
    config = CONFIGS[stage]
    counts = np.zeros(tokenizer.get_vocab_size(), dtype=np.int64)
    batches = batches_from(stage, tokenizer, seed=config.seed, tokens_per_batch=config.tokens_per_batch)
    for batch in islice(batches, config.steps if steps is None else steps):
        counts += np.bincount(batch.tokens[batch.document >= 0], minlength=len(counts))
    return counts


def make_token_counts(path: Path = DEMO_COUNTS, *, steps: int | None = None) -> dict[str, int]:
    """Write the counts of both models, those of `tuned` including `base`'s; return the numbers of unread tokens."""
    tokenizer = Tokenizer.from_file(str(ASSETS / "base" / "tokenizer.json"))
    counts = {stage: token_counts(stage, tokenizer, steps=steps) for stage in MODELS}
    counts["tuned"] += counts["base"]
    with whole_file(path) as draft:
        np.savez_compressed(draft, allow_pickle=False, **{f"demo-{stage}": one for stage, one in counts.items()})
    return {f"unread by demo-{stage}": int((one == 0).sum()) for stage, one in counts.items()}
