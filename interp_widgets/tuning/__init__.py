"""The only code that changes weights."""
