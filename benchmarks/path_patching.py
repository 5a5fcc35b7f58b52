"""Path patching against a loop of hooked runs, in turns.

    python benchmarks/path_patching.py                  # the demo model, 24 tokens, three rounds
    python benchmarks/path_patching.py smollm2 9 1      # model, tokens, rounds

Both run in one process with one thread and take turns. The loop is what one writes with TransformerLens: for each
sender a run of the clean prompt in which every head and MLP puts out what it does in the clean run, but the sender what
it does in the corrupted one, and the receivers' inputs are kept; then a clean run with these (Interpretability in the
Wild, appendix B). Printed are the medians of wall and processor seconds, their ratios, and the largest difference of
the effects.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

import interp_widgets as iw

TARGET, FOIL = 40, 41
Part = tuple[Any, ...]


def receivers_of(model: iw.Model) -> dict[str, list[Part]]:
    """What all heads and MLPs before it are sent to, by the name of a row."""
    last, middle = model.n_layers - 1, model.n_layers // 2
    return {
        "logits": [("logits",)],
        f"queries, layer {last}": [("head_q", last, head) for head in range(model.n_heads)],
        f"values, layer {middle}": [("head_v", middle, head) for head in range(model.n_kv_heads)],
        f"MLP {last - 1}": [("mlp", last - 1)],
    }


def gap(logits: Tensor) -> float:
    return float(logits[0, -1, TARGET] - logits[0, -1, FOIL])


def written(sender: Part) -> tuple[str, Any]:
    """The hook at which a sender puts out what it computes, and which part of the value that is."""
    if sender[0] == "mlp":
        return f"blocks.{sender[1]}.hook_mlp_out", slice(None)
    layer, head = sender
    return f"blocks.{layer}.attn.hook_z", (slice(None), slice(None), head)


def read_at(receiver: Part) -> tuple[str, Any]:
    """The hook at which a receiver's input has become what it computes, and which part of the value that is."""
    if receiver[0] == "mlp":
        return f"blocks.{receiver[1]}.hook_mlp_out", slice(None)
    kind, layer, head = receiver
    return f"blocks.{layer}.attn.hook_{kind[-1]}", (slice(None), slice(None), head)


def put(value: Tensor, hook: Any, *, part: Any, new: Tensor) -> Tensor:
    value[part] = new[part]
    return value


def by_loop(model: Any, clean: Tensor, corrupted: Tensor, senders: list[Part], receivers: list[Part]) -> list[float]:
    """The part of the logit difference that each sender's path to the receivers carries."""
    outputs = [
        f"blocks.{layer}.{name}" for layer in range(model.cfg.n_layers) for name in ("attn.hook_z", "hook_mlp_out")
    ]
    logits, kept = model.run_with_cache(clean, names_filter=outputs)
    other, changed = model.run_with_cache(corrupted, names_filter=outputs)
    high, low, effects = gap(logits), gap(other), list[float]()
    for sender in senders:
        at, part = written(sender)
        frozen = [(name, partial(put, part=slice(None), new=kept[name])) for name in outputs]
        hooks = [*frozen, (at, partial(put, part=part, new=changed[at]))]
        if receivers == [("logits",)]:
            patched = model.run_with_hooks(clean, fwd_hooks=hooks)
        else:
            inputs: dict[str, Tensor] = {}

            def keep(value: Tensor, hook: Any, *, inputs: dict[str, Tensor] = inputs) -> None:
                inputs[hook.name] = value.clone()

            places = [read_at(receiver) for receiver in receivers]
            names = {name for name, _ in places}
            before = [(name, hook) for name, hook in hooks if name not in names]
            model.run_with_hooks(clean, fwd_hooks=[*before, *((name, keep) for name in names)])
            patched = model.run_with_hooks(
                clean, fwd_hooks=[(name, partial(put, part=part, new=inputs[name])) for name, part in places]
            )
        effects.append((high - gap(patched)) / (high - low))
    return effects


def timed(work: Callable[[], Any]) -> tuple[float, float, Any]:
    """Wall and processor seconds of a call, and what it returns."""
    wall, processor = time.perf_counter(), time.process_time()
    result = work()
    return time.perf_counter() - wall, time.process_time() - processor, result


@torch.no_grad()
def main() -> None:
    name, tokens, rounds = sys.argv[1:] or ("demo-base", 24, 3)
    tokens, rounds = int(tokens), int(rounds)
    torch.set_num_threads(1)
    model = iw.load_model(str(name), backend="hooked", device="cpu")
    ids = torch.randint(50, 4000, (tokens,), generator=torch.Generator().manual_seed(7)).tolist()
    other = [*ids[:2], 55, *ids[3:]]  # an early word, so that nearly every sender can carry something
    clean, corrupted = torch.tensor([ids]), torch.tensor([other])
    iw.path_patching(model, ids, other, [(0, 0)], ["logits"], TARGET, foil=FOIL)  # compares the routes of the model
    print(f"{model.n_layers} layers, {model.n_heads} heads, {tokens} tokens, medians of {rounds} rounds")
    print("| receivers | senders | wall (s) | loop | × | processor (s) | loop | × | largest difference |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name, receivers in receivers_of(model).items():
        senders: list[Part] = []
        own, loops, apart = list[tuple[float, float]](), list[tuple[float, float]](), 0.0
        for _ in range(rounds):
            wall, processor, found = timed(
                partial(iw.path_patching, model, ids, other, None, receivers, TARGET, foil=FOIL)
            )
            own.append((wall, processor))
            senders = [_named(sender) for sender in found.senders]
            wall, processor, effects = timed(partial(by_loop, model.tl_model, clean, corrupted, senders, receivers))
            loops.append((wall, processor))
            apart = max(apart, float(np.abs(found.effect - effects).max()))
        cells = list[str]()
        for ours, rival in zip(zip(*own, strict=True), zip(*loops, strict=True), strict=True):
            mine, theirs = statistics.median(ours), statistics.median(rival)
            cells += [f"{mine:.2f}", f"{theirs:.2f}", f"{theirs / mine:.1f}"]
        print(f"| {name} | {len(senders)} | {' | '.join(cells)} | {apart:.0e} |", flush=True)


def _named(sender: str) -> Part:
    kind, at = sender.split()
    layer, *head = map(int, at.split("."))
    return (layer, *head) if kind == "head" else (kind, layer)


if __name__ == "__main__":
    main()
