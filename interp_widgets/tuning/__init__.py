"""Tuning: the only code that changes weights."""
