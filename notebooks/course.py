"""What several lessons share: the real model that they are about, or the demo model where it cannot be had."""

from __future__ import annotations

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
