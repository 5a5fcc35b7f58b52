"""What a move in the head word browser takes in Python, on the demo model and at the size of a 7-billion model.

    python benchmarks/head_word_browser.py

Processor time on one thread, median of 5 (of the first opening: once). The large results are random: 32 layers, 32
heads of 128 dimensions, 100 pairs each, 13,000 words whose frequency falls as in a text; no model is run for them.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np
import torch

from interp_widgets import HeadWordBrowser, HeadWordResult, compare_heads, load_demo_pair

LAYERS, HEADS, DIMENSIONS, KEPT, WORDS = 32, 32, 128, 100, 13_000
REPEATS = 5
clock = time.process_time


def random_result(seed: int) -> HeadWordResult:
    """Word pairs of heads that no model has."""
    rng = np.random.default_rng(seed)
    cells, kept = (LAYERS, HEADS, DIMENSIONS), LAYERS * HEADS * DIMENSIONS * KEPT
    share = 1 / np.arange(1, WORDS + 1)
    pairs = rng.choice(WORDS, size=(kept, 2), p=share / share.sum()).astype(np.int32)
    counts = np.sort(rng.integers(1, 50, (LAYERS, HEADS, KEPT)), axis=-1)[..., ::-1].astype(np.int32)
    return HeadWordResult(
        vocabulary=tuple(f"word{i}" for i in range(WORDS)),
        layers=tuple(range(LAYERS)),
        energy=rng.random(cells),
        n_pairs=rng.integers(KEPT, 9999, (LAYERS, HEADS)),
        head_pairs=pairs[: counts.size].reshape(*counts.shape, 2),
        head_counts=counts,
        head_scores=rng.random(counts.shape, dtype=np.float32),
        dimension_counts=np.full(cells, 2 * KEPT),
        dimension_offsets=np.arange(np.prod(cells) + 1) * KEPT,
        dimension_word_pairs=pairs,
        dimension_scores=rng.random(kept, dtype=np.float32),
    )


def took(move: Callable[[int], object], repeats: int = REPEATS) -> float:
    """Milliseconds of a move; it is told how often it was made, so that it can be another one each time."""
    times = []
    for number in range(repeats):
        began = clock()
        move(number)
        times.append(1000 * (clock() - began))
    return statistics.median(times)


def moves(panel: HeadWordBrowser, frequent: str, rare: list[str]) -> list[float]:
    """A head, a pair of it, a frequent word, a rare one, another head while it is searched."""
    panel.wait()
    heads = panel["heads"]
    found = [took(lambda n: heads.select_cell(n % 6, 3))]
    found.append(took(lambda n: heads.select_pair(heads.tables.pairs.rows[n][:2])))
    found.append(took(lambda n: setattr(panel, "word", frequent), repeats=1))
    found.append(took(lambda n: setattr(panel, "word", rare[n])))
    found.append(took(lambda n: heads.select_cell(n % 6, 4)))
    return found


def main() -> None:
    """Print both tables."""
    torch.set_num_threads(1)
    pair = load_demo_pair()
    began = clock()
    demo = HeadWordBrowser(pair)
    opened = 1000 * (clock() - began)
    demo.wait()
    words = demo.result[0].vocabulary
    rows = {"demo, one": None, "demo, two": None, "large, one": None, "large, two": None}
    demo.view = "difference"
    rows["demo, two"] = moves(demo, "While", list(words[300 : 300 + REPEATS]))
    one = HeadWordBrowser(pair.base)
    rows["demo, one"] = moves(one, "While", list(words[300 : 300 + REPEATS]))
    a, b = random_result(0), random_result(1)
    rare = [f"word{5000 + n}" for n in range(REPEATS)]
    large = HeadWordBrowser(a)
    rows["large, one"] = moves(large, "word0", rare)
    began = clock()
    compare_heads(a, b)
    compared = clock() - began
    both = HeadWordBrowser(a, b, view="difference")
    rows["large, two"] = moves(both, "word0", rare)
    print("| results | click a head | click a pair | find a frequent word | find a rare word | click, word found |")
    print("|---|---|---|---|---|---|")
    for name, times in rows.items():
        print(f"| {name} | {' | '.join(f'{ms:.0f} ms' for ms in times or ())} |")
    print(f"\nopening on the demo pair, search included: {opened:.0f} ms")
    print(f"comparing the two large results: {compared:.1f} s")
    for panel in (demo, one, large, both):
        panel.close()


if __name__ == "__main__":
    main()
