"""From Cancel to the end of the run, on every panel, at moments spread over a long run on the demo pair.

    python benchmarks/cancel.py [--times 5]

Prints the median and the longest of the waits beside the limit that the project sets itself. A panel whose run ends by
itself before the last moment counts the cancels that were in time.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

LIMIT = 0.3
WORDS = "When Mary and John went to the store, John gave a drink to Mary. "
LONG = WORDS * 12


def panels() -> dict[str, Callable[[Any], Any]]:
    """What opens each panel on the pair, with a question that takes long."""
    from interp_widgets import (
        AblationPanel,
        ConceptBrowser,
        FFNConceptBrowser,
        HeadWordBrowser,
        LogitLensExplorer,
        MoDRoutingViewer,
        SaliencyExplorer,
        TokenDecompositionExplorer,
    )

    texts = {"prompt": LONG, "response": WORDS * 4}
    return {
        "saliency, map, exact": lambda pair: SaliencyExplorer(pair, **texts, method="exact"),
        "saliency, map, integrated": lambda pair: SaliencyExplorer(
            pair, **texts, method="integrated_gradients", steps=256
        ),
        "saliency, check": lambda pair: SaliencyExplorer(pair, **texts, tab="check"),
        "saliency, data set": lambda pair: SaliencyExplorer(pair, tab="data_set"),
        "logit lens": lambda pair: LogitLensExplorer(pair, prompt=LONG),
        "ablation, modules": lambda pair: AblationPanel(pair, prompt=LONG, tab="modules"),
        "ablation, heads": lambda pair: AblationPanel(pair, prompt=LONG, tab="heads"),
        "ablation, text": lambda pair: AblationPanel(pair, prompt=WORDS, tab="text", max_new_tokens=200),
        "token decomposition": lambda pair: TokenDecompositionExplorer(pair, prompt=LONG),
        "head words": lambda pair: HeadWordBrowser(pair, top=400),
        "FFN concepts": lambda pair: FFNConceptBrowser(pair, rank=32),
        "concepts, map": lambda pair: ConceptBrowser(pair),
        "Mixture of Depths, grid": lambda pair: MoDRoutingViewer(pair.base, tab="grid", grid_steps=1000),
        "Mixture of Depths, speed": lambda pair: MoDRoutingViewer(pair.base, tab="speed"),
        "Mixture of Depths, tune": lambda pair: MoDRoutingViewer(pair.base, tab="tune", steps=100_000),
    }


def begin(panel: Any) -> None:
    """Press what starts the long run."""
    if getattr(panel, "tab", "") == "tune":
        panel.current.words.value = ""
        panel.current.tune()
    else:
        getattr(panel, "current", panel).go()


def stopped(panel: Any) -> bool:
    """Whether a tuning has ended, though a mixture is still being made of what was learned."""
    return getattr(panel, "tab", "") == "tune" and panel.current.words.value.startswith("Stopped")


def cancel_seconds(panel: Any, times: int) -> list[float]:
    """Seconds from Cancel to the end, at moments a quarter of a second apart."""
    from interp_widgets.compute.cache import results

    found = []
    for number in range(times):
        results.clear()
        begin(panel)
        end = time.monotonic() + 0.1 + 0.25 * number
        while time.monotonic() < end:
            time.sleep(0.005)
        if not panel.busy:
            break
        began = time.perf_counter()
        panel.cancel()
        while panel.busy and not stopped(panel):
            time.sleep(0.001)
        found.append(time.perf_counter() - began)
        panel.wait(60)
    return found


def main() -> None:
    """Measure and print."""
    from interp_widgets import load_demo_pair

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=int, default=5)
    times = parser.parse_args().times
    pair = load_demo_pair()
    print("| run | cancels | median | longest | |\n|---|---|---|---|---|")
    for name, opened in panels().items():
        panel = opened(pair)
        panel.cancel()
        panel.wait(60)
        found = cancel_seconds(panel, times)
        panel.close()
        if not found:
            print(f"| {name} | 0 | | | the run is too short to be cancelled |", flush=True)
            continue
        middle, longest = 1000 * statistics.median(found), 1000 * max(found)
        missed = "" if max(found) <= LIMIT else "missed"
        print(f"| {name} | {len(found)} | {middle:.0f} ms | {longest:.0f} ms | {missed} |", flush=True)


if __name__ == "__main__":
    main()
