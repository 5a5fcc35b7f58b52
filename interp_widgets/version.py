"""The version of the package, as results and saved files name it."""

__version__ = "0.1.0"
