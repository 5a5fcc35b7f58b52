"""The module ablation map against one whole pass per cell: time, memory and error, on random models.

    python benchmarks/ablation.py                             # both models, 32 and 64 positions (half an hour)
    python benchmarks/ablation.py --threads 1 --cpu-time      # on a machine that does other things too
    python benchmarks/ablation.py --quick                     # one small size, seconds

All four kinds at every layer and position, zero ablation, the logit of one token, in float32 without gradients. Rivals
run interleaved in one process on the same HookedTransformer and ids; a cell is the median of their ratios:

- *loop*: ``run_with_hooks`` per cell, a whole pass with one hook (two for ``both``) that removes the module.
- *patching*: ``transformer_lens.patching.generic_activation_patch`` with its ``layer_pos_patch_setter``, once per kind,
  on a cache in which the outputs are zero and the streams those without the module.

What would take minutes is run on cells spread evenly and scaled up: marked ``~``.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import saliency
import torch
from saliency import Outcome, Timing, machine, measure, spread, table
from torch import Tensor

warnings.simplefilter("ignore")

KINDS = ("attn", "mlp", "both", "attn_to_mlp")
TARGET = 77
PATIENCE = 20.0
"""Seconds after which a rival is run on a sample only."""


@dataclass
class Problem:
    """One model and one text."""

    name: str
    tl_model: Any
    model: Any
    ids: list[int]

    @property
    def hf(self) -> Any:
        """Whose device `saliency.measure` looks at."""
        return self.model

    @property
    def shape(self) -> tuple[int, int, int]:
        """Kinds, layers, positions."""
        return len(KINDS), self.model.n_layers, len(self.ids)

    @property
    def cells(self) -> int:
        return int(np.prod(self.shape))

    def tokens(self) -> Tensor:
        return torch.tensor([self.ids], device=self.model.device)


def build(name: str, device: str) -> tuple[Any, Any]:
    """A random HookedTransformer of the GPT-2-small shape, or ``mini`` with 6 layers of width 256."""
    from transformer_lens import HookedTransformer, HookedTransformerConfig

    from interp_widgets.models import load_model

    shape = {"n_layers": 6, "d_model": 256, "n_heads": 4} if name == "mini" else {
        "n_layers": 12, "d_model": 768, "n_heads": 12
    }  # fmt: skip
    cfg = HookedTransformerConfig(
        **shape, d_head=64, d_mlp=4 * shape["d_model"], n_ctx=1024, d_vocab=50257, act_fn="gelu_new", seed=0,
        init_weights=True, initializer_range=0.06, device=device,
    )  # fmt: skip
    tl_model = HookedTransformer(cfg, move_to_device=False).to(device).eval()
    return tl_model, load_model(tl_model)


# ---- rivals


@torch.no_grad()
def loop(p: Problem, sample: int) -> Outcome:
    """One whole pass per cell."""
    chosen, ids = spread(p.cells, sample), p.tokens()
    start = saliency.clock()
    before = float(p.tl_model(ids)[0, -1, TARGET])
    once = saliency.clock() - start
    p.tl_model.set_use_hook_mlp_in(True)
    effect = np.full(p.cells, np.nan)
    try:
        for index in chosen:
            logits = p.tl_model.run_with_hooks(ids, fwd_hooks=hooks_of(p, *np.unravel_index(index, p.shape)))
            effect[index] = before - float(logits[0, -1, TARGET])
    finally:
        p.tl_model.set_use_hook_mlp_in(False)
    return effect.reshape(p.shape), p.cells / len(chosen), once


def hooks_of(p: Problem, kind: int, layer: int, position: int) -> list[tuple[str, Callable[..., Tensor]]]:
    """What a user would write."""
    block, held = f"blocks.{layer}.", []

    def remove(value: Tensor, hook: Any) -> Tensor:
        value[:, position] = 0
        return value

    def hold(value: Tensor, hook: Any) -> Tensor:
        held.append(value)
        return value

    def without_attention(value: Tensor, hook: Any) -> Tensor:
        value[:, position] = held[0][:, position]
        return value

    match KINDS[kind]:
        case "attn":
            return [(block + "hook_attn_out", remove)]
        case "mlp":
            return [(block + "hook_mlp_out", remove)]
        case "both":
            return [(block + "hook_attn_out", remove), (block + "hook_mlp_out", remove)]
    return [(block + "hook_resid_pre", hold), (block + "hook_mlp_in", without_attention)]


@torch.no_grad()
def patching(p: Problem, sample: int) -> Outcome:
    """TransformerLens' own loop."""
    from transformer_lens.patching import generic_activation_patch, layer_pos_patch_setter

    ids, (kinds, layers, positions) = p.tokens(), p.shape
    start = saliency.clock()
    logits, own = p.tl_model.run_with_cache(ids, names_filter=lambda name: name.endswith("hook_resid_pre"))
    before = float(logits[0, -1, TARGET])
    cache = {}
    for layer in range(layers):
        stream = own[f"blocks.{layer}.hook_resid_pre"]
        for name in ("hook_attn_out", "hook_mlp_out"):
            cache[f"blocks.{layer}.{name}"] = torch.zeros_like(stream)
        for name in ("hook_resid_post", "hook_mlp_in"):
            cache[f"blocks.{layer}.{name}"] = stream
    once = saliency.clock() - start
    per_kind = spread(layers * positions, max(1, sample // kinds))
    index = pd.DataFrame([divmod(i, positions) for i in per_kind], columns=["layer", "pos"])
    effect = np.full((kinds, layers * positions), np.nan)
    p.tl_model.set_use_hook_mlp_in(True)
    try:
        for row, name in enumerate(("attn_out", "mlp_out", "resid_post", "mlp_in")):
            with contextlib.redirect_stderr(io.StringIO()):  # its progress bar
                found = generic_activation_patch(
                    p.tl_model, ids, cache, lambda out: out[0, -1, TARGET], layer_pos_patch_setter, name, index_df=index
                )
            effect[row, per_kind] = before - found.cpu().numpy()
    finally:
        p.tl_model.set_use_hook_mlp_in(False)
    return effect.reshape(p.shape), layers * positions / len(per_kind), once


def ours(p: Problem, sample: int) -> Outcome:
    from interp_widgets.analysis.ablation import ablate_modules

    return ablate_modules(p.model, p.ids, TARGET, metric="logit").effect, 1.0, 0.0


RIVALS = {"loop": loop, "patching": patching, "this package": ours}


# ---- measuring


def compare(p: Problem, repeats: int) -> dict[str, list[Timing]]:
    samples = {"this package": p.cells}
    for name in ("loop", "patching"):
        RIVALS[name](p, 4)  # what the first call alone takes
        start = saliency.clock()
        RIVALS[name](p, 8)
        fits = int(PATIENCE / max((saliency.clock() - start) / 8, 1e-9)) // 4 * 4
        samples[name] = p.cells if fits >= p.cells else max(8, fits)
    ours(p, 0)  # the first run compares the equations with the model's own
    found: dict[str, list[Timing]] = {name: [] for name in RIVALS}
    for _ in range(repeats):
        for name, rival in RIVALS.items():
            found[name].append(measure(rival, p, samples[name]))  # type: ignore[arg-type]
    return found


def row(p: Problem, found: dict[str, list[Timing]]) -> list[str]:
    """Ratios (rival's time over ours), our seconds, peak memories, largest difference to each rival over the largest
    logit, whose difference an effect is."""
    own = found["this package"]
    with torch.no_grad():
        largest = float(p.tl_model(p.tokens())[0, -1].abs().max())
    cells = [p.name, str(len(p.ids)), f"{p.cells:,}"]
    errors = []
    for name in ("loop", "patching"):
        ratio = statistics.median(a.seconds / b.seconds for a, b in zip(found[name], own, strict=True))
        cells.append(("~" if found[name][0].sampled else "") + f"{ratio:.1f}")
        theirs, ours = found[name][-1].matrix, own[-1].matrix
        known = np.isfinite(theirs)
        errors.append(f"{np.abs(ours - theirs)[known].max() / largest:.0e}")
    cells.append(f"{statistics.median(t.seconds for t in own):.2f}")
    cells.append(" / ".join(f"{max(t.megabytes for t in timings):.0f}" for timings in found.values()))
    return [*cells, " / ".join(errors)]


def run(names: Sequence[str], sizes: Sequence[int], repeats: int, device: str) -> None:
    print(machine(device), flush=True)
    header = ["model", "positions", "cells", "× loop", "× patching", "seconds",
              "peak MB: loop / patching / ours", "difference to loop / patching"]  # fmt: skip
    rows = []
    for name in names:
        tl_model, model = build(name, device)
        for size in sizes:
            ids = torch.randint(0, 50257, (size,), generator=torch.Generator().manual_seed(7)).tolist()
            p = Problem(name, tl_model, model, ids)
            rows.append(row(p, compare(p, repeats)))
            print(*rows[-1], sep=" | ", flush=True)
    print("\n" + table(header, rows), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one small size, to see that it runs")
    parser.add_argument("--models", nargs="+", default=["mini", "small"], choices=["mini", "small"])
    parser.add_argument("--sizes", nargs="+", type=int, default=[32, 64], help="positions")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--threads", type=int, default=None, help="of torch; default: all cores")
    parser.add_argument(
        "--cpu-time", action="store_true", help="processor time instead of wall time, on a busy machine"
    )
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    if options.cpu_time:
        saliency.clock = time.process_time
    if options.quick:
        return run(["mini"], [8], 1, options.device)
    run(options.models, options.sizes, options.repeats, options.device)


if __name__ == "__main__":
    main()
