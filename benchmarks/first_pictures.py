"""What a person with a pretrained model waits for: the load, then each panel's first picture and its whole result.

    python benchmarks/first_pictures.py               # smollm2
    python benchmarks/first_pictures.py gemma3-270m
    python benchmarks/first_pictures.py smollm2 400   # saliency, attention and lens on a chat of about 400 tokens

Each panel opens once, in this order, in a process that has just loaded the model, on *The capital of France is*; wall
seconds from its constructor on an otherwise idle machine, processor seconds of all threads, and the process's memory at
its peak. "floor" is the time that the operations that the panel counts take at the speed at which this machine
multiplies two matrices of 768 × 768.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Hashable
from typing import Any

import psutil
import torch

import interp_widgets as iw
from interp_widgets.compute.memory import speedometer
from interp_widgets.widgets.base.answers import COMPARING

STARTED = time.time() - psutil.Process().create_time()
"""Seconds that Python and the imports took."""
PROMPT, RESPONSE = "The capital of France is", " Paris"
PANELS: dict[str, tuple[Any, dict[str, Any]]] = {
    "logit lens": (iw.LogitLensExplorer, {"prompt": PROMPT}),
    "saliency": (iw.SaliencyExplorer, {"prompt": PROMPT, "response": RESPONSE}),
    "attention patterns": (iw.AttentionExplorer, {"prompt": PROMPT}),
    "heads": (iw.AblationPanel, {"prompt": PROMPT, "tab": "heads"}),
    "decomposition": (iw.TokenDecompositionExplorer, {"prompt": PROMPT}),
    "modules": (iw.AblationPanel, {"prompt": PROMPT, "tab": "modules"}),
    "patching": (iw.PatchingPanel, {}),
    "tracing": (iw.AblationPanel, {"prompt": PROMPT, "tab": "tracing", "subject": "France"}),
}


def long_chat(model: Any, tokens: int) -> list[dict[str, str]]:
    """A chat of about so many tokens: the minutes of a meeting, and a question about them."""
    minutes = (
        "The committee met on Tuesday to discuss the new rules of the harbour. Some members said that the fees were "
        "too high. Others asked for a longer notice before any change. The mayor promised to answer all questions in "
        "writing. "
    )
    times = round(tokens / (len(model.tokens(minutes * 10)) / 10))
    return [{"role": "user", "content": minutes * times + "What did the mayor promise?"}]


def peak_gb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def speed() -> float:
    """Floating-point operations per second of a matrix product."""
    matrix, best = torch.ones(768, 768), float("inf")
    for _ in range(20):
        began = time.perf_counter()
        torch.mm(matrix, matrix)
        best = min(best, time.perf_counter() - began)
    return 2 * 768**3 / best


def opened(model: Any, panel: Any, options: dict[str, Any]) -> tuple[float, float, float, float]:
    """Seconds to the first picture and to the whole result, processor seconds, and operations of the forecast."""
    done: list[float] = []
    learn = speedometer.learn

    def counted(kind: Hashable, device: str, flops: float, seconds: float) -> None:
        if kind != COMPARING:  # many small passes, in whose place the count is of the time that they take
            done.append(flops)
        learn(kind, device, flops, seconds)

    speedometer.learn = counted  # type: ignore[method-assign]
    began, processor = time.perf_counter(), time.process_time()
    shown = panel(model, **options)
    if not shown.busy and not shown.current_panel.results:
        shown.go()
    try:
        while shown.busy and not shown.current_panel.results:  # what is finished so far is a picture too
            time.sleep(0.02)
        first = time.perf_counter() - began
        if not shown.wait(600):
            raise RuntimeError(f"{panel.__name__} did not end within ten minutes")
        whole, used = time.perf_counter() - began, time.process_time() - processor
        if not shown.current_panel.results:
            raise RuntimeError(f"{panel.__name__} shows nothing: {shown.status.error or shown.status.state}")
    finally:
        shown.close()
        speedometer.learn = learn  # type: ignore[method-assign]
    return first, whole, used, sum(done)


def main() -> None:
    name = sys.argv[1] if len(sys.argv) > 1 else "smollm2"
    began = time.perf_counter()
    model = iw.load_model(name)
    loaded = time.perf_counter() - began
    print(f"{name}: imports {STARTED:.1f} s, load {loaded:.1f} s, {torch.get_num_threads()} threads")
    print(f"after the load {peak_gb():.1f} GB at the peak, weights {model.parameter_count * 4 / 2**30:.2f} GiB")
    rate = speed()
    print(f"{rate / 1e9:.0f} GFLOP/s\n\n| panel | first picture, s | whole, s | processor, s | floor, s | peak, GB |")
    print("|---|---|---|---|---|---|")
    panels = PANELS
    if len(sys.argv) > 2:
        prompt = {"prompt": long_chat(model, int(sys.argv[2]))}
        answer = prompt | {"response": "The mayor promised to answer all questions in writing."}
        panels = {
            "logit lens": (iw.LogitLensExplorer, prompt),
            "saliency": (iw.SaliencyExplorer, answer),
            "attention patterns": (iw.AttentionExplorer, prompt),
        }
    for label, (panel, options) in panels.items():
        first, whole, used, flops = opened(model, panel, options)
        print(
            f"| {label} | {first:.1f} | {whole:.1f} | {used:.1f} | {flops / rate:.2f} | {peak_gb():.1f} |", flush=True
        )


if __name__ == "__main__":
    main()
