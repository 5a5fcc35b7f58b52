"""Maps of activation patching against TransformerLens's loops, on one model of six layers, in turns.

    python benchmarks/patching.py            # 24 tokens, three rounds
    python benchmarks/patching.py 48 5       # tokens, rounds

Both run in one process with one thread and take turns, so that what else the machine does meets both alike. Printed are
the medians of processor seconds, their ratio, and the largest difference of the numbers. TransformerLens runs a whole
pass for every cell; the maps here run cells in batches, from the patched layer and position on.
"""

from __future__ import annotations

import contextlib
import io
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from transformer_lens import patching

import interp_widgets as iw
from interp_widgets.analysis.patching import PatchSite

TARGET, FOIL = 40, 41
LOOPS: dict[PatchSite, Any] = {
    "resid_pre": patching.get_act_patch_resid_pre,
    "attn": patching.get_act_patch_attn_out,
    "mlp": patching.get_act_patch_mlp_out,
    "head": patching.get_act_patch_attn_head_out_by_pos,
    "head_q": patching.get_act_patch_attn_head_q_by_pos,
    "head_v": patching.get_act_patch_attn_head_v_by_pos,
    "pattern": patching.get_act_patch_attn_head_pattern_all_pos,
}


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Processor seconds of a call, and what it returns."""
    start = time.process_time()
    with contextlib.redirect_stderr(io.StringIO()):  # a progress bar per loop
        result = work()
    return time.process_time() - start, result


@torch.no_grad()
def main() -> None:
    tokens, rounds = map(int, sys.argv[1:3]) if len(sys.argv) > 2 else (24, 3)
    torch.set_num_threads(1)
    model = iw.load_model("demo-base", backend="hooked", device="cpu")
    theirs = model.tl_model
    ids = torch.randint(50, 4000, (tokens,), generator=torch.Generator().manual_seed(7)).tolist()
    other = [*ids[:2], 55, *ids[3:]]  # an early word, so that nearly every cell can change something
    clean, corrupted = torch.tensor([ids]), torch.tensor([other])
    logits, cache = theirs.run_with_cache(clean)
    high, low = (float(x[0, -1, TARGET] - x[0, -1, FOIL]) for x in (logits, theirs(corrupted)))

    def metric(patched: torch.Tensor) -> torch.Tensor:
        return (patched[0, -1, TARGET] - patched[0, -1, FOIL] - low) / (high - low)

    every: Any = tuple(LOOPS)
    iw.activation_patching(model, ids, other, TARGET, foil=FOIL, sites=every)  # compares the routes through the model
    print(f"{model.n_layers} layers, {model.n_heads} heads, {tokens} tokens, medians of {rounds} rounds")
    for site, loop in LOOPS.items():
        own, loops, apart = list[float](), list[float](), 0.0
        for _ in range(rounds):
            ours_of_site = partial(iw.activation_patching, model, ids, other, TARGET, foil=FOIL, sites=site)
            seconds, found = timed(ours_of_site)
            own.append(seconds)
            seconds, table = timed(partial(loop, theirs, corrupted, cache, metric))
            loops.append(seconds)
            wanted = table.numpy()
            wanted = wanted.transpose(0, 2, 1) if wanted.ndim == 3 else wanted
            apart = max(apart, float(np.abs(found.recovered[site] - wanted).max()))
        ours, others = statistics.median(own), statistics.median(loops)
        cells = found.recovered[site].size
        print(
            f"{site:10} {cells:5} cells  {ours:7.2f} s  {others:7.2f} s  {others / ours:5.1f} x  {apart:.0e}",
            flush=True,
        )


if __name__ == "__main__":
    main()
