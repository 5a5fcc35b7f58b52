"""Mixture of Depths: what one unembedding saves, and how fast sparse routing writes.

    python benchmarks/mod.py --threads 1 --cpu-time        # on a machine that does other things too
    python benchmarks/mod.py --quick                       # small shapes, seconds
    python benchmarks/mod.py --train 300                   # tune the demo mixtures for longer first
    python benchmarks/mod.py --only analyses               # one of read-out, writing, analyses

*Read-out.* Logits of 64 positions, width 768, 50,257 tokens, from k normed states and their weights: the sum of k
logit tensors as the definition has it, against one unembedding of the mixed states. Rivals take turns; a ratio is the
median of the pairs' ratios. The aim is 0.8 k.

*Writing.* Tokens per second of one text, greedy, with key/value cache, for 1..k routes per token. All go through the
same loop, which computes a layer only when a token needs it; *dense* is all k routes, *base* a mixture of one route
with the base's own norm, which is the base model in that loop. First on the demo model with tuned mixtures, then on
random weights of the GPT-2-small shape, where a random router sends every token somewhere else.

*Analyses.* Saliency and ablation of a demo mixture by the plain equations, against the same through TransformerLens'
own blocks and autograd, as before these equations knew mixtures; *base* is the demo model itself. Rivals take turns; a
ratio is the median of the pairs' ratios.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest import mock

import numpy as np
import saliency
import torch
from saliency import hf_model, machine, table
from torch import Tensor

from interp_widgets.analysis.ablation import ablate_modules
from interp_widgets.analysis.mixture_of_depths import routing_speed
from interp_widgets.analysis.saliency import prompt_saliency
from interp_widgets.models import load_model, plain
from interp_widgets.models.mixture_of_depths.assemble import new_mixture, norm_parameters
from interp_widgets.models.mixture_of_depths.checkpoint import MixtureState, base_hash
from interp_widgets.models.mixture_of_depths.install import late_parts
from interp_widgets.models.mixture_of_depths.opening import build_mixture, read_base
from interp_widgets.models.read_out import mix

warnings.simplefilter("ignore")

PROMPT = "The Eiffel Tower is located in the city of"


def seconds(action: Callable[[], Any], clock: Callable[[], float]) -> float:
    start = clock()
    action()
    return clock() - start


@torch.no_grad()
def read_out(quick: bool, repeats: int, clock: Callable[[], float]) -> str:
    positions, width, vocab = (32, 128, 4000) if quick else (64, 768, 50257)
    generator = torch.Generator().manual_seed(0)
    table_u = torch.randn(width, vocab, generator=generator) * 0.02
    rows = []
    for k in (2, 3, 4, 8):
        members = [torch.randn(positions, width, generator=generator) for _ in range(k)]
        weights = torch.randn(positions, k, generator=generator).softmax(-1)

        def many(members: list[Tensor] = members, weights: Tensor = weights) -> Tensor:
            total = weights[:, :1] * (members[0] @ table_u)
            for i in range(1, len(members)):
                total += weights[:, i : i + 1] * (members[i] @ table_u)
            return total

        def one(members: list[Tensor] = members, weights: Tensor = weights) -> Tensor:
            return mix(weights, members) @ table_u

        error = float((many() - one()).abs().max() / many().abs().max())
        pairs = [(seconds(many, clock), seconds(one, clock)) for _ in range(repeats)]
        ratio = statistics.median(a / b for a, b in pairs)
        a, b = (1000 * statistics.median(side) for side in zip(*pairs, strict=True))
        rows.append([str(k), f"{a:.1f}", f"{b:.1f}", f"{ratio:.2f}", f"{0.8 * k:.1f}", f"{error:.0e}"])
    return table(["k", "k unembeddings (ms)", "one (ms)", "ratio", "aim", "relative error"], rows)


def one_route(source: Any, tokenizer: Any = None) -> Any:
    """The base model in the same loop: a mixture of one route, with the final norm copied."""
    return random_mixture(source, 1, 0.0, tokenizer)


def random_mixture(source: Any, k: int, scale: float, tokenizer: Any = None) -> Any:
    """A mixture with a random router, for a base that nobody tuned."""
    hf, own = read_base(source, tokenizer)
    found = base_hash(hf)
    parts = late_parts(hf)
    width = len(next(parts.norm.parameters()))
    mixture = new_mixture(parts, scale * torch.randn(width, k, generator=torch.Generator().manual_seed(0)), k)
    weights = {"router": mixture.router.detach(), **{n: p.detach() for n, p in norm_parameters(mixture, parts).items()}}
    state = MixtureState(k, k, None, None, "base", found, weights)
    return build_mixture(hf, state, tokenizer=own, name=f"k {k}", source=None, device="cpu", backend="hooked")


def writing(name: str, model: Any, base: Any, prompt: Any, tokens: int, repeats: int, clock: Any) -> list[list[str]]:
    speed = routing_speed(model, prompt, max_new_tokens=tokens, repeats=repeats, clock=clock)
    plain = routing_speed(base, prompt, max_new_tokens=tokens, repeats=repeats, clock=clock)
    rows = [[name, "base", f"{plain.tokens_per_second[0]:.0f}", "", "100%", "100%", ""]]
    for row, count in enumerate(speed.top_k):
        label = f"{count} (dense)" if count == model.k else str(count)
        shares = [f"{100 * share:.0f}%" for share in (speed.runs[row], speed.computed[row])]
        same = "yes" if speed.texts[row] == speed.texts[-1] else "no"
        rows.append(["", label, f"{speed.tokens_per_second[row]:.0f}", f"{speed.speed_up[row]:.2f}", *shares, same])
    return rows


def through_blocks() -> Any:
    """Inside, no model is known to the plain equations."""
    return mock.patch.object(plain, "applies", return_value=False)


def analyses(quick: bool, repeats: int, clock: Callable[[], float]) -> str:
    model, base = random_mixture("demo-base", 3, 0.02), load_model("demo-base", device="cpu")
    ids = torch.randint(1, model.d_vocab, (256,), generator=torch.Generator().manual_seed(0)).tolist()
    sizes = [(8, 8), (24, 4)] if quick else [(64, 64), (200, 32), (32, 200)]
    places = 8 if quick else 32
    tasks: list[tuple[str, str, Callable[[Any], Any]]] = [
        (method, f"{n}, {m}", partial(saliency_of, method=method, prompt=ids[:n], response=ids[n : n + m]))
        for method in ("first_order", "exact")
        for n, m in sizes
    ]
    tasks.append(("ablation of modules", str(places), lambda model: ablate_modules(model, ids[:places], 99).effect))
    rows = []
    for name, size, task in tasks:
        with through_blocks():
            slow = task(model)
        error = np.abs(task(model) - slow).max() / np.abs(slow).max()
        times = []
        for _ in range(repeats):
            with through_blocks():
                before = seconds(partial(task, model), clock)
            times.append((before, seconds(partial(task, model), clock), seconds(partial(task, base), clock)))
        before, after, _ = (1000 * statistics.median(column) for column in zip(*times, strict=True))
        ratio = statistics.median(one / other for one, other, _ in times)
        over = statistics.median(one / other for _, one, other in times)
        label = name.replace("_", " ")
        rows.append([label, size, f"{before:.0f}", f"{after:.0f}", f"{ratio:.1f}", f"{over:.2f}", f"{error:.0e}"])
    head = ["analysis", "prompt, response", "through blocks (ms)", "plain (ms)", "ratio", "over base", "difference"]
    return table(head, rows)


def saliency_of(model: Any, method: Any, prompt: list[int], response: list[int]) -> Any:
    return prompt_saliency(model, prompt, response, method=method).importance


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--cpu-time", action="store_true", help="processor time instead of wall time")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--train", type=int, default=100, help="steps of the demo mixtures")
    parser.add_argument("--only", choices=["read-out", "writing", "analyses"])
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    clock = saliency.clock = time.process_time if options.cpu_time else time.perf_counter
    print(machine("cpu"))
    if options.only in (None, "read-out"):
        print("\n### Read-out\n")
        print(read_out(options.quick, options.repeats, clock))
    if options.only in (None, "analyses"):
        print("\n### Analyses\n")
        print(analyses(options.quick, options.repeats, clock))
    if options.only in (None, "writing"):
        print("\n### Writing\n")
        print(all_writing(options, clock))


def all_writing(options: argparse.Namespace, clock: Callable[[], float]) -> str:
    from interp_widgets.data.instructions import instruction_cases
    from interp_widgets.tuning.mixture_of_depths import tune_mod

    cases = instruction_cases("train", 40 if options.quick else 800, seed=0)
    steps, tokens = (3, 8) if options.quick else (options.train, 48)
    rows = []
    for k in (3, 6):
        for trained in (k, 1):
            model, _ = tune_mod("demo-base", cases, k=k, top_k=trained, steps=steps, learning_rate=3e-3)
            name = f"demo, k {k}, tuned with top-{trained}"
            rows += writing(name, model, one_route("demo-base"), PROMPT, tokens, options.repeats, clock)
    source = hf_model("mini" if options.quick else "small")
    model = random_mixture(source, 6, 0.3)
    name = f"random, {model.n_layers} layers of {model.d_model}, k 6"
    prompt = list(range(100, 116))
    rows += writing(name, model, one_route(source), prompt, tokens, min(3, options.repeats), clock)
    head = ["model", "routes per token", "tokens/s", "over dense", "layers run", "positions computed", "text of dense"]
    return table(head, rows)


if __name__ == "__main__":
    main()
