"""How alike layers are: of two models, and of models with others that were tuned on one task each."""

from .explorer import LayerSimilarityExplorer as LayerSimilarityExplorer
