"""The patching panel: which values of a clean run bring the answer back in a corrupted run, for one model or two."""

from __future__ import annotations

from typing import ClassVar

from ..base.stack import Stack
from .circuit import PatchedCircuit
from .heads import PatchedHeads
from .patch_map import PatchMap
from .paths import PatchedPaths
from .prompt_pairs import PatchedPairs


class PatchingPanel(Stack):
    """Which values carry the answer: those of the run of one prompt put into the run of another, one at a time.

    *Map*: layer × position, of the residual stream and of the outputs of attention and MLPs; a click on a cell lists
    the next tokens of both runs and of the patched one. *Heads*: layer × head at one position, of outputs, queries,
    keys, values or whole patterns. *Pairs*: the mean over many pairs of prompts, with intervals and tests; one pair
    has neither. *Circuit*: heads and MLPs added one at a time, and what they keep beside random circuits. *Paths*:
    which heads and MLPs send the answer directly to the logits or to the queries, keys or values of a head. In *Map*
    and *Heads* a drag on the tokens, or clicks and keys, mend which of both prompts belong together.

    ``PatchingPanel(model)``, ``(base, tuned)``, ``(pair)`` or, to share prompt and selection with other widgets,
    ``(workbench)``. Every trait of its panels is a keyword too. `run()` computes the active tab and returns its
    :class:`ActivationPatchingResult`, :class:`CircuitResult` or :class:`PathPatchingResult` (a pair for two models),
    which `result` keeps.

    Source: Locating and Editing Factual Associations in GPT (Meng et al. 2022), section 2; Towards Best Practices of
    Activation Patching (Zhang & Nanda 2024); How to use and interpret activation patching (Heimersheim & Nanda 2024).

    Example:
        >>> panel = PatchingPanel(model, prompt="The capital of France is", corrupted="The capital of Italy is")
        >>> panel.run().recovered["resid_pre"].shape
        (6, 5)
        >>> panel.close()
    """

    title = "Patching"
    panels: ClassVar = {
        "map": PatchMap,
        "heads": PatchedHeads,
        "pairs": PatchedPairs,
        "circuit": PatchedCircuit,
        "paths": PatchedPaths,
    }
