"""Models: the only code that knows TransformerLens, Hugging Face and architecture names."""

from __future__ import annotations

from .edits import LayerEdit, ModelEdit, StreamEdit
from .errors import LoadError
from .hooks import Run
from .loading import load_model, register_opener
from .mixture_of_depths.model import ModModel
from .mixture_of_depths.opening import MixtureFolders
from .model import Model
from .pair import ModelPair, load_demo_pair, load_pair
from .profile import ModelProfile
from .self_check import SelfCheck, SelfCheckError

__all__ = [
    "LayerEdit",
    "LoadError",
    "ModModel",
    "Model",
    "ModelEdit",
    "ModelPair",
    "ModelProfile",
    "Run",
    "SelfCheck",
    "SelfCheckError",
    "StreamEdit",
    "load_demo_pair",
    "load_model",
    "load_pair",
]

register_opener(MixtureFolders())  # Mixture of Depths plugs into `load_model` here and nowhere else
