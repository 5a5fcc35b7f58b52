"""CKA of all layers of one model with all layers of another: one batched product against pair by pair.

    python benchmarks/cka.py                                 # 2,000 texts, 8 x 8 layers of width 2,048, two threads
    python benchmarks/cka.py --texts 200 --layers 33 --width 4096 --rounds 5

Pair by pair is the published code: each pair of layers is centred, two Gram matrices are made (or the products over
features, whichever is cheaper), and three inner products; with ``--pairs`` it runs on so many and is scaled up.
The minibatch estimate is another estimator, of the debiased CKA. All run interleaved in one process, in float32; memory
is the peak of arrays beyond the representations, by tracemalloc, in a round of its own. The largest difference of all
pairs computed is printed.
"""

from __future__ import annotations

import argparse
import statistics
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from saliency import machine
from threadpoolctl import threadpool_limits

from interp_widgets import minibatch_cka
from interp_widgets.analysis.layer_similarity.cka import alignments, cheaper_form, compare_layers

Array = np.ndarray[Any, Any]


def centred(kernel: Array) -> Array:
    means = kernel.mean(axis=0)
    return np.asarray(kernel - means[:, None] - means + means.mean())


def one_pair_gram(x: Array, y: Array) -> float:
    k, m = centred(x @ x.T), centred(y @ y.T)
    return float(np.vdot(k, m) / np.sqrt(np.vdot(k, k) * np.vdot(m, m)))


def one_pair_feature(x: Array, y: Array) -> float:
    x, y = x - x.mean(axis=0), y - y.mean(axis=0)
    return float(np.linalg.norm(y.T @ x) ** 2 / (np.linalg.norm(x.T @ x) * np.linalg.norm(y.T @ y)))


def megabytes(run: Callable[[], object]) -> float:
    tracemalloc.start()
    run()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak / 1e6


def seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=int, default=2000)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--pairs", type=int, default=0, help="pairs that the loop runs, scaled up; 0 for all")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rng = np.random.default_rng(0)
    shape = (options.texts, options.layers, options.width)
    x = rng.normal(size=shape).astype(np.float32)
    y = (x[:, ::-1] + rng.normal(size=shape)).astype(np.float32)
    every = [(i, j) for i in range(options.layers) for j in range(options.layers)]
    pairs = every[:: max(1, len(every) // options.pairs)] if options.pairs else every
    one_pair = one_pair_gram if options.texts < options.width else one_pair_feature
    form = cheaper_form(options.texts, options.width, options.width, options.layers, options.layers)

    def loop() -> list[float]:
        return [one_pair(x[:, i], y[:, j]) for i, j in pairs]

    def batched() -> Array:
        return np.asarray(alignments(x, y)[0])

    def other_form() -> object:
        return compare_layers(x, y, form="feature" if form == "gram" else "gram")

    def minibatches() -> float:
        return minibatch_cka(x[:, 0], y[:, -1])

    with threadpool_limits(options.threads):
        found, expected = batched(), loop()
        error = max(abs(found[i, j] - value) for (i, j), value in zip(pairs, expected, strict=True))
        print(f"{machine('cpu')}; {options.threads} threads; largest difference {error:.1e}")
        print(
            f"{options.texts} texts, {options.layers} x {options.layers} layers of width {options.width}; form {form}"
        )
        times: dict[str, list[float]] = {"loop": [], "batched": [], "other form": [], "one minibatch pair": []}
        for _ in range(options.rounds):
            for name, run in zip(times, (loop, batched, other_form, minibatches), strict=True):
                times[name].append(seconds(run) * (len(every) / len(pairs) if name == "loop" else 1))
        ratios = [slow / fast for slow, fast in zip(times["loop"], times["batched"], strict=True)]
        print("  ".join(f"{name} {statistics.median(own):.2f} s" for name, own in times.items()))
        print(f"median ratio {statistics.median(ratios):.1f} ({min(ratios):.1f} to {max(ratios):.1f})")
        print(f"memory beyond the states: pair by pair {megabytes(lambda: one_pair(x[:, 0], y[:, 0])):.0f} MB, batched "
              f"{megabytes(batched):.0f} MB")  # fmt: skip


if __name__ == "__main__":
    main()
