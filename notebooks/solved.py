"""Which exercises a student has solved, kept in a small file on this machine: lessons and numbers, and nothing else.

The file is in the user's state folder. The environment variable `INTERP_WIDGETS_PROGRESS` names another one; if it is
empty, nothing is kept. Whoever deletes the file begins anew.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

from platformdirs import user_state_path

from interp_widgets.atomic import made_folder, whole_file

VARIABLE = "INTERP_WIDGETS_PROGRESS"


def file() -> Path | None:
    """Where it is kept, if it is."""
    named = os.environ.get(VARIABLE)
    if named is None:
        return user_state_path("interp_widgets") / "course.json"
    return Path(os.path.expanduser(named)) if named else None


def solved() -> dict[str, set[int]]:
    """Lesson, without its number → the exercises of it that are solved; of a damaged file nothing."""
    path = file()
    try:
        kept = json.loads(path.read_text(encoding="utf-8")) if path else {}
        return {lesson: {number for number in numbers if isinstance(number, int)} for lesson, numbers in kept.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def keep(lesson: str, number: int) -> None:
    """Keep that an exercise is solved. A folder that cannot be written keeps nothing and stops no lesson."""
    path, kept = file(), solved()
    if path is None or number in kept.get(lesson, set()):
        return
    kept.setdefault(lesson, set()).add(number)
    with contextlib.suppress(OSError, ValueError):
        made_folder(path.parent, VARIABLE)
        with whole_file(path) as draft:
            draft.write_text(json.dumps({name: sorted(kept[name]) for name in sorted(kept)}), encoding="utf-8")
