"""The structure is a promise: imports along the arrows, a light import, and project files that agree."""

from __future__ import annotations

import ast
import doctest
import re
import subprocess
import sys
import tomllib
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import get_origin

import numpy as np
import pytest
import yaml
from scipy.sparse.csgraph import connected_components

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "interp_widgets"
MAY_IMPORT = {
    "data": {"data"},
    "models": {"models", "data"},
    "analysis": {"analysis", "models", "data"},
    "tuning": {"tuning", "analysis", "models", "data"},
    "demo": {"demo", "widgets", "compute", "sweeps", "tuning", "analysis", "models", "data"},
    "figures": {"figures", "sweeps", "analysis"},
    "compute": {"compute"},
    "sweeps": {"sweeps", "analysis", "models", "data"},
    "widgets": {"widgets", "figures", "compute", "sweeps", "tuning", "analysis", "models", "data"},
}
WITHOUT_CIRCLES = set(MAY_IMPORT)
FRONT_END = {"bokeh", "ipywidgets", "IPython", "anywidget", "traitlets", "comm"}
HEAVY = {"umap", "peft", "dask", "openai"}
DISTRIBUTIONS = {
    "sklearn": "scikit-learn",
    "umap": "umap-learn",
    "PIL": "pillow",
    "IPython": "ipython",
    "yaml": "pyyaml",
}
USED_WITHOUT_AN_IMPORT = {"jupyterlab", "ipykernel", "pip", "pyarrow"}
"""What opens the notebooks and runs them, what fetches pretrained models, and what pandas writes Parquet with."""
TOOLS = {
    "pytest", "pytest-timeout", "pytest-xdist", "hatchling", "ninja", "mypy", "ruff", "pandas-stubs", "types-psutil",
}  # fmt: skip
"""Of the tests: what runs and checks them, and what builds the wheel and the pretend accelerator."""
TOP_LEVEL = {
    "interp_widgets", "notebooks", "tests", "benchmarks", "environment.yml", "README.md", "pyproject.toml", "Makefile",
    "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "CITATION.cff", "conftest.py", "constraints.txt", ".ci", ".github",
    ".gitignore", ".pre-commit-config.yaml",
}  # fmt: skip


@cache
def syntax(source: str) -> ast.Module:
    """The syntax tree of a source: several tests read every file of the package."""
    return ast.parse(source)


@cache
def import_statements(source: str) -> list[ast.Import | ast.ImportFrom]:
    """All imports of a source, those in functions too."""
    return [node for node in ast.walk(syntax(source)) if isinstance(node, ast.Import | ast.ImportFrom)]


@pytest.fixture(scope="module", autouse=True)
def no_trees_left() -> Iterator[None]:
    """Millions of nodes, through which every garbage collection of the tests behind these would look."""
    yield
    syntax.cache_clear()
    import_statements.cache_clear()


def imported_names(source: str, module: str) -> list[tuple[str, ast.stmt]]:
    """Absolute names of all modules that a source imports, relative ones resolved."""
    names: list[tuple[str, ast.stmt]] = []
    for node in import_statements(source):
        if isinstance(node, ast.Import):
            names += [(alias.name, node) for alias in node.names]
        else:
            base = module.split(".")[: len(module.split(".")) - node.level] if node.level else []
            names.append((".".join([*base, *([node.module] if node.module else [])]), node))
    return names


def arrow_faults(folder: str, source: str, module: str) -> list[str]:
    """Imports in one module's source that go against the arrows."""
    top_level = set(map(id, syntax(source).body))
    faults = []
    for name, node in imported_names(source, module):
        parts = name.split(".")
        target = parts[1] if parts[0] == "interp_widgets" and len(parts) > 1 else ""
        if target in MAY_IMPORT and target not in MAY_IMPORT[folder]:
            faults.append(f"{module}:{node.lineno} {folder} imports {target}")
        if parts[0] in FRONT_END and folder not in {"figures", "widgets"}:
            faults.append(f"{module}:{node.lineno} {folder} imports {parts[0]}")
        if parts[0] in FRONT_END - {"bokeh"} and folder == "figures":
            faults.append(f"{module}:{node.lineno} figures imports {parts[0]}")
        if parts[0] in HEAVY and id(node) in top_level:
            faults.append(f"{module}:{node.lineno} {parts[0]} is imported at the top of the module")
        if parts[0] == "transformer_lens" and module != "interp_widgets.models.transformerlens":
            faults.append(f"{module}:{node.lineno} takes a part of TransformerLens by itself")
    return faults


@pytest.mark.seconds
def test_imports_run_along_the_arrows() -> None:
    faults = []
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        if len(parts) > 2:
            package = parts[:-1] if parts[-1] == "__init__" else parts
            suffix = [".__init__"] if parts[-1] == "__init__" else []
            faults += arrow_faults(parts[1], path.read_text(encoding="utf8"), ".".join(package) + "".join(suffix))
    assert not faults, "\n".join(faults)


def test_every_accelerator_takes_the_same_branch() -> None:
    """`is_cuda` leaves out every other one: `device_kind` asks whether a device is the CPU."""
    asking = [path.name for path in PACKAGE.rglob("*.py") if "is_cuda" in path.read_text(encoding="utf8")]
    assert not asking


def test_what_every_folder_imports_imports_none_of_them() -> None:
    for name in ("arguments", "atomic", "checksums", "locks", "renamed", "version"):
        source = (PACKAGE / f"{name}.py").read_text(encoding="utf8")
        assert not [each for each, _ in imported_names(source, f"interp_widgets.{name}") if "interp_widgets" in each]


@pytest.mark.parametrize(
    ("folder", "source"),
    [
        ("analysis", "import bokeh.plotting"),
        ("data", "from interp_widgets.models import Model"),
        ("analysis", "from interp_widgets.compute.worker import Worker"),
        ("figures", "from ..widgets import panel"),
        ("analysis", "import umap"),
        ("data", "import openai"),
        ("widgets", "import transformer_lens"),
        ("models", "def f():\n    from transformer_lens.cache import key_value_cache"),
        ("models", "from interp_widgets.demo.pair import ASSETS"),
    ],
)
def test_the_arrow_check_finds_a_wrong_import(folder: str, source: str) -> None:
    assert arrow_faults(folder, source, f"interp_widgets.{folder}.example")


def module_of(path: Path) -> str:
    """Dotted name of a file of the package; a folder's own file is called ``.__init__``."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def modules_imported(source: str, module: str, modules: Collection[str]) -> set[str]:
    """Which of the modules a module imports, wherever in it: in a function and for type checkers alone counts too."""
    names: set[str] = set()
    for node in import_statements(source):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        else:
            parts = module.split(".")
            base = ".".join([*parts[: len(parts) - node.level], *filter(None, [node.module])]) if node.level else ""
            base = base or str(node.module)
            inside = {f"{base}.{alias.name}" for alias in node.names}
            names |= inside
            if any(not {name, f"{name}.__init__"} & set(modules) for name in inside):
                names.add(base)  # a name that is no module comes from the file of the folder
    return {name for each in names for name in (each, f"{each}.__init__") if name in modules}


def import_circles(sources: Mapping[str, str]) -> list[set[str]]:
    """Groups of modules in which each one leads back to itself by imports."""
    names = sorted(sources)
    matrix = np.zeros((len(names), len(names)), dtype=bool)
    for row, name in enumerate(names):
        for imported in modules_imported(sources[name], name, sources):
            matrix[row, names.index(imported)] = True
    _, group = connected_components(matrix, connection="strong")
    members = [np.flatnonzero(group == label) for label in np.unique(group)]
    return [{names[i] for i in rows} for rows in members if len(rows) > 1 or matrix[rows[0], rows[0]]]


def sources_without_circles() -> dict[str, str]:
    """Module → source of the folders in which there must be no import circle."""
    return {
        module_of(path): path.read_text(encoding="utf8")
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.relative_to(PACKAGE).parts[0] in WITHOUT_CIRCLES
    }


@pytest.mark.seconds
@pytest.mark.parametrize("folder", ["analysis", "figures", "sweeps", "widgets"])
def test_what_transformerlens_holds_is_read_in_models_alone(folder: str) -> None:
    files = (PACKAGE / folder).rglob("*.py")
    assert [str(file) for file in files if re.search(r"\btl_model\.", file.read_text(encoding="utf-8"))] == []


def test_no_import_circle() -> None:
    sources = sources_without_circles()
    circles = import_circles(sources)
    assert not circles, "\n".join(" <-> ".join(sorted(circle)) for circle in circles)
    sources["interp_widgets.data.world_tables"] += (
        "\n\ndef f():\n    from interp_widgets.data.concepts import Concept\n"
    )
    assert {"interp_widgets.data.concepts", "interp_widgets.data.world_tables"} <= import_circles(sources)[0]


@pytest.mark.parametrize(
    ("sources", "circle"),
    [
        ({"p.a": "from p.b import x", "p.b": "import p.a"}, {"p.a", "p.b"}),
        ({"p.a": "from p import b", "p.b": "def f():\n    from .a import x"}, {"p.a", "p.b"}),
        (
            {"p.a": "from .b import x", "p.b": "if TYPE_CHECKING:\n    from .c import X", "p.c": "from . import a"},
            {"p.a", "p.b", "p.c"},
        ),
        ({"p.__init__": "from .a import x", "p.a": "from p import x"}, {"p.__init__", "p.a"}),
        ({"p.__init__": "from p.q.a import x", "p.q.a": "from .. import x"}, {"p.__init__", "p.q.a"}),
        ({"p.__init__": "from .a import x", "p.a": "from p import b", "p.b": "import os"}, set()),
        ({"p.a": "from .b import x", "p.b": "from .c import x", "p.c": "import os"}, set()),
    ],
)
def test_the_circle_check_finds_a_circle(sources: dict[str, str], circle: set[str]) -> None:
    assert import_circles(sources) == ([circle] if circle else [])


def test_environment_follows_pyproject() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf8"))["project"]
    environment = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf8"))
    conda = {
        str(item).split("=")[0]: str(item).partition("=")[2]
        for item in environment["dependencies"]
        if isinstance(item, str)
    }
    pip = next(item["pip"] for item in environment["dependencies"] if isinstance(item, dict))
    assert "-e .[lab]" in pip, "environment.yml must install the project itself, so that pyproject.toml rules"
    assert "-c constraints.txt" in pip
    assert conda["python"] >= project["requires-python"].removeprefix(">=")
    locked = locked_versions()
    assert locked["jupyterlab"].startswith(conda["jupyterlab"])


def locked_versions() -> dict[str, str]:
    """Package → version in constraints.txt."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf8").splitlines()
    return {
        name.lower().replace("_", "-"): version
        for name, _, version in (line.partition("==") for line in lines if "==" in line)
    }


def test_every_dependency_is_locked_within_its_range() -> None:
    from packaging.requirements import Requirement

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf8"))["project"]
    locked = locked_versions()
    extras = project["optional-dependencies"]
    for line in [*project["dependencies"], *extras["lab"], *extras["test"], *extras["docs"]]:
        requirement = Requirement(line)
        if requirement.name == "pip":  # it installs what is locked
            continue
        assert requirement.name in locked, f"{requirement.name} is not in constraints.txt: run make lock"
        assert requirement.specifier.contains(locked[requirement.name]), f"{line} against {locked[requirement.name]}"


def test_the_extra_the_lock_and_the_start_page_agree_about_hooked_transformer() -> None:
    """pip alone takes the newest TransformerLens, which has no HookedTransformer; the extra and the lock keep 3.x."""
    from packaging.requirements import Requirement

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf8"))["project"]
    (hooked,) = map(Requirement, project["optional-dependencies"]["hooked"])
    (alone,) = [line for line in map(Requirement, project["dependencies"]) if line.name == hooked.name]
    locked = locked_versions()["transformer-lens"]
    newest = re.search(r"^lens=(\S+) ", (ROOT / "tests" / "models" / "run_tl4.sh").read_text("utf8"), re.MULTILINE)
    assert newest is not None
    assert hooked.specifier.contains(locked)
    assert not hooked.specifier.contains(newest[1])
    assert alone.specifier.contains(locked)
    assert alone.specifier.contains(newest[1])
    start = (ROOT / "notebooks" / "docs" / "pages" / "start.md").read_text("utf8")
    (said,) = [part for part in start.split("\n\n") if "[hooked]" in part]
    for name in (
        f"TransformerLens {'.'.join(locked.split('.')[:2])} ",
        f"TransformerLens {newest[1].split('.')[0]},",
        "keeps 3.x",
    ):
        assert name in " ".join(said.split()), f"the page does not say {name!r} where it speaks of the extra"
    assert any("-c constraints.txt" in line for line in (ROOT / "environment.yml").read_text("utf8").splitlines())
    assert "-c constraints.txt -e '.[lab]'" in (ROOT / "Makefile").read_text("utf8")


def test_every_dependency_is_imported_and_every_import_is_a_dependency() -> None:
    from packaging.requirements import Requirement

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf8"))["project"]
    extras = project["optional-dependencies"]
    lines = [
        *project["dependencies"],
        *(line for name in ("lab", "annotate", "lm-eval", "tuning") for line in extras[name]),
    ]
    declared = {Requirement(line).name for line in lines}
    imported = {
        name.split(".")[0]
        for path in PACKAGE.rglob("*.py")
        for name, _ in imported_names(path.read_text(encoding="utf8"), module_of(path))
    } - set(sys.stdlib_module_names)
    needed = {DISTRIBUTIONS.get(name, name.replace("_", "-")) for name in imported} - {"interp-widgets"}
    assert not needed - declared, f"add to the dependencies: {sorted(needed - declared)}"
    assert not USED_WITHOUT_AN_IMPORT & needed, "take what is imported off the list of what is not"
    unused = declared - needed - USED_WITHOUT_AN_IMPORT
    assert not unused, f"no module imports {sorted(unused)}: take them out of the dependencies"


@pytest.mark.seconds
def test_the_tests_need_what_is_installed_for_them() -> None:
    from packaging.requirements import Requirement

    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf8"))["project"]["optional-dependencies"]
    declared = {Requirement(line).name for line in extras["test"]}
    paths = [ROOT / "conftest.py", *(ROOT / "tests").rglob("*.py")]
    modules = {
        name.split(".")[0]
        for path in [*paths, *PACKAGE.rglob("*.py")]
        for name, _ in imported_names(path.read_text(encoding="utf8"), module_of(path))
    }
    imported = {DISTRIBUTIONS.get(name, name.replace("_", "-")) for name in modules}
    assert declared >= TOOLS
    unused = declared - imported - TOOLS
    assert not unused, f"no test imports {sorted(unused)}: take them out of the extra"


def test_the_package_imports_without_its_heavy_parts() -> None:
    heavy = "{'torch', 'transformers', 'transformer_lens', 'bokeh', 'ipywidgets'}"
    code = f"import sys, interp_widgets; print(*sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_public_names_resolve() -> None:
    import interp_widgets

    for name in interp_widgets.__all__:
        assert getattr(interp_widgets, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        interp_widgets.nonsense


def test_public_names_are_listed_once() -> None:
    import interp_widgets

    stub = ast.parse((PACKAGE / "__init__.pyi").read_text(encoding="utf8"))
    names = [alias.asname for node in stub.body if isinstance(node, ast.ImportFrom) for alias in node.names]
    assert sorted(map(str, names)) == interp_widgets.__all__
    assert set(interp_widgets.__all__) <= set(dir(interp_widgets))


def example_faults(name: str, text: str | None, *, public: bool) -> list[str]:
    """A public docstring without an example, or an example that is not run and still shows what it would give."""
    examples = doctest.DocTestParser().get_examples(text or "", name)
    missing = [f"{name} has no example: add one under Example: in its docstring"] if public and not examples else []
    return missing + [
        f"{name}: {one.source.strip()!r} is skipped, so that nobody knows whether it gives {one.want.strip()!r}"
        for one in examples
        if one.options.get(doctest.SKIP) and one.want
    ]


def test_every_public_function_and_class_has_an_example() -> None:
    import interp_widgets

    faults = []
    for name in interp_widgets.__all__:
        value = getattr(interp_widgets, name)
        if callable(value) and get_origin(value) is None:  # an annotation, such as Prompt, has no docstring of its own
            # of a class its own docstring: an inherited one tells of its parent
            text = vars(value).get("__doc__") if isinstance(value, type) else value.__doc__
            faults += example_faults(name, text, public=True)
    assert not faults, "\n".join(faults)


@pytest.mark.seconds
def test_no_skipped_example_shows_an_output() -> None:
    faults = []
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(syntax(path.read_text(encoding="utf8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                name = f"{path.relative_to(ROOT)} {getattr(node, 'name', '')}"
                faults += example_faults(name, ast.get_docstring(node), public=False)
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize(
    ("text", "public", "found"),
    [
        (None, True, "no example"),
        ("Says nothing more.", True, "no example"),
        ("Adds.\n\nExample:\n    >>> add(1, 1)  # doctest: +SKIP\n    2\n", True, "is skipped"),
        ("Adds.\n\nExample:\n    >>> add(1, 1)  # doctest: +SKIP\n    2\n", False, "is skipped"),
        ("Adds.\n\nExample:\n    >>> add(1, 1)\n    2\n", True, ""),
        ("Asks.\n\nExample:\n    >>> ask()  # doctest: +SKIP\n", True, ""),
        ("Says nothing more.", False, ""),
    ],
)
def test_the_example_check_finds_what_is_wrong(text: str | None, public: bool, found: str) -> None:
    faults = example_faults("add", text, public=public)
    assert found in faults[0] if found else not faults


def test_top_level_is_the_agreed_one() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout: the list of tracked files is not known")
    extra = {name.split("/")[0] for name in listed.stdout.splitlines()} - TOP_LEVEL
    assert not extra, f"unexpected at the top level: {sorted(extra)}"


@pytest.mark.seconds
def test_the_engine_asks_a_read_out_and_knows_no_mixture() -> None:
    for path in sorted((PACKAGE / "models" / "engine").rglob("*.py")):
        assert "mixture_of_depths" not in path.read_text(encoding="utf8"), path
    read_out = (PACKAGE / "models" / "read_out.py").read_text(encoding="utf8")
    assert not [name for name, _ in imported_names(read_out, "interp_widgets.models.read_out") if "mixture" in name]
