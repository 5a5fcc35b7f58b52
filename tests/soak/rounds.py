"""One round of actions again and again: once every tab has been opened, no count of what is alive may grow.

    python -m tests.soak.rounds --rounds 5

A round asks two questions. For each, it opens every panel of the workbench with all its tabs, opens the panel once more
by itself and closes it, and shows every view of two models. Before it, the workbench is closed and opened again from
its session. In the end everything is closed. The exit code is 1 if widgets, Bokeh models, tensors or threads are more
than after the second round: the first opens the tabs, and both load libraries.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import comm

import interp_widgets as iw
from interp_widgets.compute.cache import results
from interp_widgets.widgets.workbench.tools import TOOLS

from .counts import Counts, counted
from .soak import LONGEST, PROMPTS, Silent, wait_for_workers

QUESTIONS = ((PROMPTS[1], " Tokyo"), (PROMPTS[0], " Paris."))


def a_round(bench: iw.Workbench, tools: Sequence[str], questions: Sequence[tuple[str, str]] = QUESTIONS) -> None:
    """One round on an open workbench, without the session."""
    for prompt, response in questions:
        bench.select(prompt=prompt, response=response)
        for name in tools:
            bench.screen.show(name)
            shell = bench.screen[name]
            for tab in getattr(shell, "fitting", ()):
                shell.open_tab(tab)
                rest(bench.screen)
            beside = TOOLS[name].load()(bench)
            rest(beside)
            beside.close()
        for view in ("A", "difference", "beside", "B") if len(bench.screen.models) > 1 else ():
            bench.screen.view = view
            rest(bench.screen)
        for index in (1, 0):
            bench.select(layer=index, head=index, neuron=index, prompt_token=index)
            rest(bench.screen)


def reopened(bench: iw.Workbench, folder: Path, *models: Any) -> iw.Workbench:
    """The workbench of a session that was saved just now; the one before is closed."""
    path = bench.save(folder / "session.npz")
    bench.close()
    return iw.Workbench.load(path, *models)


def rest(shell: Any) -> None:
    """Wait for all runs, and cancel what takes longer than a soak should wait."""
    if not shell.wait(LONGEST):
        shell.cancel()
        shell.wait()


def alive() -> Counts:
    """What is alive once no worker computes."""
    wait_for_workers()
    return counted()


def main(arguments: list[str] | None = None) -> int:
    """Run it; returns 1 if anything has grown after the second round."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tools", nargs="+", choices=tuple(TOOLS), default=list(TOOLS))
    chosen = parser.parse_args(arguments)
    comm.create_comm = Silent
    pair = iw.load_demo_pair()
    models = pair.base, pair.tuned
    print(f"{'':12}{Counts.HEAD}")
    seen: list[Counts] = []

    def show(what: str) -> Counts:
        now = alive()
        print(f"{what:12}{now}", flush=True)
        return now

    show("no panel")
    bench = iw.Workbench(*models, prompt=PROMPTS[0], response=" Paris.")
    with tempfile.TemporaryDirectory() as folder:
        for number in range(chosen.rounds):
            bench = reopened(bench, Path(folder), *models)
            a_round(bench, chosen.tools)
            seen.append(show(f"round {number + 1}"))
    bench.close()
    del bench
    show("closed")
    results.clear()
    show("no results")
    grown = seen[-1].grown_since(seen[1]) if len(seen) > 2 else {}
    if grown:
        print(f"more than after the second round: {grown}\n  by class: {seen[-1].kinds - seen[1].kinds}")
    return int(bool(grown))


if __name__ == "__main__":
    sys.exit(main())
