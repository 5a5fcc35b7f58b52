"""The pages for students and teachers say what is so: lessons, minutes, links and figures."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "notebooks" / name for name in ("STUDENT.md", "INSTRUCTOR.md")]
STUDENT = PAGES[0].read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_a_page_points_at_is_there(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
        assert target.startswith("http") or (page.parent / target).is_file(), target


def test_the_table_has_every_lesson_with_its_minutes() -> None:
    lessons = [path for path in sorted((ROOT / "notebooks").glob("*.ipynb")) if path.stem < "16"]
    rows = re.findall(r"^\| \[(\d\d) [^\]]+\]\((\w+)\.ipynb\) \| ([^|]+) \|", STUDENT, re.MULTILINE)
    assert [name for _, name, _ in rows] == [path.stem for path in lessons]
    total = 0
    for (number, name, minutes), path in zip(rows, lessons, strict=True):
        assert name.startswith(number)
        stated = re.search(r"It takes about (\d+) minutes", path.read_text(encoding="utf-8"))
        assert stated is None or stated[1] == minutes, path.name
        total += int(minutes) if minutes.isdigit() else 0
    assert f"{total // 60} hours {total % 60} minutes without the project" in STUDENT


def test_what_a_lesson_needs_comes_before_it() -> None:
    for number, needs in re.findall(r"^\| \[(\d\d) .*\| ([^|]+) \|$", STUDENT, re.MULTILINE):
        assert all(before < number for before in re.findall(r"\d\d", needs)), number
