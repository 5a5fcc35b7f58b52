"""What the analyses take on a GPU at the shape of a 7-billion LLaMA in bfloat16, random weights.

    python benchmarks/gpu.py                           # cuda, 7 billion, all rows (three minutes on an H200)
    python benchmarks/gpu.py saliency lens             # rows whose names hold one of these words
    python benchmarks/gpu.py --shape small --device cpu --repeats 1          # to see that it runs

Each row runs once to warm up, which compares the equations with the model where they are new, then three times:
seconds are the median, memory the peak of tensors beyond it. *passes*: the time in plain passes of the transformers
model over the same text (one sequence, logits of all positions). *of peak*: the operations that the row has to do, by
its own count, over those that the device does in this time in a matrix product of 8,192 × 8,192 in the model's type.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from saliency import random_ids, table
from transformers import LlamaConfig, LlamaForCausalLM

import interp_widgets as iw
from interp_widgets.analysis.ablation.maps import ablation_cost
from interp_widgets.analysis.ablation.tracing import causal_trace_cost
from interp_widgets.analysis.hidden_states import last_states_cost
from interp_widgets.analysis.logit_lens.lens import logit_lens_cost
from interp_widgets.analysis.patching.activation import activation_patching_cost
from interp_widgets.analysis.saliency.attribution import saliency_cost
from interp_widgets.analysis.token_decomposition.decomposition import decomposition_cost
from interp_widgets.models.generation import generate_ids, stepper

SHAPES: dict[str, dict[str, int]] = {
    "7b": {},
    "1b": {
        "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_key_value_heads": 8,
        "vocab_size": 128_256,
    },
    "small": {
        "hidden_size": 256, "intermediate_size": 688, "num_hidden_layers": 6, "num_attention_heads": 8,
        "num_key_value_heads": 8, "vocab_size": 5000,
    },
}  # fmt: skip


def synchronize(device: str) -> None:
    if device != "cpu":
        torch.accelerator.synchronize(device)


def timed(work: Callable[[], Any], device: str, repeats: int) -> tuple[float, float]:
    """Median seconds of a call after one that warms up, and the seconds of that one."""
    seconds = []
    for _ in range(repeats + 1):
        synchronize(device)
        start = time.perf_counter()
        work()
        synchronize(device)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[1:]), seconds[0]


def peak_rate(device: str, dtype: torch.dtype) -> float:
    """Floating-point operations per second of a large matrix product."""
    side = 8192 if device != "cpu" else 1024
    a = torch.randn(side, side, device=device).to(dtype)
    seconds, _ = timed(lambda: [a @ a for _ in range(5)], device, 3)
    return 5 * 2 * side**3 / seconds


def rows(model: iw.Model) -> dict[str, tuple[int, Callable[[], Any], Callable[[], Any] | None]]:
    """By name: tokens of a plain pass to compare with, what is run, and the count of its operations if it has one."""
    prompt, response = random_ids(200, 200, model.d_vocab)
    short, target = prompt[:32], response[0]
    other = [short[0], response[1], *short[2:]]

    def saliency(method: Any, n: int, m: int) -> tuple[int, Callable[[], Any], Callable[[], Any]]:
        return (
            n + m,
            lambda: iw.prompt_saliency(model, prompt[:n], response[:m], method=method),
            lambda: saliency_cost(model, n, m, method),
        )

    def patch(sites: Any, method: Any = "exact") -> tuple[int, Callable[[], Any], Callable[[], Any] | None]:
        return (
            32,
            lambda: iw.activation_patching(model, short, other, target, foil=response[2], sites=sites, method=method),
            (lambda: activation_patching_cost(model, 33, sites)) if method == "exact" else None,
        )

    def writing() -> Any:
        return generate_ids(
            stepper(model), short, device=model.device, max_new_tokens=50, temperature=0, seed=0, stop=(), check=None,
            on_token=None,
        )  # fmt: skip

    prompts = [random_ids(13, 1, model.d_vocab)[0] for _ in range(1000)]
    return {
        "saliency exact, 200 × 200": saliency("exact", 200, 200),
        "saliency first order, 200 × 200": saliency("first_order", 200, 200),
        "saliency integrated gradients, 32 × 32": saliency("integrated_gradients", 32, 32),
        "logit lens, 200 tokens": (200, lambda: iw.logit_lens(model, prompt), lambda: logit_lens_cost(model, 201)),
        "attention patterns, 200 tokens": (200, lambda: iw.attention_patterns(model, prompt), None),
        "modules, 4 kinds, 32 tokens": (
            32, lambda: iw.ablate_modules(model, short, target), lambda: ablation_cost(model, 33),
        ),
        "heads, 32 tokens": (32, lambda: iw.ablate_heads(model, short, target), None),
        "neurons of a layer in the middle, 32 tokens": (
            32, lambda: iw.ablate_neurons(model, short, target, layer=model.n_layers // 2), None,
        ),
        "tracing, 32 tokens": (
            32, lambda: iw.causal_trace(model, short, (4, 7), target), lambda: causal_trace_cost(model, 33, first=5),
        ),
        "patching stream, attention, MLP; 32 tokens": patch(("resid_pre", "attn", "mlp")),
        "patching five sites, estimated": patch(("resid_pre", "attn", "mlp", "head", "pattern"), "attribution"),
        "decomposition, 128 tokens": (
            128, lambda: iw.decompose_tokens(model, prompt[:128]), lambda: decomposition_cost(model, 129),
        ),
        "decomposition of one logit, 200 tokens": (200, lambda: iw.decompose_logit(model, prompt, target), None),
        "states of 1,000 prompts of 13": (
            13, lambda: iw.last_states(model, prompts, layer=model.n_layers // 2),
            lambda: last_states_cost(model, [14] * 1000, model.n_layers // 2),
        ),
        "50 tokens written": (32, writing, None),
        "patching five sites, 32 tokens": patch(("resid_pre", "attn", "mlp", "head", "pattern")),
    }  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="only rows whose names hold one of these words")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--shape", default="7b", choices=SHAPES)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    dtype = torch.bfloat16
    default = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(given.device):
            hf = LlamaForCausalLM(LlamaConfig(**SHAPES[given.shape], max_position_embeddings=2048)).eval()  # type: ignore[arg-type]
    finally:
        torch.set_default_dtype(default)
    start = time.perf_counter()
    model = iw.load_model(hf, device=given.device, dtype=dtype)
    print(model, f"loaded in {time.perf_counter() - start:.1f} s", model.self_check.summary(), flush=True)
    start = time.perf_counter()
    print(f"weights {model.weight_hash[:12]}, hashed in {time.perf_counter() - start:.1f} s")
    on_gpu = given.device != "cpu"
    if on_gpu:
        print(torch.cuda.get_device_name() if given.device.startswith("cuda") else given.device)
    rate = peak_rate(given.device, dtype)
    print(f"torch {torch.__version__}, {rate / 1e12:.1f} TFLOP/s in a matrix product\n")
    plain: dict[int, float] = {}
    header = ["analysis", "seconds", "first time", "plain pass, s", "passes", "of peak", "peak GB"]
    print(table(header, []), flush=True)
    for name, (tokens, work, cost) in rows(model).items():
        if given.words and not any(word in name for word in given.words):
            continue
        if tokens not in plain:
            ids = torch.tensor([random_ids(tokens, 1, model.d_vocab)[0]], device=given.device)
            with torch.no_grad():
                plain[tokens], _ = timed(lambda ids=ids: hf(ids), given.device, 5)  # type: ignore[misc]
        if on_gpu:
            synchronize(given.device)
            torch.accelerator.reset_peak_memory_stats(given.device)
            before = torch.accelerator.memory_allocated(given.device)
        try:
            seconds, first = timed(work, given.device, given.repeats)
        except Exception as error:  # one row that fails leaves the others
            print(f"| {name} | {type(error).__name__}: {str(error)[:300]} |", flush=True)
            continue
        peak = (torch.accelerator.max_memory_allocated(given.device) - before) / 1e9 if on_gpu else float("nan")
        share = f"{cost().flops / rate / seconds:.0%}" if cost else ""
        numbers = [f"{seconds:.3g}", f"{first:.3g}", f"{plain[tokens]:.4f}", f"{seconds / plain[tokens]:,.0f}", share]
        print("| " + " | ".join([name, *numbers, f"{peak:.1f}"]) + " |", flush=True)


if __name__ == "__main__":
    main()
