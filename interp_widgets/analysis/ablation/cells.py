"""The one loop of ablation maps and causal traces: many cells, each a run continued with patches of its own."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from interp_widgets.analysis._core.chunks import Runner
from interp_widgets.models.engine import Trace, patched
from interp_widgets.models.patching import Patch


@torch.no_grad()
def run_cells(
    values: Tensor,
    trace: Trace,
    runner: Runner,
    patches: Callable[[Tensor], list[Patch]],
    first: Callable[[int], int],
    read: Callable[[Tensor, Tensor], Tensor],
    *,
    sequence: Callable[[Tensor], Tensor] | None = None,
) -> None:
    """Fill ``values`` chunk by chunk; its cells are numbered row by row.

    Args:
        trace: the run, or several, that the cells continue.
        runner: sizes the chunks, reports progress and delivers partial results.
        patches: those of cells with these numbers (n,), in which the cells are counted 0..n - 1.
        first: of a cell, the first position that is patched, as fed; cells of near numbers should have near ones.
        read: from hidden states (n, width) of the last position and the cells' numbers (n,) to their values (n,).
        sequence: from the cells' numbers to the trace's sequence that each continues; by default all the first.
    """

    def work(start: int, stop: int) -> None:
        cells = torch.arange(start, stop)
        which = None if sequence is None else sequence(cells)
        hidden = patched(runner.model, trace, patches(cells), len(cells), sequence=which)
        indices = slice(start, stop) if values.ndim == 1 else torch.unravel_index(cells, values.shape)
        values[indices] = read(hidden, cells)

    runner.run(values.numel(), lambda start: trace.computed(first(start)), work)
