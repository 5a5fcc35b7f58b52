"""How near forecasts are: every panel with a cost runs once, then the forecast of larger runs is held against them.

    python benchmarks/forecasts.py

Times are processor seconds of one thread, so that a busy machine changes little. Each panel has run before, which
leaves imports out. "line through zero" is the forecast from the same run with time in proportion to operations.
"""

from __future__ import annotations

import os
import time
from collections.abc import Hashable
from types import SimpleNamespace
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import torch

import interp_widgets as iw
from interp_widgets.compute.memory import Speedometer, speedometer
from interp_widgets.data.word_vectors import demo_word_vectors
from interp_widgets.widgets.base import answers
from interp_widgets.widgets.concepts import directions

SENTENCES = "The Eiffel Tower is located in the city of Paris. One day, Anna saw a dog in the park and took it home. "
TEXT = (SENTENCES * 12).split()
WORDS = [*demo_word_vectors().words]


def text(words: int) -> str:
    return " ".join(TEXT[:words])


def saliency(method: str) -> list[dict[str, Any]]:
    sizes = ((6, 3), (20, 10), (60, 20), (100, 30))
    return [{"prompt": text(n), "response": f" {text(m)}", "method": method} for n, m in sizes]


def prompts(*sizes: int, **options: Any) -> list[dict[str, Any]]:
    return [{"prompt": text(n), **options} for n in sizes]


traced = [{"prompt": text(n), "tab": "tracing", "subject": "Eiffel Tower", "samples": m}
          for n, m in ((10, 2), (10, 10), (60, 4), (60, 10))]  # fmt: skip
concepts = iw.demo_concepts()
CASES: dict[str, tuple[Any, list[dict[str, Any]]]] = {
    "logit lens": (iw.LogitLensExplorer, prompts(6, 20, 60, 150)),
    "saliency, exact": (iw.SaliencyExplorer, saliency("exact")),
    "saliency, first order": (iw.SaliencyExplorer, saliency("first_order")),
    "saliency, integrated gradients": (iw.SaliencyExplorer, saliency("integrated_gradients")),
    "token decomposition": (iw.TokenDecompositionExplorer, prompts(6, 20, 60, 150)),
    "ablation, modules": (iw.AblationPanel, prompts(6, 20, 60, 120, tab="modules")),
    "ablation, heads": (iw.AblationPanel, prompts(6, 20, 60, 120, tab="heads")),
    "causal tracing": (iw.AblationPanel, traced),
    "head words": (iw.HeadWordBrowser, [{"word_list": "own", "words": WORDS[:n]} for n in (200, 1000, 3000)]),
    "FFN components": (iw.FFNConceptBrowser, [{"word_list": "own", "words": WORDS[:n], "rank": k}
                                              for n, k in ((200, 4), (1000, 16), (3000, 32))]),
    "attention patterns": (iw.AttentionExplorer, prompts(6, 20, 60, 150)),
    "known heads": (iw.AttentionExplorer, [{"tab": "find", "length": n} for n in (10, 40, 100)]),
    "FFN neurons": (iw.FFNConceptBrowser, prompts(6, 60, 150, tab="neurons")),
    "concepts, reading": (iw.ConceptBrowser, [{"concepts": concepts[:n], "map_method": "pca"} for n in (6, 20, 60)]),
}  # fmt: skip


def main() -> None:
    """Measure and print."""
    torch.set_num_threads(1)
    clock = SimpleNamespace(monotonic=time.process_time)
    answers.time = directions.time = clock  # type: ignore[attr-defined]
    model, runs, real = iw.load_demo_pair().base, [], speedometer.learn

    def learn(kind: Hashable, device: str, flops: float, seconds: float) -> None:
        real(kind, device, flops, seconds)
        if flops > 0:
            runs.append((flops, seconds))

    speedometer.learn = learn  # type: ignore[method-assign]

    def run(panel_class: Any, options: dict[str, Any]) -> tuple[float, float]:
        panel = panel_class(model, **options)
        panel.wait(600)
        runs.clear()
        panel.run(fresh=True)
        panel.wait(600)
        if panel.status.error:
            raise RuntimeError(panel.status.error)
        panel.close()
        return max(runs)

    trial = Speedometer()
    for _ in range(5):
        trial = max(trial, Speedometer(), key=lambda one: one._trial("cpu"))
    print(f"trial: {trial._trial('cpu'):.3g} operations a second\n")
    print("| | operations | seconds | forecast / seconds | line through zero / seconds |")
    print("|---|---|---|---|---|")
    for name, (panel_class, sizes) in CASES.items():
        first, *others = [run(panel_class, options) for options in sizes]
        speed = Speedometer()
        speed._trials = trial._trials
        speed.learn(name, "cpu", *first)
        print(f"| {name} | {first[0]:.2g} | {first[1]:.3f} | the first run | |")
        for flops, seconds in others:
            ratio, line = speed.seconds(name, "cpu", flops) / seconds, first[1] / first[0] * flops / seconds
            print(f"| | {flops:.2g} | {seconds:.3f} | {ratio:.2f} | {line:.1f} |", flush=True)


if __name__ == "__main__":
    main()
