"""Mixture of Depths beside LoRA on the demo: held-out accuracy of tunings of the frozen base, three seeds.

    python benchmarks/mod_accuracy.py                              # 600 steps, 300 problems: an hour or so
    python benchmarks/mod_accuracy.py --steps 20 --problems 20 --seeds 1

Each row learns the same batches of the demo's tasks, with as many steps and the same learning rate. Two comparisons: on
the frozen base the mixture of the last 3 layers beside adapters on those layers; and, as in the thesis, both on top of
adapters on the layers below. The bound is what any choice among the routes could reach: the share of response tokens
that at least one of the three layers has as its likeliest, and of problems in which that holds for every token.
"""

from __future__ import annotations

import argparse
import sys
import warnings

import numpy as np
from saliency import machine, table
from scipy import stats

from interp_widgets import demo_problems, load_demo_pair, mod_ablations, routing
from interp_widgets.analysis.mixture_of_depths.tuning_results import ModAblations
from interp_widgets.tuning.mixture_of_depths.untrained import untrained_mod

warnings.simplefilter("ignore")

VARIANTS = {
    "MoD": {},
    "LoRA on the last 3": {"lora": 8, "only": 2},
    "LoRA below": {"lora": 8, "lora_layers": "below", "only": 2},
    "LoRA below + MoD": {"lora": 8, "lora_layers": "below"},
    "LoRA on all": {"lora": 8, "lora_layers": "all", "only": 2},
    "LoRA on all + MoD": {"lora": 8, "lora_layers": "all"},
}
COMPARED = (("MoD", "LoRA on the last 3"), ("LoRA below + MoD", "LoRA on all"), ("LoRA below + MoD", "LoRA below"))


def bound(base: object, problems: list, k: int = 3) -> str:
    """What the last layer has right and what any of the last k has right, of response tokens and of whole problems."""
    mixture = untrained_mod(base, k)
    right = []
    for problem in problems:
        prompt, response = mixture.split(problem.prompt, problem.response)
        found = routing(mixture, [*prompt, *response], top=1)
        wanted = np.asarray(response)
        right.append(found.route_ids[:, -len(wanted) - 1 : -1, 0] == wanted)
    hits = np.concatenate(right, axis=1)
    last, some = (np.mean([part(one).all() for one in right]) for part in (lambda x: x[-1], lambda x: x.any(0)))
    return (
        f"Of {hits.shape[1]:,} response tokens the last layer has {hits[-1].mean():.1%} right, one of the last {k} "
        f"at least {hits.any(0).mean():.1%}; of {len(right)} problems every token: {last:.1%} and {some:.1%}."
    )


def interval(values: np.ndarray) -> str:
    """Mean of the seeds with its 95% interval."""
    if len(values) == 1:
        return f"{values[0]:.1%}"
    half = stats.t.ppf(0.975, len(values) - 1) * stats.sem(values)
    return f"{values.mean():.1%} ± {half:.1%}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--problems", type=int, default=300)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    base = load_demo_pair().base
    learned, held_out = demo_problems("train", 16 * options.steps), demo_problems(n=options.problems)
    print(machine("cpu"), "\n\n", bound(base, held_out), "\n", sep="", flush=True)

    def tell(partial: ModAblations) -> None:
        print(np.round(100 * partial.accuracy, 1).tolist(), file=sys.stderr, flush=True)

    found = mod_ablations(
        base, learned, held_out, k=3, variants=VARIANTS, seeds=tuple(range(options.seeds)), steps=options.steps,
        learning_rate=options.rate, on_partial=tell,
    )  # fmt: skip
    rows = [["nothing (base)", "0", f"{found.base_accuracy:.1%}", ""]]
    for name, trained, values in zip(found.variants, found.trained, found.accuracy, strict=True):
        rows.append([name, f"{trained:,}", interval(values), ", ".join(f"{value:.1%}" for value in values)])
    print(table(["tuned", "parameters", "solved, 95% interval over seeds", "each seed"], rows), "\n")
    for name, other in COMPARED:
        first, second = (found.accuracy[found.variants.index(one)] for one in (name, other))
        print(f"{name} less {other}: {interval(first - second)}")


if __name__ == "__main__":
    main()
