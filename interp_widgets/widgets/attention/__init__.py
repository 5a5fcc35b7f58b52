"""Attention: where the heads of a model look on a prompt, and which of them are of a known kind."""

from .explorer import AttentionExplorer

__all__ = ["AttentionExplorer"]
