"""The logit lens explorer."""

from .explorer import LogitLensExplorer

__all__ = ["LogitLensExplorer"]
