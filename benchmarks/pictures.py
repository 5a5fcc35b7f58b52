"""Time, memory and size of the saved pictures: python benchmarks/pictures.py. Each line is a fresh process."""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from interp_widgets.figures.concepts import concept_map_scene
from interp_widgets.figures.static import (
    curves_scene,
    heatmap_scene,
    save_scene,
    stack_scenes,
    strip_scene,
    table_scene,
)

DRAW = np.random.default_rng(0)


def heatmap(rows: int, columns: int, words: bool = False, width: int = 900) -> Any:
    texts = [f"word{i % 97}" for i in range(rows * columns)] if words else []
    names = [f"layer {i}" for i in range(rows)], [f" token{i}" for i in range(columns)]
    return heatmap_scene(DRAW.normal(size=(rows, columns)), *names, title="Map", x_label="position", y_label="layer",
                         value_label="nats", texts=texts, width=width)  # fmt: skip


def strip(tokens: int) -> Any:
    return strip_scene([f" word{i % 50}" for i in range(tokens)], DRAW.random(tokens), density=DRAW.random(tokens))


def points(count: int) -> Any:
    groups = [f"group {i % 11}" for i in range(count)]
    return concept_map_scene(DRAW.normal(size=(count, 2)), [f"concept {i}" for i in range(count)], groups, chosen=1)


KINDS: dict[str, Any] = {
    "heatmap 12 × 24 with words": lambda: heatmap(12, 24, words=True),
    "heatmap 60 × 60": lambda: heatmap(60, 60),
    "heatmap 2,000 × 300": lambda: heatmap(2000, 300),
    "strip, 60 tokens": lambda: strip(60),
    "strip, 2,000 tokens": lambda: strip(2000),
    "lines, 12 × 500": lambda: curves_scene(
        [(f"layer {i}", np.cumsum(DRAW.random(500)), i == 3) for i in range(12)], title="t", x_label="x", y_label="y"
    ),
    "table, 30 × 6": lambda: table_scene([("words", 90.0)] * 6, [[f"word {i}"] * 6 for i in range(30)]),
    "map, 2,000 concepts": lambda: points(2000),
    "map, 40,000 concepts": lambda: points(40_000),
    "grid of four 12 × 24": lambda: stack_scenes([heatmap(12, 24, width=640) for _ in range(4)], columns=2),
}


def measure(kind: str, suffix: str) -> str:
    """Seconds of the first and of the third picture, MiB more than before, kB of the file."""
    np.ones(1).sum()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with tempfile.TemporaryDirectory() as folder:
        path, took = Path(folder) / f"picture{suffix}", []
        for _ in range(3):
            start = time.process_time()
            save_scene(KINDS[kind](), path)
            took.append(time.process_time() - start)
        more = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        return f"{took[0]:.2f} s, then {min(took[1:]):.2f} s | {more:.0f} MiB | {path.stat().st_size / 1000:.0f} kB"


if __name__ == "__main__":
    if len(sys.argv) == 3:
        print(measure(*sys.argv[1:]))
    else:
        for kind in KINDS:
            for suffix in (".png", ".svg"):
                found = subprocess.run([sys.executable, __file__, kind, suffix], capture_output=True, text=True)
                print(f"| {kind} | {suffix[1:]} | {found.stdout.strip() or found.stderr[-300:]} |", flush=True)
