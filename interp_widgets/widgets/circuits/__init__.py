"""Circuits of known truth: which method finds the circuit that was built in."""

from .board import CircuitBoard

__all__ = ["CircuitBoard"]
