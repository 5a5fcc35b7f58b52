"""Mixture of Depths beside LoRA on the demo: held-out accuracy of tunings on the frozen base, three seeds.

    python benchmarks/mod_accuracy.py                 # 200 steps, 120 problems: ten minutes or so
    python benchmarks/mod_accuracy.py --steps 20 --problems 20 --seeds 1

Each row learns the same batches of the demo's tasks, with as many steps and the same learning rate. *MoD* tunes the
router and norms of the last 3 layers, *LoRA* adapters on those layers without a router, *both* both together. The
bound is what any choice among the routes could reach: the share of response tokens that at least one of the three
layers has as its likeliest, beside what the last layer alone has.
"""

from __future__ import annotations

import argparse
import warnings

import numpy as np
from saliency import machine, table

from interp_widgets import demo_problems, load_demo_pair, mod_ablations, routing
from interp_widgets.tuning.mod.untrained import untrained_mod

warnings.simplefilter("ignore")

VARIANTS = {"MoD": {}, "LoRA": {"lora": 8, "only": 2}, "both": {"lora": 8}}


def bound(base: object, problems: list, k: int = 3) -> tuple[float, float, int]:
    """Share of response tokens that the last layer has first, that any of the last k has first, and their number."""
    mixture = untrained_mod(base, k)
    right = []
    for problem in problems:
        prompt, response = mixture.split(problem.prompt, problem.response)
        found = routing(mixture, [*prompt, *response], top=1)
        wanted = np.asarray(response)
        top = found.route_ids[:, -len(wanted) - 1 : -1, 0]
        right.append(top == wanted)
    hits = np.concatenate(right, axis=1)
    return float(hits[-1].mean()), float(hits.any(0).mean()), hits.shape[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rates", type=float, nargs="+", default=[3e-4, 3e-3])
    parser.add_argument("--problems", type=int, default=120)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    base = load_demo_pair().base
    learned, held_out = demo_problems("train", 16 * options.steps), demo_problems(n=options.problems)
    print(machine("cpu"), "\n")
    last, some, tokens = bound(base, held_out)
    print(f"{tokens} response tokens: {last:.1%} right at the last layer, {some:.1%} at one of the last 3 at least\n")
    rows = []
    for rate in options.rates:
        found = mod_ablations(
            base, learned, held_out, k=3, variants=VARIANTS, seeds=tuple(range(options.seeds)),
            steps=options.steps, learning_rate=rate,
        )  # fmt: skip
        for i, name in enumerate(found.variants):
            mean = f"{found.mean[i]:.1%} ± {found.half_width[i]:.1%}"
            each = ", ".join(f"{value:.1%}" for value in found.accuracy[i])
            rows.append([f"{rate:g}", name, f"{found.trained[i]:,}", mean, each])
        print(f"base: {found.base_accuracy:.1%} of {found.n_problems} problems", flush=True)
    print(table(["learning rate", "tuned", "parameters", "solved, 95 % interval over seeds", "each seed"], rows))


if __name__ == "__main__":
    main()
