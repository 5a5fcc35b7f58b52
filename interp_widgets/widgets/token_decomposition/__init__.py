"""Token decomposition: what each token contributed to a prediction."""

from .explorer import TokenDecompositionExplorer

__all__ = ["TokenDecompositionExplorer"]
