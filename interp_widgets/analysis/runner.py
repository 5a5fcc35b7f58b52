"""A loop over many sequences on one model: chunk sizes by work and memory, progress, cancel, partial results."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from interp_widgets.analysis.chunks import ChunkLog, chunk_size, run_chunks
from interp_widgets.analysis.cost import flops_per_token, row_bytes
from interp_widgets.models import Model
from interp_widgets.models.devices import device_kind

_CHUNK_FLOPS = {"cpu": 6e9, "accelerator": 3e13}
"""Work per chunk: a few hundred milliseconds, so that a cancel is heard soon."""
_CHUNK_TOKENS = {"cpu": 1024, "accelerator": 4096}
"""Fewest tokens that keep matrix products efficient."""


@dataclass
class Runner:
    """Runs chunks of sequences: sizes, progress, cancel, and partial results a few times."""

    model: Model
    length: int
    """Tokens of a whole sequence."""
    batch_size: int | None = None
    check: Callable[[], None] | None = None
    progress: Callable[[int, int], None] | None = None
    deliver: Callable[[], None] | None = None
    """Hands out what is done so far; called at most `deliveries` times before the end."""
    deliveries: int = 4
    fewest_tokens: int | None = None
    """Tokens per chunk that are never too many; by default 1,024 on a CPU and 4,096 on an accelerator."""
    log: ChunkLog = field(default_factory=ChunkLog)
    done: int = 0
    total: int = 1

    def size(self, tokens: int) -> int:
        """Rows of ``tokens`` tokens per chunk."""
        model = self.model
        kind = device_kind(model.device)
        fewest = _CHUNK_TOKENS[kind] if self.fewest_tokens is None else self.fewest_tokens
        most = max(fewest, _CHUNK_FLOPS[kind] / flops_per_token(model)) / tokens
        return chunk_size(
            row_bytes(model, tokens, self.length), model.free_memory(), most=int(most), batch_size=self.batch_size
        )

    def run(self, count: int, tokens: Callable[[int], int], work: Callable[[int, int], None]) -> None:
        """`run_chunks` over ``count`` rows; ``tokens`` gives the length of the row that a chunk starts with."""
        before = self.done
        every = max(1, math.ceil(self.total / (self.deliveries + 1)))

        def after(finished: int) -> None:
            crossed = (before + finished) // every > self.done // every
            self.done = before + finished
            if self.progress is not None:
                self.progress(self.done, self.total)
            if self.deliver is not None and crossed and self.done < self.total:
                self.deliver()

        what = f"sequence of {self.length} tokens"
        run_chunks(count, lambda start: self.size(tokens(start)), work,
                   what=what, log=self.log, check=self.check, after=after)  # fmt: skip
