"""The head word browser."""

from .browser import HeadWordBrowser

__all__ = ["HeadWordBrowser"]
