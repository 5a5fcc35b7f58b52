"""Token decomposition: what each token brought to a prediction."""

from .explorer import TokenDecompositionExplorer

__all__ = ["TokenDecompositionExplorer"]
