"""Any of the panels' questions over a data set."""

from .explorer import DataSetExplorer

__all__ = ["DataSetExplorer"]
