"""Clusters of hidden states by task, over a training run and in any model."""

from .explorer import ClusterExplorer

__all__ = ["ClusterExplorer"]
