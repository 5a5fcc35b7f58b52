"""The viewer of mixtures of depths."""

from .viewer import MoDRoutingViewer

__all__ = ["MoDRoutingViewer"]
