"""Charts of MLP concepts: explained variance, words of a component, rotation by tuning, neurons on a prompt.

Each chart is made once; `update` shows other results in it. Nothing here runs a model.
"""

from __future__ import annotations

from .layers import LayerOverlap, NoteShares
from .lines import CumulativeVariance, LayerLines, PrincipalAngles
from .neurons import NeuronScatter
from .words import ComponentWords

__all__ = [
    "ComponentWords",
    "CumulativeVariance",
    "LayerLines",
    "LayerOverlap",
    "NeuronScatter",
    "NoteShares",
    "PrincipalAngles",
]
