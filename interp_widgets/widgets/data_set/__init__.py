"""One analysis on every row of a data set."""

from .explorer import DataSetExplorer

__all__ = ["DataSetExplorer"]
