"""The loop shared by ablation maps and causal traces: each cell continues a traced run with its own patches."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from interp_widgets.analysis._core.chunks import Runner
from interp_widgets.analysis._core.cost import block_parameters
from interp_widgets.models import Model
from interp_widgets.models.engine import ExpectedRuns, Trace, patched
from interp_widgets.models.patching import Patch

MANY_CHUNKS = 4
"""A map of more chunks than these is estimated first."""
STRONGEST = 4
"""Groups of cells that run first where all are estimated; each may end in a partial result."""


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


def strongest_first(scores: Tensor, cells: int, *, group: int = 32, groups: int = STRONGEST) -> list[Tensor]:
    """Cell numbers in groups (n,): those with the largest scores (layers * cells,) first, then the rest by layer.

    Each group is in ascending order, so that neighbours share layers and positions. A group of several layers runs from
    the first of them on: in all groups that would take longer than what it tells.

    >>> numbers = strongest_first(torch.tensor([0.0, 3.0, 1.0, 2.0, 0.5, 0.2]), 3, group=2, groups=1)
    >>> [group.tolist() for group in numbers]
    [[1, 3], [0, 2], [4, 5]]
    """
    order = torch.argsort(scores.cpu(), descending=True, stable=True)
    strong, rest = order[: group * groups], order[group * groups :].sort().values
    by_layer = torch.split(rest, [count for count in torch.bincount(rest // cells).tolist() if count])
    return [*(part.sort().values for part in torch.split(strong, group)), *by_layer]


def fewest_tokens(model: Model) -> int | None:
    """Tokens of a chunk: 256 on a CPU, where more is no faster; with fewer, less is computed twice where positions
    differ, and a cancel takes effect sooner."""
    return 256 if model.device.type == "cpu" else None


# ---- cost


def tokens_recomputed(model: Model, n_tokens: int, layer: int, position: int, rows: int, runs: ExpectedRuns) -> float:
    """Positions times layers computed for one cell that changes ``rows`` rows of its own layer."""
    if not runs.native:
        depth = model.n_layers - layer if runs.from_layer else model.n_layers
        return float(depth * (n_tokens - position if runs.from_position else n_tokens))
    behind: int = model.n_layers - 1 - layer
    projections = model.n_layers * model.d_model * (model.n_heads + 2 * model.n_kv_heads) * model.d_head
    share = projections / block_parameters(model)
    # its own layer: the changed rows, whose queries, keys and values are known. Layers after it: all later positions,
    # but of the last layer only keys and values, and in the next layer only the projections of changed rows
    known = share * (1 - rows / n_tokens)
    return rows * (1 - share) + (n_tokens - position) * max(0.0, behind - 0.75 - known)


def first_positions(model: Model, n_tokens: int, positions: Sequence[int]) -> list[int]:
    """The first position that is computed for each cell: the first position of its chunk."""
    runner, begins = Runner(model, n_tokens, fewest_tokens=fewest_tokens(model)), list[int]()
    while len(begins) < len(positions):
        first = positions[len(begins)]
        begins += [first] * min(runner.size(n_tokens - first), len(positions) - len(begins))
    return begins
