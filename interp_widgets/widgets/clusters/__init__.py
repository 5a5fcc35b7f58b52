"""How hidden states cluster by task, over a training and in any model."""

from .explorer import ClusterExplorer

__all__ = ["ClusterExplorer"]
