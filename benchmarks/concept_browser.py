"""What a move in the concept browser costs: directions with and without the states that were read before.

Processor seconds of one thread, median of 3, on the tuned demo model with its 222 concepts (4,439 texts), layer 3.

    python benchmarks/concept_browser.py
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from interp_widgets import Concept, concept_directions, demo_concepts, load_demo_pair
from interp_widgets.analysis.concepts import HiddenStateCache

REPEATS = 3


def seconds(work: Callable[[], Any]) -> float:
    """Processor seconds of one call."""
    began = time.process_time()
    work()
    return time.process_time() - began


def main() -> None:
    """Print a table."""
    torch.set_num_threads(1)
    model, concepts = load_demo_pair().tuned, demo_concepts()
    own = Concept(
        "parrot", tuple(f"Anna saw a parrot near the {place}." for place in ("river", "park", "farm", "lake"))
    )
    concept_directions(model, concepts[:10], layer=3, shuffles=1)  # imports
    rows: dict[str, list[float]] = {}
    for _ in range(REPEATS):
        kept = HiddenStateCache(model)
        runs: dict[str, Callable[[], Any]] = {
            "all read, nothing kept": lambda: concept_directions(model, concepts, layer=3),
            "the first draft, 28 concepts": lambda kept=kept: concept_directions(  # type: ignore[misc]
                model, concepts[::8], layer=3, shuffles=1, states=kept
            ),
            "the rest, kept": lambda kept=kept: concept_directions(model, concepts, layer=3, states=kept),  # type: ignore[misc]
            "another layer, with its control": lambda kept=kept: concept_directions(  # type: ignore[misc]
                model, concepts, layer=2, states=kept
            ),
            "another layer, without": lambda kept=kept: concept_directions(  # type: ignore[misc]
                model, concepts, layer=1, shuffles=1, states=kept
            ),
            "one concept more": lambda kept=kept: concept_directions(  # type: ignore[misc]
                model, (*concepts, own), layer=3, shuffles=1, states=kept
            ),
        }
        for name, work in runs.items():
            rows.setdefault(name, []).append(seconds(work))
    for name, times in rows.items():
        print(f"{name:34} {statistics.median(times):6.2f} s")


if __name__ == "__main__":
    main()
