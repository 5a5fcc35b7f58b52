"""Concepts: directions in the residual stream, how good they are, where a prompt has them, and what they do."""

from .browser import ConceptBrowser

__all__ = ["ConceptBrowser"]
