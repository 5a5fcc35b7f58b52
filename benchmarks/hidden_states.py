"""Hidden states of many short prompts against loops over the prompts, on the demo model and on random models.

    python benchmarks/hidden_states.py --threads 1              # 10,000 prompts; demo, and 6 layers of width 256
    python benchmarks/hidden_states.py --models small --ways ours run_with_cache --repeats 1   # GPT-2-small shape
    python benchmarks/hidden_states.py --quick                  # 200 prompts, seconds

The state entering one layer is read at the last token of each prompt of 6 to 20 tokens (13 on average). Rivals:

- *run_with_cache*: a loop over the prompts that keeps every hook, the first thing a user writes.
- *residuals*: the same loop, keeping residual streams only.
- *no batches*: ours, one prompt at a time: what is left when only logits and late layers are saved.
- *template*: prompts that all begin with the same 12 tokens more; *ours* computes these once, *whole* with every
  prompt.

The three that go prompt by prompt run on ``--sample`` prompts drawn at random and are scaled up: marked ``~``. All run
interleaved in one process; a ratio is the median of the rounds' ratios. Memory is the peak of the process beyond what
it held before, for all prompts (ours) or the sample.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import saliency
import torch
from saliency import hf_model, machine

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


def resident() -> tuple[float, float]:
    """Resident and peak megabytes of this process."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    found = {line[:5]: int(line.split()[1]) / 1024 for line in lines if line.startswith(("VmRSS", "VmHWM"))}
    return found["VmRSS"], found["VmHWM"]


def measured(work: Callable[[], np.ndarray[Any, Any]]) -> tuple[float, float, np.ndarray[Any, Any]]:
    """Seconds, megabytes beyond what was held before (NaN off Linux), and the states."""
    linux, before = sys.platform == "linux", float("nan")
    gc.collect()
    if linux:
        ctypes.CDLL("libc.so.6").malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        before = resident()[0]
    start = saliency.clock()
    found = work()
    seconds = saliency.clock() - start
    return seconds, (resident()[1] if linux else float("nan")) - before, found


WAYS = ("ours", "run_with_cache", "residuals", "no batches", "template, ours", "template, whole")


def compare(name: str, model: Any, count: int, sample: int, layer: int, repeats: int, chosen: list[str]) -> None:
    prompts, longer = prompts_of(count, model.d_vocab), prompts_of(count, model.d_vocab, first=12)
    apart = list(range(count))  # every prompt its own group: nothing is shared
    drawn = np.sort(np.random.default_rng(1).permutation(count)[:sample])
    some = [prompts[i] for i in drawn]
    ways: dict[str, Callable[[], np.ndarray[Any, Any]]] = {
        "ours": lambda: last_states(model, prompts, layer),
        "run_with_cache": lambda: loop(model, some, layer, False),
        "residuals": lambda: loop(model, some, layer, True),
        "no batches": lambda: last_states(model, some, layer, groups=apart[: len(some)], batch_size=1),
        "template, ours": lambda: last_states(model, longer, layer),
        "template, whole": lambda: last_states(model, longer, layer, groups=apart),
    }
    last_states(model, prompts[:20], layer)  # the first run compares the engine with the model's own
    found: dict[str, list[tuple[float, float, np.ndarray[Any, Any]]]] = {way: [] for way in WAYS if way in chosen}
    for _ in range(repeats):
        for way in found:
            found[way].append(measured(ways[way]))
    for way, runs in found.items():
        ours = found["template, ours" if way.startswith("template") else "ours"]
        part = len(runs[0][2]) < count
        scale = count / len(runs[0][2])
        wanted = ours[0][2][drawn] if part else ours[0][2]
        ratio = statistics.median(run[0] * scale / own[0] for run, own in zip(runs, ours, strict=True))
        off = float(np.abs(runs[0][2] - wanted).max() / np.abs(wanted).max())
        seconds = statistics.median(run[0] * scale for run in runs)
        about, memory = "~" * part, max(run[1] for run in runs)
        cells = [name, f"{count:,}", str(layer), way, f"{about}{seconds:.2f}", f"{about}{ratio:.1f}", f"{memory:.0f}"]
        print(*cells, f"{off:.0e}", sep=" | ", flush=True)


def load(name: str) -> Any:
    from interp_widgets.models import load_demo_pair, load_model

    return load_demo_pair().tuned if name == "demo" else load_model(hf_model(name))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="200 prompts, to see that it runs")
    parser.add_argument("--models", nargs="+", default=["demo", "mini"], choices=["demo", "mini", "small"])
    parser.add_argument("--prompts", type=int, default=10_000)
    parser.add_argument("--sample", type=int, default=500, help="prompts that the loops run on")
    parser.add_argument("--layers", type=int, nargs="+", default=[4], help="each read by itself")
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=WAYS)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=None, help="of torch; default: all cores")
    parser.add_argument("--cpu-time", action="store_true", help="processor time, on a busy machine")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    if options.cpu_time:
        saliency.clock = time.process_time
    count, sample, repeats = (200, 20, 1) if options.quick else (options.prompts, options.sample, options.repeats)
    print(machine("cpu"))
    print(*["model", "prompts", "layer", "way", "seconds", "time over ours", "MB", "error"], sep=" | ", flush=True)
    for name in options.models:
        model = load(name)
        for layer in options.layers:
            compare(name, model, count, min(sample, count), layer, repeats, options.ways)


if __name__ == "__main__":
    main()
