"""Prompts through the logit lens of the demo model: one process, and one and two of a sweep's own.

    python benchmarks/sweep.py [--prompts 2000] [--flat 10000]

Wall time per prompt in each, the rounds interleaved, one thread each; the first items of a process, which load the
model, are told apart. Then the growth of this process's memory over many prompts, which are kept as they come.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from functools import partial
from itertools import count
from pathlib import Path

import psutil
import torch
from saliency import machine

from interp_widgets import demo_prompts, load_model, logit_lens, sweep

ROUNDS = 3


def seconds(prompts: list[str], backend: int | None) -> tuple[float, float]:
    """Of a whole sweep, and of what comes after its first tenth."""
    model, began, marks = load_model("demo-base"), time.perf_counter(), {}

    def note(done: int, total: int) -> None:
        marks[done] = time.perf_counter()

    began = time.perf_counter()
    sweep(partial(logit_lens, model), prompts, backend=backend, progress=note)
    tenth = len(prompts) // 10
    return time.perf_counter() - began, (marks[len(prompts)] - marks[tenth]) / (len(prompts) - tenth)


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=int, default=2000)
    parser.add_argument("--flat", type=int, default=10_000)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(machine("cpu"))
    facts = [row["prompt"] for row in demo_prompts(2000)]
    prompts = [facts[i % len(facts)] for i in range(options.prompts)]
    kinds = {"this process": None, "1 process": 1, "2 processes": 2}
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in kinds}
    for _ in range(ROUNDS):
        for name, backend in kinds.items():
            found[name].append(seconds(prompts, backend))
    print(f"\n{len(prompts):,} prompts, median of {ROUNDS} rounds")
    print("| | whole, s | per prompt once running, ms | × 1 process | projected for 100 times as many |")
    print("|---|---|---|---|---|")
    one = sorted(each for _, each in found["1 process"])[ROUNDS // 2]
    for name, rounds in found.items():
        whole, each = (sorted(column)[ROUNDS // 2] for column in zip(*rounds, strict=True))
        hours = (whole + each * 99 * len(prompts)) / 3600
        print(f"| {name} | {whole:.1f} | {1000 * each:.2f} | {one / each:.2f} | {hours:.1f} h |")
    flat(facts, options.flat)


def flat(facts: list[str], prompts: int) -> None:
    """Memory of this process while many prompts go through the lens."""
    process, model, sizes = psutil.Process(), load_model("demo-base"), []

    def note(done: int, total: int) -> None:
        if done % (prompts // 20) == 0:
            sizes.append(process.memory_info().rss / 1e6)

    with tempfile.TemporaryDirectory() as folder:
        items = (facts[i % len(facts)] for i in count())
        began = time.perf_counter()
        sweep(partial(logit_lens, model), items, limit=prompts, out=Path(folder) / "out", progress=note)
        taken = time.perf_counter() - began
    print(f"\n{prompts:,} prompts from a stream, kept on disk: {taken:.0f} s, memory after each twentieth (MB):")
    print(" ".join(f"{size:.0f}" for size in sizes))


if __name__ == "__main__":
    main()
