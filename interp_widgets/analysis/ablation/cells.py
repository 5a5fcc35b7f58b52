"""The loop shared by ablation maps and causal traces: each cell continues a traced run with its own patches."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from interp_widgets.analysis._core.chunks import Runner
from interp_widgets.models.engine import Trace, patched
from interp_widgets.models.patching import Patch


@torch.no_grad()
def run_cells(
    count: int,
    trace: Trace,
    runner: Runner,
    patches: Callable[[Tensor], list[Patch]],
    first: Callable[[int], int],
    write: Callable[[Tensor, Tensor], None],
    *,
    sequence: Callable[[Tensor], Tensor] | None = None,
) -> None:
    """Run ``count`` cells chunk by chunk.

    Args:
        trace: the run that the cells continue; it may hold several sequences.
        runner: sizes the chunks, reports progress and delivers partial results.
        patches: maps cell numbers (n,) to patches, in which these cells are rows 0..n - 1.
        first: maps a cell to its first patched position, counted with the BOS; neighbouring cells should have similar
            ones.
        write: receives the last position's hidden states (n, width) and the cell numbers (n,).
        sequence: maps cell numbers to the sequence of the trace that each continues; by default the first.
    """

    def work(start: int, stop: int) -> None:
        cells = torch.arange(start, stop)
        sequences = None if sequence is None else sequence(cells)
        hidden = patched(runner.model, trace, patches(cells), len(cells), sequence=sequences)
        write(hidden, cells)

    runner.run(count, lambda start: trace.computed(first(start)), work)
