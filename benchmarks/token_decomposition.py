"""Token decomposition against a loop over source tokens: time, memory and error, on random models.

    python benchmarks/token_decomposition.py                            # both models, 64 and 128 tokens (half an hour)
    python benchmarks/token_decomposition.py --threads 1 --cpu-time     # on a machine that does other things too
    python benchmarks/token_decomposition.py --quick                    # one small size, seconds

The parts of the last position's residual stream at every layer, in float32. Rivals run interleaved in one process on
the same HookedTransformer and ids; a cell is the median of their ratios. All freeze the same pass:

- *loop*: one source token at a time through all layers at all positions, as the equations are written.
- *whole tensor*: all sources at once, every part kept: (layers + 1, positions, positions, d_model).
- *parts*: ``decompose_tokens`` without a lens (none of the others has one); *one logit*: ``decompose_logit``.

What would take minutes is run on sources spread evenly and scaled up: marked ``~``. *Tensors* is the most that tensors
hold at one time by PyTorch's own record, also as a share of the whole tensor of parts, *process* the growth of the
resident memory at its peak.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import saliency
import torch
from logit_lens import tensor_megabytes
from saliency import Outcome, Timing, hf_model, machine, measure, spread, table
from torch import Tensor

warnings.simplefilter("ignore")

TARGET = 77
PATIENCE = 20.0
"""Seconds after which a rival is run on a sample only."""


@dataclass
class Problem:
    """One model and one text."""

    name: str
    model: Any
    ids: list[int]

    @property
    def hf(self) -> Any:
        """Whose device `saliency.measure` looks at."""
        return self.model

    @property
    def whole(self) -> float:
        """Megabytes of all parts of all positions at all layers."""
        return (self.model.n_layers + 1) * len(self.ids) ** 2 * self.model.d_model * 4 / 2**20

    def cache(self) -> Any:
        """What a pass gave, every value at every hook."""
        return self.model.tl_model.run_with_cache(torch.tensor([self.ids], device=self.model.device))[1]


def layer(p: Problem, cache: Any, index: int, x: Tensor) -> Tensor:
    """One block with patterns, scales and slopes frozen, on parts (..., positions, d_model), as the equations say."""
    block, place = p.model.tl_model.blocks[index], f"blocks.{index}."
    scale1, scale2 = cache[f"{place}ln1.hook_scale"][0], cache[f"{place}ln2.hook_scale"][0]
    inside = (x - x.mean(-1, keepdim=True)) / scale1 * block.ln1.w
    value = torch.einsum("...td,hde->...hte", inside, block.attn.W_V)
    read = cache[f"{place}attn.hook_pattern"][0] @ value
    mid = x + torch.einsum("...hte,hed->...td", read, block.attn.W_O)
    inside = (mid - mid.mean(-1, keepdim=True)) / scale2 * block.ln2.w
    slope = cache[f"{place}mlp.hook_post"][0] / cache[f"{place}mlp.hook_pre"][0]
    return mid + (inside @ block.mlp.W_in * slope) @ block.mlp.W_out


@torch.no_grad()
def loop(p: Problem, sample: int) -> Outcome:
    """(layers + 1, sources, d_model) parts of the last position, one source after the other."""
    begin = saliency.clock()
    cache, layers = p.cache(), p.model.n_layers
    start = cache["blocks.0.hook_resid_pre"][0]
    once = saliency.clock() - begin
    chosen = spread(len(p.ids), sample)
    parts = np.full((layers + 1, *start.shape), np.nan, dtype=np.float32)
    for source in chosen:
        x = torch.zeros_like(start)
        x[source] = start[source]
        parts[0, source] = x[-1].cpu().numpy()
        for index in range(layers):
            x = layer(p, cache, index, x)
            parts[index + 1, source] = x[-1].cpu().numpy()
    return parts, len(p.ids) / len(chosen), once


@torch.no_grad()
def whole_tensor(p: Problem, sample: int) -> Outcome:
    """Decomposes all sources at once and keeps every part."""
    cache, count = p.cache(), len(p.ids)
    start = cache["blocks.0.hook_resid_pre"][0]
    everything = start.new_zeros(p.model.n_layers + 1, count, count, start.shape[1])
    everything[0, range(count), range(count)] = start
    for index in range(p.model.n_layers):
        everything[index + 1] = layer(p, cache, index, everything[index])
    return everything[:, :, -1].cpu().numpy(), 1.0, 0.0


def parts(p: Problem, sample: int) -> Outcome:
    from interp_widgets.analysis.token_decomposition import decompose_tokens

    return decompose_tokens(p.model, p.ids, lens=None).parts, 1.0, 0.0


def one_logit(p: Problem, sample: int) -> Outcome:
    from interp_widgets.analysis.token_decomposition import decompose_logit

    return decompose_logit(p.model, p.ids, TARGET).share, 1.0, 0.0


RIVALS: dict[str, Callable[[Problem, int], Outcome]] = {
    "loop": loop,
    "whole tensor": whole_tensor,
    "parts": parts,
    "one logit": one_logit,
}


def compare(p: Problem, repeats: int) -> list[list[str]]:
    parts(p, 0)  # the first run compares the read-out with the model's own and hashes the weights
    begin = saliency.clock()
    loop(p, 1)
    fits = int(PATIENCE / (saliency.clock() - begin))
    samples = {name: len(p.ids) if name != "loop" or fits >= len(p.ids) else max(4, fits) for name in RIVALS}
    found: dict[str, list[Timing]] = {name: [] for name in RIVALS}
    for _ in range(repeats):
        for name, rival in RIVALS.items():
            found[name].append(measure(rival, p, samples[name]))  # type: ignore[arg-type]
    return [row(p, name, found, samples[name]) for name in RIVALS]


def row(p: Problem, name: str, found: dict[str, list[Timing]], sample: int) -> list[str]:
    timings = found[name]
    seconds = statistics.median(t.seconds for t in timings)
    faster = statistics.median(a.seconds / b.seconds for a, b in zip(found["loop"], timings, strict=True))
    cuda = p.model.device.type == "cuda"
    held = timings[-1].megabytes if cuda else tensor_megabytes(lambda: RIVALS[name](p, sample))
    mark = "~" if timings[0].sampled or found["loop"][0].sampled else ""
    cells = [
        p.name,
        str(len(p.ids)),
        name,
        ("~" if timings[0].sampled else "") + f"{seconds:.2f}",
        f"{mark}{faster:.1f}",
    ]
    cells += [f"{held:,.1f} ({100 * held / p.whole:.1f} %)", f"{statistics.median(t.megabytes for t in timings):,.0f}"]
    cells.append(f"{error(p, name, found):.0e}")
    print(*cells, sep=" | ", flush=True)
    return cells


def error(p: Problem, name: str, found: dict[str, list[Timing]]) -> float:
    """Largest difference to the loop, against the largest number, where the loop was run."""
    reference, own = found["loop"][-1].matrix, found[name][-1].matrix
    if reference is None or own is None:
        return float("nan")
    if name == "one logit":
        reference = on_target(p, reference)
    known = np.isfinite(reference)
    return float(np.abs(own - reference)[known].max() / np.abs(reference[known]).max())


def on_target(p: Problem, reference: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """(sources,) the last layer's parts on the target's unembedding, by the final norm's scale."""
    tl_model = p.model.tl_model
    cache = p.cache()
    last = torch.from_numpy(reference[-1]).to(p.model.device)
    normed = (last - last.mean(-1, keepdim=True)) / cache["ln_final.hook_scale"][0, -1] * tl_model.ln_final.w
    return (normed @ tl_model.W_U[:, TARGET]).detach().cpu().numpy()


def run(names: Sequence[str], sizes: Sequence[int], repeats: int, device: str) -> None:
    from interp_widgets.models import load_model

    print(machine(device), flush=True)
    rows = []
    for name in names:
        model = load_model(hf_model(name), device=device, backend="hooked")
        for tokens in sizes:
            ids = torch.randint(0, 50256, (tokens,), generator=torch.Generator().manual_seed(7)).tolist()
            rows += compare(Problem(name, model, ids), repeats)
    header = ["model", "tokens", "way", "seconds", "loop's time over it", "tensors MB (of all parts)", "process MB",
              "error"]  # fmt: skip
    print("\n" + table(header, rows), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one small size, to see that it runs")
    parser.add_argument("--models", nargs="+", default=["mini", "small"], choices=["mini", "small"])
    parser.add_argument("--sizes", nargs="+", type=int, default=[64, 128], help="tokens")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--threads", type=int, default=None, help="of torch; default: all cores")
    parser.add_argument("--cpu-time", action="store_true", help="processor time, on a busy machine")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    if options.cpu_time:
        saliency.clock = time.process_time
    if options.quick:
        return run(["mini"], [16], 1, options.device)
    run(options.models, options.sizes, options.repeats, options.device)


if __name__ == "__main__":
    main()
