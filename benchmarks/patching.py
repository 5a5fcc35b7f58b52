"""Activation and path patching against TransformerLens's loops, on one model of six layers, in turns.

    python benchmarks/patching.py            # 24 tokens, three rounds
    python benchmarks/patching.py 48 5       # tokens, rounds

With TransformerLens 4 on the path (`tests/models/run_tl4.sh install`) it runs on the bridge, with its tool for paths
from head to head. Both run in one process with one thread and take turns, so that what else the machine does meets
both alike. Printed are the medians of wall and processor seconds, their ratios, and the largest difference of the
numbers. TransformerLens runs a whole pass for every cell; ours run in batches, from the patched layer and position on.
"""

from __future__ import annotations

import contextlib
import io
import statistics
import sys
import time
from collections.abc import Callable
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


def timed(work: Callable[[], Any]) -> tuple[float, float, Any]:
    """Wall and processor seconds of a call, and what it returns."""
    wall, processor = time.perf_counter(), time.process_time()
    with contextlib.redirect_stderr(io.StringIO()):  # a progress bar per loop
        result = work()
    return time.perf_counter() - wall, time.process_time() - processor, result


@torch.no_grad()
def main() -> None:
    tokens, rounds = map(int, sys.argv[1:3]) if len(sys.argv) > 2 else (24, 3)
    torch.set_num_threads(1)
    model = iw.load_model("demo-base", device="cpu")
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
    works: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
        site: (
            lambda site=site: iw.activation_patching(model, ids, other, TARGET, foil=FOIL, sites=site).recovered[site],
            lambda loop=loop: _by_head(loop(theirs, corrupted, cache, metric).numpy()),
        )
        for site, loop in LOOPS.items()
    }  # fmt: skip
    if hasattr(patching, "get_act_patch_direct_path_all_sources"):
        heads, last = range(model.n_heads), model.n_layers - 1
        senders = [(layer, head) for layer in range(last) for head in heads]
        queries = [("head_q", layer, head) for layer in range(1, last + 1) for head in heads]
        behind = np.array([[later > layer for _, later, _ in queries] for layer, _ in senders])
        _, changed = theirs.run_with_cache(corrupted)

        def paths() -> Any:
            found = iw.path_patching(model, other, ids, senders, queries, TARGET, foil=FOIL, separate=True)
            return np.where(behind, found.paths, np.nan)

        def their_paths() -> Any:
            found = patching.get_act_patch_direct_path_all_sources(
                theirs, corrupted, cache, changed, metric, verbose=False
            )
            return found[:-1, :, 1:].flatten(2).flatten(0, 1).numpy()

        works["head to query"] = paths, their_paths
    print("| map | cells | wall (s) | TransformerLens | × | processor (s) | TransformerLens | × | error |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name, (ours, loop) in works.items():
        own, loops, apart, cells = list[tuple[float, float]](), list[tuple[float, float]](), 0.0, 0
        for _ in range(rounds):
            *seconds, found = timed(ours)
            own.append(tuple(seconds))
            *seconds, wanted = timed(loop)
            loops.append(tuple(seconds))
            apart, cells = max(apart, float(np.nanmax(np.abs(found - wanted)))), int(np.isfinite(found).sum())
        columns = list[str]()
        for mine, theirs_took in zip(zip(*own, strict=True), zip(*loops, strict=True), strict=True):
            ratio = statistics.median(theirs_took) / statistics.median(mine)
            columns += [f"{statistics.median(mine):.2f}", f"{statistics.median(theirs_took):.2f}", f"{ratio:.1f}"]
        print(f"| {name} | {cells} | {' | '.join(columns)} | {apart:.0e} |", flush=True)


def _by_head(table: np.ndarray) -> np.ndarray:
    """(layers, heads, positions) of TransformerLens's (layers, positions, heads)."""
    return table.transpose(0, 2, 1) if table.ndim == 3 else table


if __name__ == "__main__":
    main()
