"""Activation patching and path patching against the patching tools of TransformerLens 4, where both are defined.

Those of TransformerLens 3 are in `tests/analysis/test_patching.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from interp_widgets import activation_patching, path_patching
from interp_widgets.models.transformerlens import has_hooked_transformer
from tests.models.tiny import tiny_model

pytestmark = pytest.mark.skipif(has_hooked_transformer(), reason="the tools for bridges came with TransformerLens 4")
CLEAN, CORRUPTED, ANSWER, FOIL = [3, 17, 42, 8, 5, 30], [3, 17, 21, 8, 5, 30], 7, 9


def gap(logits: Tensor) -> Tensor:
    return logits[0, -1, ANSWER] - logits[0, -1, FOIL]


@torch.no_grad()
def both_runs(lens: Any) -> tuple[tuple[Any, ...], tuple[float, float]]:
    """The corrupted ids and the caches of both runs, as the tools take them, and the metric in each."""
    clean, corrupted = torch.tensor([CLEAN]), torch.tensor([CORRUPTED])
    (logits, cache), (other, changed) = lens.run_with_cache(clean), lens.run_with_cache(corrupted)
    return (lens, corrupted, cache, changed), (float(gap(logits)), float(gap(other)))


def test_the_maps_are_those_of_its_loops() -> None:
    from transformer_lens import patching

    loops = {
        "resid_pre": patching.get_act_patch_resid_pre, "attn": patching.get_act_patch_attn_out,
        "mlp": patching.get_act_patch_mlp_out, "head": patching.get_act_patch_attn_head_out_by_pos,
        "head_q": patching.get_act_patch_attn_head_q_by_pos, "head_k": patching.get_act_patch_attn_head_k_by_pos,
        "head_v": patching.get_act_patch_attn_head_v_by_pos,
        "pattern": patching.get_act_patch_attn_head_pattern_all_pos,
    }  # fmt: skip
    model = tiny_model("gpt2", "bridge", dtype=torch.float64)
    sites: Any = tuple(loops)
    found = activation_patching(model, CLEAN, CORRUPTED, ANSWER, foil=FOIL, sites=sites)
    (lens, corrupted, cache, _), (high, low) = both_runs(model.tl_model)
    for site, loop in loops.items():
        with torch.no_grad():
            wanted = loop(lens, corrupted, cache, lambda logits: (gap(logits) - low) / (high - low)).numpy()
        wanted = wanted.transpose(0, 2, 1) if wanted.ndim == 3 else wanted
        assert found.recovered[site] == pytest.approx(wanted, abs=1e-5), site
        assert np.ptp(wanted) > 1e-3


def test_paths_from_head_to_head_are_those_of_its_loop() -> None:
    """Its tool puts the clean output of a head into the corrupted run: ours with the two prompts exchanged."""
    from transformer_lens.patching import get_act_patch_direct_path_all_sources

    model = tiny_model("gpt2", "bridge", dtype=torch.float64)
    heads, options = range(model.n_heads), dict[str, Any](foil=FOIL, separate=True)
    senders = [(layer, head) for layer in range(model.n_layers - 1) for head in heads]
    runs, (high, low) = both_runs(model.tl_model)
    for part in "qkv":
        receivers = [(f"head_{part}", layer, head) for layer in range(1, model.n_layers) for head in heads]
        found = path_patching(model, CORRUPTED, CLEAN, senders, receivers, ANSWER, **options)
        assert found.paths is not None
        patched = get_act_patch_direct_path_all_sources(*runs, gap, part, verbose=False)  # type: ignore[arg-type]
        wanted = (low - patched[:-1, :, 1:].flatten(2).flatten(0, 1).numpy()) / (low - high)
        behind = np.array([[later > layer for _, later, _ in receivers] for layer, _ in senders])
        assert found.paths[behind] == pytest.approx(wanted[behind], abs=1e-5)
        assert np.ptp(wanted[behind]) > 1e-3
