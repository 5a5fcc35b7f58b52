"""Concepts: directions in the residual stream, their quality, projections of a prompt on them, and steering."""

from .browser import ConceptBrowser

__all__ = ["ConceptBrowser"]
