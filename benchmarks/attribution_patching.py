"""Attribution patching against patching every cell, on a pretrained model, in turns: time, agreement, and how many of
the strongest cells the estimate puts first.

    python benchmarks/attribution_patching.py               # smollm2, three rounds
    python benchmarks/attribution_patching.py gemma3-270m 1

Printed are medians of processor seconds of one thread; for each site the correlation of the estimates with all patches,
and how many of the ten strongest cells are among the first ten and the first hundred by the estimate.
"""

from __future__ import annotations

import statistics
import sys
import time
from typing import Any

import numpy as np
import torch

import interp_widgets as iw

CLEAN, CORRUPTED, ANSWER, FOIL = "The capital of France is", "The capital of Italy is", " Paris", " Rome"
SITES: tuple[Any, ...] = ("resid_pre", "attn", "mlp", "head")


def timed(model: Any, **options: Any) -> tuple[float, Any]:
    """Processor seconds of a map, and the map."""
    start = time.process_time()
    found = iw.activation_patching(model, CLEAN, CORRUPTED, ANSWER, foil=FOIL, sites=SITES, **options)
    return time.process_time() - start, found


def main() -> None:
    name = sys.argv[1] if len(sys.argv) > 1 else "smollm2"
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    torch.set_num_threads(1)
    model = iw.load_model(name)
    timed(model, method="attribution", sample=3)  # compares the routes through the model
    seconds: dict[str, list[float]] = {"exact": [], "estimates": [], "estimates, 50 patched": []}
    for _ in range(rounds):
        took, exact = timed(model)
        seconds["exact"].append(took)
        took, quick = timed(model, method="attribution", sample=3)
        seconds["estimates"].append(took)
        took, _ = timed(model, method="attribution", sample=50)
        seconds["estimates, 50 patched"].append(took)
    print(f"{name}, {sum(values.size for values in exact.recovered.values())} cells, medians of {rounds} rounds")
    for way, each in seconds.items():
        print(f"{way:22} {statistics.median(each):6.2f} s")
    for site in SITES:
        real, guess = exact.recovered[site].ravel(), quick.estimated[site].ravel()
        top, first = set(np.argsort(-real)[:10].tolist()), np.argsort(-guess)
        hits = [len(top & set(first[:count].tolist())) for count in (10, 100)]
        print(f"{site:10} {len(real):5} cells  r {np.corrcoef(real, guess)[0, 1]:.3f}  of ten {hits[0]}, {hits[1]}")


if __name__ == "__main__":
    main()
