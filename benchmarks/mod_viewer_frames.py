"""The token × route map of a long prompt in a browser: frames while a mouse points, drags and zooms, and clicks.

    python benchmarks/mod_viewer_frames.py [--tokens 500] [--k 6] [--seconds 5]

A real JupyterLab and Chromium without a graphics card, as in the browser tests; `MoDRoutingViewer` on the demo model.
Counted: the frames of the page (requestAnimationFrame), those among them in which the map was drawn anew, and what the
page's own code takes in a frame. *hover*, *drag* and *wheel* are moves of a mouse outside the browser, which come too
seldom on a busy machine to tell; *inside* are moves that the page itself makes, one in each frame. *click* is the time
from the button's release to the frame that shows the token's table, through the kernel.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from lab_page import lab_page

MADE = """
from interp_widgets import MoDRoutingViewer, load_model
base = load_model("demo-base")
panel = MoDRoutingViewer(base, k={k})
ids = base.tokens(" ".join(["The cat sat on the mat and"] * {tokens}), prepend_bos=False)
panel.prompt = base.decode(ids[:{tokens}])
panel.run()
panel
"""
COUNT = """() => {
    const ask = window.requestAnimationFrame.bind(window), clear = CanvasRenderingContext2D.prototype.clearRect;
    const seen = window.seen = { frames: [], work: [], drawn: 0, moves: 0 };
    let drawn = false, spent = 0;
    const timed = work => (...all) => {
        const began = performance.now();
        try { return work(...all); } finally { spent += performance.now() - began; }
    };
    window.requestAnimationFrame = work => ask(timed(work));
    CanvasRenderingContext2D.prototype.clearRect = function (...all) { drawn = true; return clear.apply(this, all); };
    for (const kind of ['pointermove', 'wheel']) window.addEventListener(kind, () => seen.moves++, true);
    const frame = now => {
        seen.frames.push(now);
        if (drawn) { seen.drawn++; seen.work.push(spent); }
        drawn = false; spent = 0;
        ask(frame);
    };
    ask(frame);
}"""
TAKE = """() => {
    const { seen } = window, found = { ...seen, frames: [...seen.frames], work: [...seen.work] };
    seen.frames.length = 0; seen.work.length = 0; seen.drawn = 0; seen.moves = 0;
    return found;
}"""
INSIDE = """([seconds, buttons]) => new Promise(done => {
    const top = window.map, box = top.getBoundingClientRect(), end = performance.now() + 1000 * seconds;
    const x = box.x + box.width / 2, y = box.y + 30, all = { bubbles: true, pointerId: 1, isPrimary: true, buttons };
    const send = (kind, clientX) => top.dispatchEvent(new PointerEvent(kind, { ...all, clientX, clientY: y }));
    let step = 0;
    if (buttons) send('pointerdown', x);
    const move = () => {
        if (performance.now() > end) { send('pointerup', x); return done(); }
        step += 1;
        send('pointermove', x + 0.3 * box.width * Math.sin(step / 25));
        requestAnimationFrame(move);
    };
    move();
})"""
CLICKED = """() => {
    const [caption] = [...document.querySelectorAll('.iw-table-caption')].filter(one => one.offsetParent);
    window.answered = [];
    let released = 0;
    window.addEventListener('pointerup', () => { released = performance.now(); }, true);
    new MutationObserver(() => requestAnimationFrame(() => window.answered.push(performance.now() - released)))
        .observe(caption, { childList: true, characterData: true, subtree: true });
}"""


def told(name: str, seen: dict[str, Any]) -> str:
    """One line: moves, page frames and drawn maps per second, the time between frames, and what drawing took."""
    gaps, work = np.diff(seen["frames"]), np.array(seen["work"] or [np.nan])
    wall = (seen["frames"][-1] - seen["frames"][0]) / 1000
    return (
        f"{name:<12} {seen['moves'] / wall:5.1f} moves/s · map {seen['drawn'] / wall:5.1f} of "
        f"{len(seen['frames']) / wall:5.1f} frames/s · frame median {np.median(gaps):5.1f} ms, 95% "
        f"{np.quantile(gaps, 0.95):5.1f} · drawing median {np.median(work):.1f} ms, 95% {np.quantile(work, 0.95):.1f}"
    )


def moved(page: Any, seconds: float, step: Callable[[int], None]) -> dict[str, Any]:
    """What the page saw while `step` was made over and over."""
    page.evaluate(TAKE)
    end, count = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        count += 1
        step(count)
    found: dict[str, Any] = page.evaluate(TAKE)
    return found


def measured(nb: Any, seconds: float) -> list[str]:
    """Point, zoom, drag, then click tokens."""
    page = nb.page
    top = page.locator("canvas.iw-top:visible").first
    top.evaluate("top => { window.map = top; top.scrollIntoView({ block: 'center' }); }")
    page.evaluate(COUNT)
    box = top.bounding_box()
    x, y, width = box["x"] + box["width"] / 2, box["y"] + 30, box["width"]

    def point(count: int) -> None:
        page.mouse.move(x + 0.3 * width * math.sin(count / 25), y)
        page.wait_for_timeout(4)

    def turn(count: int) -> None:
        page.mouse.wheel(0, -30 if (count // 20) % 2 == 0 else 30)
        page.wait_for_timeout(10)

    def inside(name: str, buttons: int) -> str:
        page.evaluate(TAKE)
        page.evaluate(INSIDE, [seconds, buttons])
        return told(name, page.evaluate(TAKE))

    lines = [told("hover", moved(page, seconds, point)), inside("hover inside", 0)]
    page.mouse.move(x, y)
    page.keyboard.down("Control")
    lines.append(told("wheel", moved(page, seconds, turn)))
    for _ in range(12):
        page.mouse.wheel(0, -60)
        page.wait_for_timeout(20)
    page.keyboard.up("Control")
    page.mouse.down()
    lines.append(told("drag", moved(page, seconds, point)))
    page.mouse.up()
    page.mouse.move(2, 2)
    lines.append(inside("drag inside", 1))
    page.evaluate(CLICKED)
    strip = page.locator(".iw-strip:visible .iw-tok")
    for place in range(0, 40, 2):
        strip.nth(place).click()
        page.wait_for_timeout(400)
    waits = np.array(page.evaluate("() => window.answered"))
    lines.append(f"click        {len(waits)} answers · median {np.median(waits):.0f} ms, slowest {waits.max():.0f}")
    return lines


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=500)
    parser.add_argument("--k", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=5)
    chosen = parser.parse_args()
    with lab_page() as nb:
        nb.make("frames.ipynb", MADE.format(tokens=chosen.tokens, k=chosen.k))
        nb.run_all()
        nb.page.wait_for_timeout(2000)
        shape = nb.py("panel['route'].heat.shape")
        print(f"map of {shape[0]} × {shape[1]}; load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
        print("\n".join(measured(nb, chosen.seconds)))


if __name__ == "__main__":
    main()
