"""What several lessons share: their real model, or the demo model in its place; and how far a student has come."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd
from exercises import lessons, rules
from solved import file, solved

from interp_widgets import load_demo_pair, load_model
from interp_widgets.models import LoadError, Model


def real_model() -> tuple[Model, bool]:
    """SmolLM2, and whether it is: without a copy and without a way to PyPI it is the demo model.

    The sentences of a lesson are about SmolLM2, a pretrained model of 135 million parameters; the demo model runs every
    cell as well, with other numbers.
    """
    try:
        return load_model("smollm2"), True
    except LoadError as error:
        print(
            f"{error}\nThe demo model takes its place: the cells run, and what the text says of SmolLM2 does not hold."
        )
        return load_demo_pair().base, False


def progress() -> pd.DataFrame:
    """A row per lesson with exercises: its minutes, how many are solved on this machine, and how many there are."""
    rows, done = [], solved()
    for path in sorted(Path(__file__).parent.glob("*.ipynb")):
        name = path.stem.partition("_")[2]
        if name in lessons():  # not the copies that a student has made
            minutes = re.findall(r"It takes about (\d+) minutes", path.read_text(encoding="utf-8"))
            there = set(rules(path.stem).EXERCISES)
            rows.append((path.stem, sum(map(int, minutes)), len(there & done.get(name, set())), len(there)))
    kept = file()
    if kept and kept.is_file():
        print(f"Kept in {kept}. Delete that file to begin anew.")
    return pd.DataFrame(rows, columns=["lesson", "minutes", "solved", "of"]).set_index("lesson")
