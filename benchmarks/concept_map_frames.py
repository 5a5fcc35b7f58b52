"""The map of 40,000 concepts in a browser: frames drawn per second while a mouse drags it and a wheel zooms it.

    python benchmarks/concept_map_frames.py [--points 40000] [--seconds 5] [--plain]

A real JupyterLab and Chromium without a graphics card, as in the browser tests. Counted: the frames of the page
(requestAnimationFrame), and those among them in which the map was drawn anew. On a busy machine the mouse's events come
too seldom to tell: *inside* drags by events that the page itself makes, one in each frame. `--plain` measures Bokeh's
own drawing.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import time
from typing import Any

import numpy as np
import psutil
from lab_page import lab_page

MADE = """
import numpy as np
from interp_widgets.analysis.concepts import ConceptMap
from interp_widgets.figures.concepts import ConceptMapFigure
from interp_widgets.widgets.views import BokehFigure
rng = np.random.default_rng(0)
kind = rng.integers(0, 200, {points})
xy = rng.normal(size=(200, 2))[kind] * 10 + rng.normal(size=({points}, 2)) * 0.7
chart = ConceptMapFigure(ConceptMap(names=[f"concept {{i}}" for i in range({points})], xy=xy, method="umap", recall=0.5,
                                    groups=[f"group {{k % 12}}" for k in kind]))
{plain}
host = BokehFigure(chart.figure)
host
"""
WATCH = """() => {
    let plot = null;
    const look = view => { if (view.model.name === 'concept_map' && view.frame) plot = view;
        for (const child of view.child_views ?? []) look(child); };
    for (const root of Bokeh.index.roots) look(root);
    window.plot = plot;
    plot.el.scrollIntoView({ block: 'center' });
    window.seen = { frames: [], drawn: [], took: [], moves: 0 };
    for (const kind of ['pointermove', 'wheel']) window.addEventListener(kind, () => window.seen.moves++, true);
    const paint = plot.paint.bind(plot), range = plot.model.x_range;
    let last = null;
    plot.paint = () => {
        const began = performance.now(), at = range.start + ' ' + range.end + ' ' + plot.model.y_range.start;
        paint();
        window.seen.took.push(performance.now() - began);
        if (at !== last) { window.seen.drawn.push(began); last = at; }
    };
    const frame = now => { window.seen.frames.push(now); requestAnimationFrame(frame); };
    requestAnimationFrame(frame);
    const box = plot.canvas_view.el.getBoundingClientRect(), { bbox } = plot.frame;
    return [box.x + bbox.left, box.y + bbox.top, bbox.width, bbox.height];
}"""
INSIDE = """([left, top, width, height, seconds]) => new Promise(done => {
    const x = left + width / 2, y = top + height / 2, end = performance.now() + 1000 * seconds;
    const held = { bubbles: true, composed: true, pointerId: 1, isPrimary: true, buttons: 1, pointerType: 'mouse' };
    let step = 0;
    const move = () => {
        if (performance.now() > end) return done();
        step += 1;
        const clientX = x + 0.3 * width * Math.sin(step / 25), clientY = y + 0.3 * height * Math.sin(step / 18);
        window.plot.canvas_view.events_el.dispatchEvent(new PointerEvent('pointermove', { ...held, clientX, clientY }));
        requestAnimationFrame(move);
    };
    move();
})"""
TAKE = "() => { const seen = window.seen; window.seen = { frames: [], drawn: [], took: [], moves: 0 }; return seen; }"


def busy() -> float:
    """Processor seconds that the browser's processes have taken."""
    found = 0.0
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if "chrom" in process.name():
                times = process.cpu_times()
                found += times.user + times.system
    return found


def told(name: str, seen: dict[str, Any], processor: float) -> str:
    """One line: events, page frames and drawn maps per second, what a map takes to draw and in all."""
    wall = (seen["frames"][-1] - seen["frames"][0]) / 1000
    maps, took = max(1, len(seen["drawn"])), np.array(seen["took"] or [np.nan])
    return (
        f"{name:<7} {seen['moves'] / wall:5.1f} events/s · page {len(seen['frames']) / wall:5.1f} frames/s · map "
        f"{maps / wall:5.1f} frames/s · drawing median {np.median(took):.1f} ms, 95% {np.quantile(took, 0.95):.1f} · "
        f"browser {1000 * processor / maps:.0f} ms of processor per map"
    )


def measured(nb: Any, seconds: float) -> list[str]:
    """Drag with a mouse, then zoom with a wheel, for so many seconds each."""
    page = nb.page
    left, top, width, height = page.evaluate(WATCH)
    middle = (left + width / 2, top + height / 2)
    lines = []
    page.mouse.move(*middle)
    page.mouse.down()
    before = busy()
    page.evaluate(TAKE)
    end, step = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        step += 1
        page.mouse.move(middle[0] + 0.3 * width * math.sin(step / 25), middle[1] + 0.3 * height * math.sin(step / 18))
        page.wait_for_timeout(4)
    seen = page.evaluate(TAKE)
    lines.append(told("drag", seen, busy() - before))
    before = busy()
    page.evaluate(TAKE)
    page.evaluate(INSIDE, [left, top, width, height, seconds])
    seen = page.evaluate(TAKE)
    lines.append(told("inside", seen, busy() - before))
    page.mouse.up()
    page.wait_for_timeout(800)
    page.keyboard.down("Control")
    before = busy()
    page.evaluate(TAKE)
    end, step = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        step += 1
        page.mouse.wheel(0, -30 if (step // 40) % 2 == 0 else 30)
        page.wait_for_timeout(10)
    page.keyboard.up("Control")
    seen = page.evaluate(TAKE)
    lines.append(told("wheel", seen, busy() - before))
    return lines


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--points", type=int, default=40_000)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--plain", action="store_true", help="Bokeh's own drawing, with fewer dots while it moves")
    chosen = parser.parse_args()
    plain = "chart._points.tags = []" if chosen.plain else ""
    with lab_page() as nb:
        nb.make("frames.ipynb", MADE.format(points=chosen.points, plain=plain))
        nb.run_all()
        nb.bokeh_idle()
        nb.page.wait_for_timeout(2000)
        drawn_by = "Bokeh alone" if chosen.plain else "as shipped"
        print(f"{chosen.points:,} points, {drawn_by}; load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
        print("\n".join(measured(nb, chosen.seconds)))


if __name__ == "__main__":
    main()
