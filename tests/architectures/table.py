"""`python -m tests.architectures.table` runs the matrix and writes its table (TABLE.md) and its counts (where.md).

With names of architectures after it, it runs only these and keeps the stored verdicts of the others. The verdicts are
stored in verdicts.json; the table is made from them, and the tests compare with them.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
VERDICTS = HERE / "verdicts.json"
TABLE = HERE / "TABLE.md"
WHERE = HERE.parents[1] / "notebooks" / "docs" / "pages" / "where.md"
BEGIN, END = "<!-- architectures:begin -->", "<!-- architectures:end -->"

Row = dict[str, Any]
"""What is known of one architecture: ``auto`` (the backend that `load_model` takes), ``loads``, ``cells`` (by function)
and ``why`` (by function, or ``load``: the sentence that refuses). A cell says right, refused or wrong for the hooked
backend, and behind the stroke for the bridge."""

SIGNS = {"right/right": "●", "right/refused": "h", "refused/right": "b", "refused/refused": "–"}
RAISED = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


def rendered(rows: dict[str, Row]) -> str:
    """The table in Markdown with one footnote for every sentence that refuses."""
    functions = list(next(iter(rows.values()))["cells"])
    notes: dict[str, int] = {}

    def noted(sign: str, why: str | None) -> str:
        return sign if why is None else sign + str(notes.setdefault(why, len(notes) + 1)).translate(RAISED)

    def cell(row: Row, function: str) -> str:
        return noted(SIGNS.get(row["cells"][function], "✗"), row["why"].get(function))

    lines = ["| architecture | `auto` | " + " | ".join(functions) + " |", "|---" * (len(functions) + 2) + "|"]
    for name, row in rows.items():
        cells = [name, noted(row["auto"], row["why"].get("load")), *(cell(row, function) for function in functions)]
        lines.append("| " + " | ".join(cells) + " |")
    lines += ["", *(f"{number}. {why}" for why, number in notes.items())]
    return "\n".join(lines)


def counts(rows: dict[str, Row]) -> str:
    """How many architectures, functions and cells there are, and how many cells are right or wrong."""
    cells = [cell for row in rows.values() for cell in row["cells"].values()]
    wrong = sum("wrong" in cell for cell in cells)
    right = sum("right" in cell and "wrong" not in cell for cell in cells)
    return (
        f"{len(rows)} architectures × {len(next(iter(rows.values()))['cells'])} functions: "
        f"{right} of {len(cells)} cells right, {wrong} wrong, the others refused"
    )


def page(rows: dict[str, Row]) -> str:
    """The text of TABLE.md."""
    legend = (
        "Each cell was compared with plain loops over the transformers model, with random weights and prompts that go "
        "beyond every window and original context: ● right on both backends, h on hooked, b on bridge, – refused, with "
        "the sentence below, ✗ wrong. `auto` is what `load_model` takes. Made by `make architectures`."
    )
    return "\n".join(["# What works on which architecture", "", f"{counts(rows)}.", "", legend, "", rendered(rows), ""])


def section(rows: dict[str, Row]) -> str:
    """The page's part between the markers."""
    link = Path(os.path.relpath(TABLE, WHERE.parent)).as_posix()
    found = f"[{counts(rows)}]({link})."
    return "\n".join([BEGIN, "Compared with plain loops over random models of transformers:", found, END])


def replaced(text: str, new: str) -> str:
    """A page with the part between the markers replaced."""
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    if not rest or not tail:
        raise ValueError(f"the page must hold {BEGIN} and {END}, one after the other")
    return head + new + tail


def general(sentence: str) -> str:
    """A refusal without what is this model's own: class names and measured numbers."""
    sentence = re.sub(r"\b\w+(?:ForCausalLM|LMHeadModel|Config)\b", "the model", sentence)
    sentence = re.sub(r"(?<![\w.])\d+(?:\.\d+)?(?:e[+-]?\d+)?(?![\w])", "…", sentence)
    return sentence.replace("|", "/")


def run(architectures: Iterable[str]) -> dict[str, Row]:
    """The rows of some architectures."""
    from tests.architectures.functions import FUNCTIONS
    from tests.architectures.matrix import BACKENDS, load_verdict, loaded, verdict

    rows: dict[str, Row] = {}
    for name in architectures:
        for backend in ("auto", *BACKENDS):
            _show((name, "load", backend), load_verdict(name, backend))
        auto = load_verdict(name, "auto")
        loads = [load_verdict(name, backend).kind for backend in BACKENDS]
        why = {"load": general(auto.reason)} if auto.kind == "refused" else {}
        cells = {}
        for function in FUNCTIONS:
            verdicts = {backend: verdict(name, function, backend) for backend in BACKENDS}
            for backend, each in verdicts.items():
                _show((name, function, backend), each)
            cells[function] = "/".join(each.kind for each in verdicts.values())
            if cells[function] == "refused/refused" and "right" in loads:
                why[function] = general(verdicts[BACKENDS[loads.index("right")]].reason)
        taken = loaded(name, "auto").backend if auto.kind == "right" else auto.kind
        rows[name] = {"auto": taken, "loads": "/".join(loads), "cells": cells, "why": why}
    return rows


def _show(cell: tuple[str, str, str], shown: Any) -> None:
    """Print a wrong cell and what is wrong: its test fails."""
    if shown.kind == "wrong":
        print(f"{', '.join(cell)}: {shown.reason}", flush=True)


def main() -> None:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from tests.architectures.models import ARCHITECTURES

    known = json.loads(VERDICTS.read_text(encoding="utf8")) if len(sys.argv) > 1 else {}
    known |= run(sys.argv[1:] or ARCHITECTURES)
    rows = {name: known[name] for name in ARCHITECTURES}
    lines = [f"{json.dumps(name)}: {json.dumps(row, ensure_ascii=False)}" for name, row in rows.items()]
    VERDICTS.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf8")
    TABLE.write_text(page(rows), encoding="utf8")
    WHERE.write_text(replaced(WHERE.read_text(encoding="utf8"), section(rows)), encoding="utf8")


if __name__ == "__main__":
    main()
