"""Start-up and interaction: import, loading the demo pair, a fresh map, a held result drawn again, cancel.

    python benchmarks/interaction.py

Prints a table of medians beside the limits that the project sets itself. Without a browser: from the call to the last
message handed to the front end.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable

WORDS = "When Mary and John went to the store, John gave a drink to Mary. "


def timed(function: Callable[[], object], repeats: int = 7) -> float:
    """Median seconds of a call."""
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


def import_seconds(module: str) -> float:
    """Median seconds that importing a module takes in a new interpreter, torch being loaded before."""
    code = f"import time, torch; began = time.perf_counter(); import {module}; print(time.perf_counter() - began)"
    found = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True) for _ in range(5)]
    return statistics.median(float(done.stdout) for done in found)


def cancel_seconds(panel: object) -> float:
    """Seconds from Cancel to the end of a run that would go on for long."""
    from interp_widgets import SaliencyExplorer

    assert isinstance(panel, SaliencyExplorer)
    panel.prompt, panel.response = WORDS * 20, WORDS * 6
    panel.method, panel.steps = "integrated_gradients", 512
    panel.go()
    time.sleep(1.0)
    if not panel.busy:
        raise RuntimeError("the run ended before it could be cancelled: make it longer")
    began = time.perf_counter()
    panel.cancel()
    panel.wait(30)
    return time.perf_counter() - began


def main() -> None:
    """Measure and print."""
    rows = [("import interp_widgets, beyond torch", import_seconds("interp_widgets"), 0.3)]

    from interp_widgets import SaliencyExplorer, load_demo_pair, prompt_saliency

    load_demo_pair()  # imports TransformerLens
    rows.append(("load the demo pair with its self-check", timed(load_demo_pair, 5), 1.0))
    model = load_demo_pair().tuned
    prompt_ids = (model.tokens(WORDS * 8))[:61]
    response_ids = model.tokens(WORDS * 4, prepend_bos=False)[:40]
    assert (len(prompt_ids) - model.prepend_bos, len(response_ids)) == (60, 40)
    for method in ("exact", "first_order"):
        work = lambda method=method: prompt_saliency(model, prompt_ids, response_ids, method=method)
        work()
        rows.append((f"fresh map, 60 × 40 tokens, {method}", timed(work), 0.3))
    panel = SaliencyExplorer(model, prompt=WORDS * 4, response=WORDS * 2)
    panel.run()
    thresholds = iter([1.0, 2.0] * 20)
    rows.append(("threshold moved: drawn again", timed(lambda: setattr(panel, "threshold", next(thresholds)), 20), 0.1))
    tokens = iter([1, 2] * 20)
    rows.append(
        ("response token clicked: shaded", timed(lambda: setattr(panel, "response_token", next(tokens)), 20), 0.1)
    )
    rows.append(("known result from the cache", timed(panel.run, 7), 0.1))
    rows.append(("cancel of a long run", cancel_seconds(panel), 0.3))
    panel.close()
    print("| what | median | limit |\n|---|---|---|")
    for what, seconds, limit in rows:
        print(f"| {what} | {1000 * seconds:.0f} ms | {1000 * limit:.0f} ms{'' if seconds <= limit else ' (missed)'} |")
    for thread in threading.enumerate():
        if thread.name.startswith("interp-widgets"):
            thread.join(5)
    left = [thread.name for thread in threading.enumerate() if thread.name.startswith("interp-widgets")]
    print(f"\nthreads left after closing: {len(left)}")


if __name__ == "__main__":
    main()
