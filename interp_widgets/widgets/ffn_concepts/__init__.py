"""FFN concepts: what MLPs write, as words, of one model or two."""

from .browser import FFNConceptBrowser

__all__ = ["FFNConceptBrowser"]
