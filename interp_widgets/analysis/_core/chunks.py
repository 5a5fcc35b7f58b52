"""Loops over chunks sized by work and free memory; a chunk is halved when memory runs out nevertheless."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch

from interp_widgets.analysis._core.cost import flops_per_token, row_bytes
from interp_widgets.analysis._core.result import Scalar
from interp_widgets.analysis._core.run import Check, Progress, partial_is_due
from interp_widgets.arguments import message_of
from interp_widgets.models import Model
from interp_widgets.models.devices import device_kind
from interp_widgets.models.memory import is_out_of_memory
from interp_widgets.models.stopping import stopping

BUDGET_SHARE = 0.6
"""Share of the free memory that a chunk may plan to use."""

_CHUNK_FLOPS = {"cpu": 6e9, "accelerator": 3e13}
"""Work per chunk: a few hundred milliseconds, so that a cancel takes effect soon."""
_CHUNK_TOKENS = {"cpu": 1024, "accelerator": 4096}
"""Fewest tokens that keep matrix products efficient."""
_DELIVERIES = 4
"""Partial results before the end of a run."""
_PART_TOKENS = 256
"""Fewest tokens of a chunk that is kept small so that no partial result is left out."""


@dataclass
class ChunkLog:
    """Record of a loop, for the provenance of a result."""

    largest: int = 0
    """Items in the largest chunk that succeeded."""
    halvings: int = 0
    """Number of times that memory ran out and the chunk was halved."""
    limit: int | None = field(default=None, repr=False)
    """Most items per chunk since memory ran out."""

    def facts(self) -> dict[str, int]:
        """The entries for a result's provenance."""
        return {"largest_chunk": self.largest, "chunk_halvings": self.halvings}


def chunk_size(bytes_per_item: float, free: int, *, most: int, batch_size: int | None = None) -> int:
    """Items per chunk: ``batch_size`` if given, else at most ``most`` and as many as fit the memory budget; at least 1.

    >>> chunk_size(1_000_000, 100_000_000, most=32)
    32
    >>> chunk_size(10_000_000, 100_000_000, most=32)
    6
    """
    if batch_size is not None:
        return batch_size
    return max(1, min(most, int(BUDGET_SHARE * free / max(bytes_per_item, 1.0))))


def run_chunks(
    total: int,
    size: int | Callable[[int], int],
    work: Callable[[int, int], None],
    *,
    what: str = "item",
    log: ChunkLog | None = None,
    check: Check = None,
    after: Callable[[int], None] | None = None,
) -> ChunkLog:
    """Call ``work(start, stop)`` for consecutive chunks of 0..total.

    Args:
        total: number of items.
        size: items per chunk, or a function from a chunk's start to it.
        work: does one chunk; may be called again with a smaller stop when it ran out of memory.
        what: one item in words, for the error.
        log: carries the limit over from an earlier loop.
        check: called before every chunk and layer; raises to cancel.
        after: called with the number of items done after every chunk.

    Raises:
        MemoryError: one item alone does not fit.
    """
    log = ChunkLog() if log is None else log
    start = 0
    while start < total:
        if check is not None:
            check()
        count = min(total - start, max(1, size if isinstance(size, int) else size(start)))
        count = count if log.limit is None else min(count, log.limit)
        with stopping(check):
            failure = _attempt(work, start, start + count)
        if failure is not None:
            if count == 1:
                raise MemoryError(
                    f"one {what} does not fit in the free memory ({failure}): ask for less (a shorter text, "
                    "fewer words), free memory, or load the model with dtype=torch.bfloat16"
                )
            log.limit, log.halvings = count // 2, log.halvings + 1
            _release()
            continue
        start += count
        log.largest = max(log.largest, count)
        if after is not None:
            after(start)
    return log


def _attempt(work: Callable[[int, int], None], start: int, stop: int) -> str | None:
    """Do one chunk. Returns the start of the message when memory ran out; the error itself would keep tensors alive."""
    try:
        work(start, stop)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        return (message_of(error) or type(error).__name__).splitlines()[0][:120]
    return None


def _release() -> None:
    gc.collect()
    if torch.accelerator.is_available():
        torch.get_device_module().empty_cache()


@dataclass
class Runner:
    """Runs chunks of sequences: chooses sizes, reports progress, cancels, and delivers a few partial results."""

    model: Model
    length: int
    """Tokens of a whole sequence."""
    batch_size: int | None = None
    check: Check = None
    progress: Progress = None
    deliver: Callable[[], None] | None = None
    """Delivers a partial result; called a few times before the end."""
    fewest_tokens: int | None = None
    """Every chunk may have this many tokens; by default 1,024 on a CPU and 4,096 on an accelerator."""
    log: ChunkLog = field(default_factory=ChunkLog)
    done: int = 0
    total: int = 1

    @cached_property
    def origin(self) -> Mapping[str, Scalar]:
        """The model's provenance, read once for all results of a run: it takes a second for a large vocabulary."""
        return self.model.provenance()

    @property
    def early(self) -> bool:
        """Whether the regular partial results are still to come."""
        return self.done < self.total / (_DELIVERIES + 1)

    def size(self, tokens: int, kept: float = 0.0) -> int:
        """Rows of ``tokens`` tokens per chunk, where each row keeps ``kept`` bytes besides its passes."""
        model = self.model
        fewest = _CHUNK_TOKENS[device_kind(model.device)] if self.fewest_tokens is None else self.fewest_tokens
        most = max(fewest, _CHUNK_FLOPS[device_kind(model.device)] / flops_per_token(model)) / tokens
        return chunk_size(
            row_bytes(model, tokens, self.length) + kept,
            model.free_memory(),
            most=int(most),
            batch_size=self.batch_size,
        )

    def run(self, count: int, tokens: Callable[[int], int], work: Callable[[int, int], None]) -> None:
        """`run_chunks` over ``count`` rows; ``tokens`` gives the length of a chunk's first row."""
        before = self.done

        def after(finished: int) -> None:
            due = partial_is_due(self.done, before + finished, self.total, _DELIVERIES)
            self.done = before + finished
            if self.progress is not None:
                self.progress(self.done, self.total)
            if self.deliver is not None and due:
                self.deliver()

        part = math.ceil(self.total / (_DELIVERIES + 1))

        def size(start: int) -> int:
            length = tokens(start)
            most = self.size(length)
            return most if self.deliver is None else min(most, max(part, _PART_TOKENS // length))

        what = f"sequence of {self.length} tokens"
        run_chunks(count, size, work, what=what, log=self.log, check=self.check, after=after)

    def run_texts(
        self, texts: Sequence[Sequence[int]], work: Callable[[list[int], torch.Tensor], None], *, padded: bool = False
    ) -> None:
        """Call ``work`` with the numbers and the token ids (chunk, tokens) of texts, the longest first.

        The texts of a chunk have one length, unless they may be ``padded`` at their ends with their last token.
        """
        groups: dict[int, list[int]] = {}
        for number in sorted(range(len(texts)), key=lambda number: -len(texts[number])):
            groups.setdefault(0 if padded else len(texts[number]), []).append(number)
        for group in groups.values():

            def tokens(start: int, group: list[int] = group) -> int:
                return len(texts[group[start]])

            def chunk(start: int, stop: int, group: list[int] = group) -> None:
                chosen, width = group[start:stop], len(texts[group[start]])
                rows = [[*texts[i], *[texts[i][-1]] * (width - len(texts[i]))] for i in chosen]
                work(chosen, torch.tensor(rows, device=self.model.device))

            self.run(len(group), tokens, chunk)
