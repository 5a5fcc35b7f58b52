"""No test depends on who is first: waits end by a signal, and their limits are only reached by what hangs."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.waiting import LEAST

ROOT = Path(__file__).resolve().parents[1]
WAITING = {"tests/waiting.py", "tests/e2e/conftest.py", "tests/soak/soak.py"}
"""Where waits are defined, and with them the only sleeps; and what ends a run that stands still."""
CLOCKS = {"monotonic", "perf_counter", "process_time", "time"}
LIMITED = {"wait", "join", "wait_for", "result"}
"""Methods whose first argument is a limit in seconds."""
WITH_TIMEOUT = LIMITED | {"run", "check_call", "check_output", "communicate", "execute", "NotebookClient", "urlopen"}
"""What takes a limit as `timeout`."""


def number(node: ast.expr | None) -> float | None:
    return float(node.value) if isinstance(node, ast.Constant) and type(node.value) in (int, float) else None


def name_of(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def is_event_made_here(node: ast.expr) -> bool:
    """Whether nobody else can know, and so set, the event that is waited for: a sleep by another name."""
    return isinstance(node, ast.Call) and name_of(node.func) == "Event"


def limit_of(call: ast.Call) -> float | None:
    """The seconds after which a call gives up, where they stand in it as a number."""
    named = [keyword.value for keyword in call.keywords if keyword.arg == "timeout"]
    if named and name_of(call.func) in WITH_TIMEOUT:
        return number(named[0])
    method = isinstance(call.func, ast.Attribute) and call.func.attr in LIMITED
    return number(call.args[0]) if method and call.args else None


def timing_faults(source: str) -> list[str]:
    """Sleeps, short limits and measured times in the source of a test."""
    tree, faults = ast.parse(source), list[tuple[int, str]]()
    looked = {id(node) for loop in ast.walk(tree) if isinstance(loop, ast.While) for node in ast.walk(loop.test)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name, limit = name_of(node.func), limit_of(node)
            if name in ("sleep", "wait_for_timeout"):
                faults.append((node.lineno, f"{name}: wait for a signal, or use a helper of tests/waiting.py"))
            elif isinstance(node.func, ast.Attribute) and is_event_made_here(node.func.value):
                faults.append((node.lineno, "an event that nobody sets is a sleep: wait for a signal"))
            elif name == "Timer" and node.args and number(node.args[0]) is not None:
                faults.append((node.lineno, "a timer decides who is first: use a signal"))
            elif limit and limit < LEAST and id(node) not in looked:
                faults.append((node.lineno, f"a limit of {limit:g} seconds fails on a busy machine: use LIMIT"))
        if isinstance(node, ast.Assert):
            faults += [
                (node.lineno, "what a clock shows depends on the machine: assert something else")
                for part in ast.walk(node.test)
                if isinstance(part, ast.Call) and isinstance(part.func, ast.Attribute) and part.func.attr in CLOCKS
                if name_of(part.func.value) == "time"
            ]
    return [f"line {line}: {text}" for line, text in sorted(set(faults))]


@pytest.mark.seconds
def test_no_test_depends_on_time() -> None:
    paths = [ROOT / "conftest.py", *sorted((ROOT / "tests").rglob("*.py"))]
    faults = {
        str(path.relative_to(ROOT)): found
        for path in paths
        if path.relative_to(ROOT).as_posix() not in WAITING
        if (found := timing_faults(path.read_text(encoding="utf8")))
    }
    assert not faults, "\n".join(f"{path} {fault}" for path, found in faults.items() for fault in found)


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import time\ntime.sleep(1)", "sleep"),
        ("nb.page.wait_for_timeout(2000)", "wait_for_timeout"),
        ("threading.Event().wait(0.1)", "nobody sets"),
        ("threading.Timer(0.3, gate.set).start()", "timer"),
        ("assert job.wait(5)", "limit of 5"),
        ("thread.join(timeout=10)", "limit of 10"),
        ("subprocess.run(command, timeout=20)", "limit of 20"),
        ("assert time.monotonic() - began < 2", "clock"),
        ("EndpointAnnotator(address, timeout=0.1)", ""),
        ("assert job.wait(60)", ""),
        ("thread.join()", ""),
        ("assert panel.wait(0)", ""),
        ("', '.join(words)", ""),
        ("while not gate.wait(0.002):\n    check()", ""),
        ("threading.Timer(LIMIT, kill)", ""),
    ],
)
def test_the_check_finds_what_depends_on_time(source: str, found: str) -> None:
    faults = timing_faults(source)
    assert found in faults[0] if found else not faults
