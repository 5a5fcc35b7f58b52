"""Look through what is published: ``python -m tests.release build/dist v0.2.0``; exit code 1 if anything is wrong."""

from __future__ import annotations

import re
import sys
import tarfile
import zipfile
from email.parser import BytesParser
from pathlib import Path

import yaml
from packaging.metadata import Metadata

from interp_widgets.version import __version__

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "interp_widgets"
LARGEST = 100 * 2**20
"""Bytes of a file that PyPI takes."""


def faults_of(folder: Path, tag: str = f"v{__version__}") -> list[str]:
    """What is wrong with the wheel and the sources in a folder, a sentence each."""
    wheels, archives = sorted(folder.glob("*.whl")), sorted(folder.glob("*.tar.gz"))
    if len(wheels) != 1 or len(archives) != 1:
        return [f"{folder} holds {len(wheels)} wheels and {len(archives)} archives of sources, not one of each"]
    faults = [] if tag == f"v{__version__}" else [f"the tag is {tag}, the version {__version__}"]
    faults += [f"{path.name} is too large for PyPI" for path in (*wheels, *archives) if path.stat().st_size > LARGEST]
    return faults + wheel_faults(wheels[0]) + source_faults(archives[0]) + version_faults(__version__, *told())


def wheel_faults(path: Path) -> list[str]:
    """A wheel holds every file of the package and nothing else, and its metadata is as PyPI wants it."""
    with zipfile.ZipFile(path) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
        (metadata,) = [wheel.read(name) for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
    wanted = files_of_the_package()
    return [
        *(f"{name} is not in the wheel" for name in sorted(wanted - names)),
        *(f"{name} is in the wheel, but not in the package" for name in sorted(names - wanted)),
        *metadata_faults(metadata),
    ]


def source_faults(path: Path) -> list[str]:
    """The sources can be built, and hold what the wheel does."""
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
        (metadata,) = [archive.extractfile(name) for name in archive.getnames() if name.endswith("/PKG-INFO")]
        assert metadata is not None
        faults = metadata_faults(metadata.read())
    return faults + [
        f"{name} is not among the sources" for name in sorted({"pyproject.toml", *files_of_the_package()} - names)
    ]


def files_of_the_package() -> set[str]:
    """Every file of the package, code and data."""
    return {
        path.relative_to(ROOT).as_posix()
        for path in PACKAGE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def metadata_faults(content: bytes) -> list[str]:
    """What the rules of core metadata forbid, and what this project promises of its own."""
    try:
        metadata = Metadata.from_email(content)
    except ExceptionGroup as group:
        return [str(error) for error in group.exceptions]
    faults = []
    if str(metadata.version) != __version__:
        faults.append(f"the metadata are of version {metadata.version}, not {__version__}")
    if metadata.description_content_type != "text/markdown" or not (metadata.description or "").strip():
        faults.append("the metadata have no description in Markdown")
    if not BytesParser().parsebytes(content)["License-File"]:
        faults.append("the licence is not in it")
    return faults


def told() -> tuple[str, str, str, str]:
    """Version and date, of the citation and of the newest released section of the changelog."""
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf8"))
    newest = re.search(r"^## (\d\S*) \((.*)\)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf8"), re.MULTILINE)
    version, date = newest.groups() if newest else ("nothing", "never")
    return str(citation["version"]), str(citation["date-released"]), version, date


def version_faults(version: str, cited: str, cited_date: str, listed: str, listed_date: str) -> list[str]:
    """Package, citation and changelog speak of one version and one day."""
    faults = []
    if not version == cited == listed:
        faults.append(f"the version is {version}, in CITATION.cff {cited}, in CHANGELOG.md {listed}")
    if cited_date != listed_date or not re.fullmatch(r"\d{4}-\d\d-\d\d", cited_date):
        faults.append(f"the date in CITATION.cff is {cited_date}, in CHANGELOG.md {listed_date}")
    return faults


if __name__ == "__main__":
    found = faults_of(Path(sys.argv[1]), *sys.argv[2:3])
    print("\n".join(found) or f"interp_widgets {__version__}: wheel, sources, metadata, citation and changelog agree")
    sys.exit(bool(found))
