"""Changes as long as those of an ablation, in random directions: what a map shows by chance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from interp_widgets.analysis._core.tensors import wide
from interp_widgets.models.engine import Trace
from interp_widgets.models.patching import Patch


def in_random_directions(clean: Trace, patch: Patch, seeds: Sequence[Sequence[int]]) -> Patch:
    """The patch with each cell's changes turned by a random rotation, the same for all of the cell's rows.

    The rows of a cell keep their lengths and the angles between them; a single row gets a random direction.

    Args:
        clean: the run that is patched.
        patch: rows of one site; those of a cell follow each other, as many in each cell.
        seeds: of the rotation, by cell number.
    """
    cells = list(dict.fromkeys(patch.cells.tolist()))
    index = (0, patch.positions) if patch.index is None else (0, patch.positions, patch.index)
    before = wide(clean.value(patch.site, patch.layer)[index])
    changes = (wide(patch.values) - before).reshape(len(cells), -1, before.shape[-1])
    changes = changes.cpu().double()
    width = changes.shape[2]
    # of a single row only the length counts, so that one random direction does
    turned, axes = (changes.norm(dim=-1, keepdim=True), 1) if changes.shape[1] == 1 else (changes, width)
    drawn = np.stack([np.random.default_rng(seeds[cell]).standard_normal((width, axes)) for cell in cells])
    directions, signs = torch.linalg.qr(torch.from_numpy(drawn))
    directions = directions * signs.diagonal(dim1=1, dim2=2).sign()[:, None]  # or they would not be uniform
    turned = (turned @ directions.transpose(1, 2)).reshape(before.shape)
    return replace(patch, values=before + turned.to(before))
