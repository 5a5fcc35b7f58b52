"""Saliency: which prompt tokens a response depends on."""

from .explorer import SaliencyExplorer

__all__ = ["SaliencyExplorer"]
