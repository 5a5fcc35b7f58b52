"""Hidden states of many short prompts against loops over the prompts, on a random model.

    python benchmarks/hidden_states.py --threads 1              # 2,000 prompts, 6 layers of width 256
    python benchmarks/hidden_states.py --prompts 10000 --threads 1
    python benchmarks/hidden_states.py --quick                  # 200 prompts, seconds

The state entering one layer is read at the last token of each prompt of 6 to 20 tokens (13 on average). Rivals:

- *run_with_cache*: a loop over the prompts that keeps every hook, the first thing a user writes.
- *residuals*: the same loop, keeping residual streams only.
- *no batches*: ours, one prompt at a time: what is left when only logits and late layers are saved.
- *template*: prompts that all begin with the same 12 tokens more; *ours* computes these once, *whole* with every
  prompt.

All run interleaved in one process; a ratio is the median of the rounds' ratios.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import saliency
import torch
from saliency import hf_model, machine, table

from interp_widgets.analysis.hidden_states import last_states


def prompts_of(count: int, vocab: int, first: int = 0) -> list[list[int]]:
    """Random ids, 6 to 20 tokens behind ``first`` ones that all share."""
    rng = np.random.default_rng(0)
    start = rng.integers(0, vocab, first).tolist()
    return [[*start, *rng.integers(0, vocab, n).tolist()] for n in rng.integers(6, 21, count)]


@torch.no_grad()
def loop(model: Any, prompts: list[list[int]], layer: int, only: bool) -> np.ndarray[Any, Any]:
    end = layer == model.n_layers
    name = f"blocks.{layer - end}.hook_resid_{'post' if end else 'pre'}"
    keep = {"names_filter": lambda name: "hook_resid" in name} if only else {}
    found = [model.tl_model.run_with_cache(torch.tensor([ids]), **keep)[1][name][0, -1] for ids in prompts]
    return torch.stack(found)[:, None].numpy()


def timed(work: Callable[[], np.ndarray[Any, Any]]) -> tuple[float, np.ndarray[Any, Any]]:
    start = saliency.clock()
    found = work()
    return saliency.clock() - start, found


def compare(model: Any, count: int, layer: int, repeats: int) -> list[list[str]]:
    prompts, longer = prompts_of(count, model.d_vocab), prompts_of(count, model.d_vocab, first=12)
    apart = list(range(count))  # every prompt its own group: nothing is shared
    ways: dict[str, Callable[[], np.ndarray[Any, Any]]] = {
        "ours": lambda: last_states(model, prompts, layer),
        "run_with_cache": lambda: loop(model, prompts, layer, False),
        "residuals": lambda: loop(model, prompts, layer, True),
        "no batches": lambda: last_states(model, prompts, layer, groups=apart, batch_size=1),
        "template, ours": lambda: last_states(model, longer, layer),
        "template, whole": lambda: last_states(model, longer, layer, groups=apart),
    }
    last_states(model, prompts[:20], layer)  # the first run compares the engine with the model's own
    found: dict[str, list[tuple[float, np.ndarray[Any, Any]]]] = {name: [] for name in ways}
    for _ in range(repeats):
        for name, work in ways.items():
            found[name].append(timed(work))
    rows = []
    for name, runs in found.items():
        ours = found["template, ours" if name.startswith("template") else "ours"]
        wanted = ours[0][1]
        ratio = statistics.median(run[0] / own[0] for run, own in zip(runs, ours, strict=True))
        off = float(np.abs(runs[0][1] - wanted).max() / np.abs(wanted).max())
        seconds = statistics.median(run[0] for run in runs)
        rows.append([f"{count:,}", str(layer), name, f"{seconds:.2f}", f"{ratio:.1f}", f"{off:.0e}"])
        print(*rows[-1], sep=" | ", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="200 prompts, to see that it runs")
    parser.add_argument("--prompts", type=int, default=2000)
    parser.add_argument("--layers", type=int, nargs="+", default=[4, 6], help="each read by itself")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=None, help="of torch; default: all cores")
    parser.add_argument("--cpu-time", action="store_true", help="processor time, on a busy machine")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    if options.cpu_time:
        saliency.clock = time.process_time
    from interp_widgets.models import load_model

    print(machine("cpu"), flush=True)
    model = load_model(hf_model("mini"))
    rows = []
    for layer in options.layers:
        rows += compare(
            model, 200 if options.quick else options.prompts, layer, 1 if options.quick else options.repeats
        )
    print("\n" + table(["prompts", "layer", "way", "seconds", "time over ours", "error"], rows))


if __name__ == "__main__":
    main()
