"""Saliency: which prompt tokens a response hangs on."""

from .explorer import SaliencyExplorer

__all__ = ["SaliencyExplorer"]
