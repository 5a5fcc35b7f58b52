"""Cells of the matrix that are wrong today: architecture, function and backend → what is wrong. None is."""

KNOWN_WRONG: dict[tuple[str, str, str], str] = {}
