"""Check an installation: ``python -m interp_widgets.doctor`` prints one line per check; exit code 1 if any failed."""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from interp_widgets.version import __version__

PACKAGES = ("torch", "transformer-lens", "transformers", "ipywidgets", "bokeh", "anywidget", "ipykernel")
FRONT_ENDS = ("jupyterlab", "notebook")
"""Named where they are installed: other programs open notebooks too."""
EXTENSIONS = {"@jupyter-widgets/jupyterlab-manager": "jupyterlab-widgets", "anywidget": "anywidget"}


@dataclass(frozen=True)
class Finding:
    """One line of the report."""

    part: str
    ok: bool
    text: str

    def __str__(self) -> str:
        return f"{'ok  ' if self.ok else 'FAIL'}  {self.part:<14} {self.text}"


def check_python() -> Finding:
    """The interpreter is new enough."""
    version = platform.python_version()
    ok = sys.version_info >= (3, 11)
    return Finding(
        "python", ok, version if ok else f"{version}: Python 3.11 or newer is needed, make a new environment"
    )


def check_packages() -> Finding:
    """Every package that the widgets need is installed."""
    found: list[str] = []
    missing: list[str] = []
    for name in (*PACKAGES, *FRONT_ENDS):
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            missing += [name] if name in PACKAGES else []
    if missing:
        return Finding("packages", False, f"missing: {', '.join(missing)}; run: pip install {' '.join(missing)}")
    return Finding("packages", True, f"interp_widgets {__version__}, {', '.join(found)}")


def check_front_end() -> Finding:
    """JupyterLab finds both front-end extensions, and anywidget's has the version of its Python package."""
    roots = [Path(sys.prefix) / "share/jupyter/labextensions", Path.home() / ".local/share/jupyter/labextensions"]
    lines: list[str] = []
    for extension, package in EXTENSIONS.items():
        folder = next((root / extension for root in roots if (root / extension / "package.json").exists()), None)
        if folder is None:
            return Finding(
                "front end",
                False,
                f"{extension} is not installed for JupyterLab; run: pip install --force-reinstall {package}",
            )
        front = json.loads((folder / "package.json").read_text(encoding="utf8"))["version"]
        back = metadata.version(package)
        # the two spell a pre-release differently, with and without "-"
        if extension == "anywidget" and front.replace("-", "") != back.replace("-", ""):
            return Finding(
                "front end", False, f"{extension} {front} in JupyterLab but {back} in Python; reinstall {package}"
            )
        lines.append(f"{extension} {front}")
    return Finding("front end", True, ", ".join(lines))


def check_device() -> Finding:
    """The device that models will run on."""
    import torch

    if torch.cuda.is_available():
        free, total = torch.cuda.mem_get_info()
        name = torch.cuda.get_device_name(0)
        return Finding("device", True, f"cuda: {name}, {free / 2**30:.1f} of {total / 2**30:.1f} GiB free")
    return Finding("device", True, f"cpu, {torch.get_num_threads()} threads (no CUDA device)")


def check_memory() -> Finding:
    """Enough main memory for the demo models and JupyterLab."""
    import psutil

    memory = psutil.virtual_memory()
    ok = memory.available > 2**30
    text = f"{memory.available / 2**30:.1f} of {memory.total / 2**30:.1f} GiB free"
    return Finding("memory", ok, text if ok else f"{text}: at least 1 GiB is needed, close other programs")


def check_demo() -> Finding:
    """The shipped models load and agree with Hugging Face's own computation."""
    from interp_widgets.models import load_demo_pair

    try:
        pair = load_demo_pair()
    except (ValueError, OSError, RuntimeError) as error:
        return Finding("demo models", False, f"{error}")
    checks = (pair.base.self_check, pair.tuned.self_check)
    return Finding(
        "demo models",
        all(check.passed for check in checks),
        f"base: {checks[0].summary()}; tuned: {checks[1].summary()}",
    )


def check_profile() -> Finding:
    """What a short pass measures of the shipped tuned model: the source of the panels' defaults."""
    from interp_widgets.models import load_demo_pair

    try:
        sentences = load_demo_pair().tuned.profile.describe().splitlines()
    except (ValueError, OSError, RuntimeError) as error:
        return Finding("profile", False, f"{error}")
    return Finding("profile", True, " ".join(sentences))


CHECKS: tuple[Callable[[], Finding], ...] = (
    check_python,
    check_packages,
    check_front_end,
    check_device,
    check_memory,
    check_demo,
    check_profile,
)


def examine() -> Iterator[Finding]:
    """Run the checks in order; after a missing package the rest cannot run."""
    for check in CHECKS:
        finding = check()
        yield finding
        if not finding.ok and finding.part in {"python", "packages"}:
            return


def main(name: str | None = None) -> int:
    """Print the findings, or the profile of the model `name`; the exit code is 0 if every check passed."""
    if name is not None:
        return _print_profile(name)
    worst = 0
    for finding in examine():
        print(finding, flush=True)
        worst = max(worst, 0 if finding.ok else 1)
    return worst


def _print_profile(name: str) -> int:
    from interp_widgets.models import load_model

    try:
        print(load_model(name).profile.describe())
    except (ValueError, OSError, RuntimeError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
