"""The attention pattern of one head on a long prompt, drawn.

    python benchmarks/attention.py            # 2,000 tokens
    python benchmarks/attention.py 500

`AttentionExplorer` on the demo model, whose context is 2,048 here, in a real JupyterLab and Chromium without a graphics
card, as in the browser tests; one thread. *patterns*: of all heads, computed. *kernel*: from the choice of another head
until its map is handed to the page. *page*: from the click on a thumbnail to the frame after the one that shows that
head's map. Memory is the peak beyond what the kernel held before. Medians of 9 heads.
"""

from __future__ import annotations

import os
import statistics
import sys

from lab_page import lab_page

MADE = """
import statistics, time
from pathlib import Path
import torch
from interp_widgets import AttentionExplorer, load_model
torch.set_num_threads(1)
demo = load_model("demo-base", backend="bridge")
inside = demo.tl_model.original_model
inside.config.max_position_embeddings = 2048  # rotary: no weights belong to positions
model = load_model(inside, tokenizer=demo.tokenizer)
text = "The cat sat on the mat and the dog lay by the door. " * 400
panel = AttentionExplorer(model, prompt="The cat sat", live_seconds=1e9)
panel.wait()

def held(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) / 1024

def measured(work):
    Path("/proc/self/clear_refs").write_text("5")
    before, wall, processor = held("VmRSS"), time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - processor, held("VmHWM") - before

def compute():
    panel.prompt = model.decode(model.tokens(text, prepend_bos=False)[:{tokens} - 1])
    panel.run()

def choose(layer, head):
    def work():
        with panel["patterns"].batch_changes():
            panel.layer, panel.head = layer, head
    return work

computed = measured(compute)
chosen = [statistics.median(one) for one in zip(*[measured(choose(at % 6, at // 6)) for at in range(2, 11)])]
size = len(panel.result.tokens), panel.result.patterns.nbytes / 2**20
panel
"""
CLICK = """([index, name]) => new Promise(done => {
    const shown = () => [...document.querySelectorAll('.iw-title')].some(
        title => title.offsetParent && title.textContent.includes(name));
    const began = performance.now();
    document.querySelectorAll('.iw-thumb')[index].click();
    const look = () => requestAnimationFrame(
        () => shown() ? requestAnimationFrame(() => done(performance.now() - began)) : look());
    look();
})"""


def main() -> None:
    """Measure and print."""
    tokens = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    with lab_page() as nb:
        nb.make("attention.ipynb", MADE.replace("{tokens}", str(tokens)))
        nb.run_all()
        nb.page.locator(".iw-thumb:visible").nth(35).wait_for()
        page = []
        for at in range(9):
            layer, head = at % 6, 5 - at // 6
            page.append(nb.page.evaluate(CLICK, [6 * layer + head, f"Head {layer}.{head}, query"]))
            nb.page.wait_for_timeout(300)
        (n, size), computed, chosen = nb.py("size"), nb.py("computed"), nb.py("chosen")
    print(f"{n} tokens, patterns of {size:.0f} MB; load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    for name, (wall, processor, memory) in {"patterns": computed, "kernel": chosen}.items():
        print(f"{name:9} {wall:.2f} s, {processor:.2f} s of the processor, {memory:.0f} MB")
    print(f"page      {statistics.median(page) / 1000:.2f} s, slowest {max(page) / 1000:.2f} s")


if __name__ == "__main__":
    main()
