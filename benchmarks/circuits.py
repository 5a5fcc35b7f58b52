"""The table of `circuit_scoreboard` on every circuit, kind by kind, beside chance and two controls.

    python benchmarks/circuits.py [--seeds 3]

Written as Markdown: the average precision of each method, averaged over seeds of the circuits' weights; bold where in
every seed fewer than 5% of random rankings are as good. Controls: a ranking by the truth, and one in which all parts
are equal.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

from interp_widgets import circuit_scoreboard
from interp_widgets.analysis.circuits import METHODS
from interp_widgets.models import Model
from interp_widgets.models.circuits import PART_KINDS, CircuitCase


def the_truth(model: Model, case: CircuitCase) -> dict[str, Any]:
    return {kind: case.matters(kind, model).astype(float) for kind in PART_KINDS}


def all_equal(model: Model, case: CircuitCase) -> dict[str, Any]:
    return {kind: np.ones(case.matters(kind, model).shape) for kind in PART_KINDS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    seeds = range(parser.parse_args().seeds)
    boards = [circuit_scoreboard([*METHODS, the_truth, all_equal], seed=seed) for seed in seeds]
    first = boards[0]
    scores = np.mean([board.average_precision for board in boards], axis=0)
    beyond = np.max([board.p for board in boards], axis=0) < 0.05
    for column, kind in enumerate(first.kinds):
        print(f"\n| {kind} | {' | '.join(name.replace('_', ' ') for name in first.circuits)} |")
        print(f"|---|{'---|' * len(first.circuits)}")
        for row, name in enumerate(first.methods):
            values = scores[row, :, column]
            if np.isfinite(values).any():
                cells = [
                    "" if np.isnan(value) else f"**{value:.2f}**" if more else f"{value:.2f}"
                    for value, more in zip(values, beyond[row, :, column], strict=True)
                ]
                print(f"| {name.replace('_', ' ')} | {' | '.join(cells)} |")
        chance = [
            "" if np.isnan(mean) else f"{mean:.2f} ({low:.2f} to {high:.2f})"
            for mean, low, high in zip(
                first.chance[:, column], first.chance_low[:, column], first.chance_high[:, column], strict=True
            )
        ]
        print(f"| chance, middle 95% | {' | '.join(chance)} |")


if __name__ == "__main__":
    main()
