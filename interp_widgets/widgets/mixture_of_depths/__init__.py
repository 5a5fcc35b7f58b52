"""The Mixture of Depths viewer."""

from .viewer import MoDRoutingViewer

__all__ = ["MoDRoutingViewer"]
