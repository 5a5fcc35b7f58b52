"""Writes the circuits of known truth as ordinary transformers checkpoints: a folder each, 37 MB in all.

python -m interp_widgets.models.circuits FOLDER
"""

from __future__ import annotations

import argparse
from pathlib import Path

from . import save_circuits


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where to; it must not be there yet")
    folder = parser.parse_args().folder
    for path in save_circuits(folder):
        print(path)


if __name__ == "__main__":
    main()
