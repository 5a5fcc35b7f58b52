"""Grades the notebooks of a course: a line per student and exercise, as CSV.

`python notebooks/grade.py FOLDER` runs every notebook in a folder and its subfolders, each in a kernel of its own, and
asks the rules of `exercises` and `project.py` after each exercise. Nothing that a notebook does ends the grading: a
cell that raises, runs too long or ends its kernel is a line. The folder is not changed. The kernels run under your
account, so grade only students whose programs you would run.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
import re
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from queue import Empty
from typing import Any

from solved import VARIABLE

HERE = Path(__file__).resolve().parent
LESSON, PROJECT = re.compile(r"judge\(\s*[\"'](\w+)[\"']"), "grade_project("
PASSPHRASE = "PASSPHRASE"
"""The variable with the passphrase of the sealed folders."""
MARK = "grade: "
"""Begins the line in which a kernel says what an answer is worth."""
PATIENCE = 20
"""Seconds that an interrupted kernel has until it is ended."""


@dataclass
class Line:
    """What one answer is worth."""

    student: str
    """The notebook's path in the folder, without its ending."""
    lesson: str
    exercise: str
    verdict: str
    """"right", "wrong", "empty" or "error"; of the project also "partly", and "locked" without the passphrase."""
    points: float = 0.0
    most: float = 1.0
    note: str = ""


class Stopped(Exception):
    """A cell was interrupted, or ended its kernel."""


def answers_of(sources: list[str]) -> tuple[str, list[str]]:
    """The lesson of a notebook and the names of its answers; ValueError for a notebook of another kind."""
    from exercises import lessons, rules
    from project import POINTS

    text = "\n".join(sources)
    if PROJECT in text:
        return "project", list(POINTS)
    called = [name for name in LESSON.findall(text) if name.partition("_")[2] in lessons()]
    if not called:
        raise ValueError("no lesson of the course: neither judge(...) nor grade_project(...) is called")
    return called[0], [f"answer_{number}" for number in rules(called[0]).EXERCISES]


def verdict(lesson: str, name: str, names: dict[str, Any], passphrase: str | None) -> dict[str, Any]:
    """The verdict on an answer, its points and a note, from the names of the notebook; runs in its kernel."""
    import exercises
    import project

    if name not in names:
        return {"verdict": "error", "note": f"{name} is not there: its cell is gone or did not end"}
    if lesson == "project":
        most, (share, note) = project.POINTS[name], project.grade_answer(name, names, passphrase=passphrase)
        known = {None: "empty", 0: "wrong", 1: "right"}.get(share, "partly")
        return {
            "verdict": "locked" if share is not None and math.isnan(share) else known,
            "points": 0.0 if share is None or math.isnan(share) else round(most * share, 1),
            "most": float(most),
            "note": note,
        }
    if names[name] is None:
        return {"verdict": "empty"}
    exercise = exercises.rules(lesson).EXERCISES[int(name.rpartition("_")[2])]
    judged = exercise.verdict(names[name], exercises.Names(names))
    return {"verdict": "right" if judged.right else "wrong", "points": float(judged.right), "note": judged.reply or ""}


class Kernel:
    """A kernel that says what its cells print, and stops those that run too long."""

    def __init__(self, folder: Path, seconds: float) -> None:
        from jupyter_client.manager import start_new_kernel

        self.seconds = seconds
        self.manager, self.client = start_new_kernel(cwd=str(folder), env={**os.environ, VARIABLE: ""})

    def run(self, code: str) -> tuple[str, str]:
        """What a cell prints, and its error in a line, "" for none; `Stopped` if it does not end by itself."""
        asked, ends, interrupted = (
            self.client.execute(code, store_history=False),
            time.monotonic() + self.seconds,
            False,
        )
        printed, error = "", ""
        while True:
            try:
                message = self.client.get_iopub_msg(timeout=1)
            except Empty:
                if not self.manager.is_alive():
                    raise Stopped("the notebook ended its kernel") from None
                if time.monotonic() < ends:
                    continue
                if interrupted:
                    self.manager.shutdown_kernel(now=True)
                    raise Stopped(f"a cell ran for more than {self.seconds:g} s and could not be interrupted") from None
                self.manager.interrupt_kernel()
                ends, interrupted = time.monotonic() + PATIENCE, True
                continue
            kind, content = message["msg_type"], message["content"]
            if message["parent_header"].get("msg_id") != asked:
                continue
            if kind == "stream" and content["name"] == "stdout":
                printed += content["text"]
            elif kind == "error":
                error = f"{content['ename']}: {content['evalue']}".splitlines()[0].rstrip(": ")
            elif kind == "status" and content["execution_state"] == "idle":
                return printed, f"a cell ran for more than {self.seconds:g} s" if interrupted else error

    def close(self) -> None:
        self.client.stop_channels()
        if self.manager.is_alive():
            self.manager.shutdown_kernel(now=True)


def grade_notebook(path: Path, student: str, *, seconds: float, passphrase: str | None) -> Iterator[Line]:
    """The lines of a notebook; one line alone if it cannot be read or is no lesson."""
    import nbformat

    try:
        book = nbformat.read(path, as_version=4)
        sources = [cell.source for cell in book.cells if cell.cell_type == "code"]
        lesson, waiting = answers_of(sources)
    except (OSError, ValueError, KeyError, AttributeError, nbformat.ValidationError) as error:
        yield Line(student, "", "", "error", note=f"not graded: {error}".splitlines()[0])
        return
    if lesson == "project":  # its last cell grades, which is done here
        sources = [code for code in sources if PROJECT not in code]
    cells = {name: [i for i, code in enumerate(sources) if re.search(rf"\b{name}\b", code)] for name in waiting}
    errors: list[str] = []
    kernel = Kernel(path.parent, seconds)
    try:
        kernel.run(f"import sys; sys.path[:0] = {[str(HERE), str(HERE.parent)]!r}; import exercises, project, grade")
        for number, code in enumerate(sources):
            errors.append(kernel.run(code)[1])
            for name in [name for name in waiting if cells[name] and cells[name][-1] == number]:
                waiting.remove(name)
                failed = next((errors[i] for i in cells[name] if errors[i]), "")
                yield _asked(kernel, Line(student, lesson, name, "error"), failed, passphrase)
        for name in waiting:
            yield Line(student, lesson, name, "error", note=f"no cell holds {name}")
    except Stopped as stopped:
        for name in waiting:
            yield Line(student, lesson, name, "error", note=str(stopped))
    finally:
        kernel.close()


def _asked(kernel: Kernel, line: Line, failed: str, passphrase: str | None) -> Line:
    """The line of an answer whose cells have run, the first that failed with the error `failed`, if it is not ""."""
    printed, error = kernel.run(
        f"print({MARK!r} + __import__('json').dumps(__import__('grade').verdict("
        f"{line.lesson!r}, {line.exercise!r}, globals(), {passphrase!r})))"
    )
    said = [text for text in printed.splitlines() if text.startswith(MARK)]
    found = json.loads(said[-1][len(MARK) :]) if said and not error else {"verdict": "error", "note": error}
    if failed and found["verdict"] in ("empty", "error"):  # the answer is missing because its cell failed
        found = {"verdict": "error", "note": failed}
    return replace(line, **found)


def grade_folder(folder: Path, *, seconds: float, passphrase: str | None) -> Iterator[Line]:
    """The lines of every notebook in a folder and its subfolders, in the order of their paths."""
    for path in sorted(folder.rglob("*.ipynb")):
        if not any(part.startswith(".") for part in path.relative_to(folder).parts):
            student = path.relative_to(folder).with_suffix("").as_posix()
            yield from grade_notebook(path, student, seconds=seconds, passphrase=passphrase)


def main(arguments: list[str] | None = None) -> None:
    """Write the table, a line as soon as it is known."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="of the notebooks that the students hand in")
    parser.add_argument("--out", type=Path, default=Path("grades.csv"), help="the table to write (grades.csv)")
    parser.add_argument("--seconds", type=float, default=300, help="that a cell may take (300)")
    options = parser.parse_args(arguments)
    if not options.folder.is_dir():
        parser.error(f"there is no folder {options.folder}")
    passphrase = os.environ.pop(PASSPHRASE, None) or None  # no kernel inherits it
    lines = 0
    with options.out.open("w", newline="", encoding="utf8") as file:
        table = csv.DictWriter(file, [field.name for field in fields(Line)])
        table.writeheader()
        for line in grade_folder(options.folder, seconds=options.seconds, passphrase=passphrase):
            table.writerow(asdict(line))
            file.flush()
            lines += 1
            print(f"{line.student}: {line.lesson} {line.exercise} {line.verdict} {line.note}".rstrip(), flush=True)
    print(f"{lines} lines in {options.out}")


if __name__ == "__main__":
    main()
