"""FFN concepts: what MLPs write, as words, for one model or two."""

from .browser import FFNConceptBrowser

__all__ = ["FFNConceptBrowser"]
