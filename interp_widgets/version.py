"""The version of the package, as results and saved files name it."""

__version__ = "0.2.0"
