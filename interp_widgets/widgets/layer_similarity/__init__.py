"""Similarity of layers: between two models, and between models and control models tuned on one task each."""

from .explorer import LayerSimilarityExplorer as LayerSimilarityExplorer
