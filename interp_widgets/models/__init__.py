"""Models: the only code that knows TransformerLens, Hugging Face and architecture names."""

from __future__ import annotations

from .check import SelfCheck, SelfCheckError
from .folder import LoadError
from .hooks import Run
from .loading import ModelPair, load_demo_pair, load_model, load_pair
from .mod.model import ModModel
from .model import Model

__all__ = [
    "LoadError",
    "ModModel",
    "Model",
    "ModelPair",
    "Run",
    "SelfCheck",
    "SelfCheckError",
    "load_demo_pair",
    "load_model",
    "load_pair",
]
