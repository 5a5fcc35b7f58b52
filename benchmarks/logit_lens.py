"""The logit lens against ways that hold the logits of all layers and positions: time, memory and error.

    python benchmarks/logit_lens.py --threads 1                 # the GPT-2-small shape, V 50,257 and 128,000
    python benchmarks/logit_lens.py --threads 1 --cpu-time      # on a machine that does other things too
    python benchmarks/logit_lens.py --quick                     # a small shape, seconds

13 rows (12 layers and the output) × 128 positions of random weights in float32. Every rival gives top 10, entropy,
KL to the last row, rank and probability of a target, from the text on:

- *naive*: the transformers model with its hidden states, then logits, ``log_softmax``, entropy, KL and ``topk`` of the
  whole tensor (layers + 1, positions, vocabulary).
- *TransformerLens*: ``run_with_cache``, ``accumulated_resid(apply_ln=True)`` and ``unembed``, then the same.
- *64 cells*: the naive way on 64 cells after the other.

All run interleaved in one process on the same weights and ids; a ratio is the median of the pairs' ratios. *tensors* is
the most that tensors hold at one time by PyTorch's own record, *process* the growth of the resident memory at its peak.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import saliency
import torch
from saliency import Timing, machine, measure, table
from torch import Tensor

TOP, TARGET, POSITIONS = 10, 77, 128


@dataclass
class Problem:
    """One model and one text."""

    hf: Any
    model: Any
    ids: list[int]

    @property
    def cells(self) -> int:
        return (self.model.n_layers + 1) * len(self.ids)


Outcome = tuple["np.ndarray[Any, Any] | None", float, float]
"""What `saliency.measure` takes: the numbers to compare, and a factor and an offset of the time."""


def build(vocab: int, quick: bool) -> Problem:
    """A random model of the GPT-2-small shape (or a quarter of it) with ``vocab`` tokens, and 128 ids."""
    from transformers import GPT2Config, GPT2LMHeadModel

    from interp_widgets.models import load_model

    torch.manual_seed(0)
    shape: dict[str, Any] = {"n_layer": 4, "n_embd": 128, "n_head": 4} if quick else {}
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    hf = GPT2LMHeadModel(GPT2Config(vocab_size=vocab, initializer_range=0.06, **shape, **ends)).eval()
    ids = torch.randint(0, vocab, (POSITIONS,), generator=torch.Generator().manual_seed(7)).tolist()
    return Problem(hf, load_model(hf), ids)


# ---- rivals: numbers (3, layers + 1, positions): entropy, KL, rank


def statistics_of(logits: Tensor, final: Tensor) -> Tensor:
    """Entropy, KL and rank of (..., vocabulary) logits against the last row's log-probabilities; top 10 besides."""
    log_p = logits.log_softmax(-1)
    p = log_p.exp()
    entropy = -(p * log_p).sum(-1)
    kl = (p * (log_p - final)).sum(-1)
    p.topk(TOP)
    rank = (logits > logits[..., TARGET, None]).sum(-1)
    return torch.stack([entropy, kl, rank.float()])


def hidden_states(p: Problem) -> Tensor:
    """(layers + 1, positions, d_model), final norm applied; transformers has applied it to the last already."""
    body = p.hf.transformer
    states = body(torch.tensor([p.ids]), output_hidden_states=True, use_cache=False).hidden_states
    return torch.cat([*(body.ln_f(state) for state in states[:-1]), states[-1]])


@torch.no_grad()
def naive(p: Problem, sample: int) -> Outcome:
    logits = p.hf.lm_head(hidden_states(p))
    return statistics_of(logits, logits[-1].log_softmax(-1)).numpy(), 1.0, 0.0


@torch.no_grad()
def transformer_lens(p: Problem, sample: int) -> Outcome:
    tl_model = p.model.tl_model
    _, cache = tl_model.run_with_cache(torch.tensor([p.ids]))
    logits = tl_model.unembed(cache.accumulated_resid(apply_ln=True)[:, 0])
    return statistics_of(logits, logits[-1].log_softmax(-1)).numpy(), 1.0, 0.0


@torch.no_grad()
def cell_blocks(p: Problem, sample: int) -> Outcome:
    states = hidden_states(p).transpose(0, 1)  # the rows of one position side by side
    rows, found = states.shape[1], []
    for some in states.split(max(1, 64 // rows)):
        logits = p.hf.lm_head(some)
        found.append(statistics_of(logits, logits[:, -1:].log_softmax(-1)))
    return torch.cat(found, dim=1).transpose(1, 2).numpy(), 1.0, 0.0


def ours(p: Problem, sample: int) -> Outcome:
    from interp_widgets.analysis.logit_lens import logit_lens

    result = logit_lens(p.model, p.ids, target=TARGET, top=TOP)
    return np.stack([result.entropy, result.kl, result.target_rank]), 1.0, 0.0


RIVALS: dict[str, Callable[[Any, int], Outcome]] = {
    "naive": naive, "TransformerLens": transformer_lens, "64 cells": cell_blocks, "this package": ours,
}  # fmt: skip


# ---- measuring


def tensor_megabytes(function: Callable[[], object]) -> float:
    """Most megabytes that tensors made inside hold at one time, from the allocator's own record."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        function()
    events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    return float(np.cumsum([e.nbytes() for e in sorted(events, key=lambda e: e.start_ns())]).max() / 2**20)


def compare(p: Problem, repeats: int) -> list[list[str]]:
    ours(p, 0)  # the first run compares the read-out with the model's own and hashes the weights
    found: dict[str, list[Timing]] = {name: [] for name in RIVALS}
    for _ in range(repeats):
        for name, rival in RIVALS.items():
            found[name].append(measure(rival, p, 0))  # type: ignore[arg-type]
    whole = p.cells * p.model.d_vocab * 4 / 2**20
    reference = found["naive"][-1].matrix
    rows = []
    for name, timings in found.items():
        pairs = zip(timings, found["this package"], strict=True)
        held = tensor_megabytes(lambda rival=RIVALS[name]: rival(p, 0))  # type: ignore[misc]
        off = np.abs(timings[-1].matrix - reference)  # type: ignore[operator]
        rows.append([
            f"{p.model.d_vocab:,}", name, f"{statistics.median(t.seconds for t in timings):.2f}",
            f"{statistics.median(a.seconds / b.seconds for a, b in pairs):.2f}",
            f"{held:,.1f} ({100 * held / whole:.1f} %)", f"{statistics.median(t.megabytes for t in timings):,.0f}",
            f"{off[:2].max():.0e}", f"{int((off[2] > 0).sum())} of {off[2].size}",
        ])  # fmt: skip
        print(*rows[-1], sep=" | ", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a small shape, to see that it runs")
    parser.add_argument("--vocab", nargs="+", type=int, default=[50257, 128000])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=None, help="of torch; default: all cores")
    parser.add_argument("--cpu-time", action="store_true", help="processor time, on a busy machine")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    if options.cpu_time:
        saliency.clock = time.process_time
    print(machine("cpu"), flush=True)
    rows = []
    for vocab in [20000] if options.quick else options.vocab:
        rows += compare(build(vocab, options.quick), 2 if options.quick else options.repeats)
    header = ["V", "way", "seconds", "time over ours", "tensors MB (of the logits of all cells)", "process MB",
              "largest difference (nats)", "other ranks"]  # fmt: skip
    print("\n" + table(header, rows))


if __name__ == "__main__":
    main()
