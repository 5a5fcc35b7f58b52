"""Shared by all tests: nothing reaches a hub, the analyses check their types.

The tests also run against TransformerLens 4, which has only the bridge; what needs 3.x is marked `hooked`.
"""

from __future__ import annotations

import gc
import os
import sys
from collections import Counter
from collections.abc import Generator, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any
from zlib import crc32

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ["INTERP_WIDGETS_PROGRESS"] = ""  # of the lessons: a run of the tests solves no exercise
# tiny models: threads that wait for each other cost more than they bring, above all on a busy machine
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest

from tests.lock_checks import check_locks, refusals
from tests.type_checks import check_types
from tests.warm_kernels import NAME, warm_kernels

check_types(["interp_widgets.analysis", "interp_widgets.compute"])
check_locks()

ROOT = Path(__file__).resolve().parents[1]
REFERENCE = ROOT.parent / "shared" / "data"
REASON = "tests marked `hooked` are left out: TransformerLens 4 has no HookedTransformer"
READS_MODELS = {ROOT / "tests" / name for name in ("architectures", "models", "quantised")}
"""The folders of tests that meet TransformerLens itself; the others meet it through the engine alone."""
MODELS = ROOT / "tests" / "models"
"""Of these, the one whose cases between the first and the last TransformerLens 4 leaves to the matrix."""
BROWSER = "/e2e/"
MATRIX = "/architectures/"
NOTEBOOK = "test_notebook_runs_and_judges_its_exercises["
ONLY_BRIDGE = int(metadata.version("transformer-lens").split(".")[0]) >= 4


def pytest_report_header() -> str:
    return f"transformer-lens {metadata.version('transformer-lens')}" + (f"; {REASON}" if ONLY_BRIDGE else "")


def needs_hooked(item: pytest.Item) -> bool:
    """Whether a test is marked `hooked`, or one of its parameters is that backend."""
    values = item.callspec.params.values() if isinstance(item, pytest.Function) and hasattr(item, "callspec") else ()
    parameters = [part for value in values for part in (value if isinstance(value, tuple) else (value,))]
    return item.get_closest_marker("hooked") is not None or any(
        isinstance(part, str) and part == "hooked" for part in parameters
    )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Files are handed out whole, since their tests share models, but each notebook (see `is_long`) and each
    architecture of the matrix by itself.

    Those of the browser go to half of the workers: each of these has a JupyterLab, a browser and a page that it loads.
    """
    if config.option.dist != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    config.option.loadscopereorder = False  # in the order of `pytest_collection_modifyitems`

    class Schedule(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            if NOTEBOOK in nodeid or MATRIX in nodeid:
                return nodeid
            file = str(super()._split_scope(nodeid))
            return f"browser {crc32(file.encode()) % max(1, self.numnodes // 2)}" if BROWSER in file else file

    return Schedule(config, log)


def is_long(item: pytest.Item) -> bool:
    """Whether a test belongs to the notebooks and the browser: begun last, one of them would be waited for alone."""
    return NOTEBOOK in item.nodeid or BROWSER in item.nodeid


def cases_between(items: list[pytest.Item]) -> list[pytest.Function]:
    """Of tests with three cases and more, all but the first and the last, which usually differ in every parameter."""
    cases: dict[tuple[Any, ...], list[pytest.Function]] = {}
    for item in items:
        if isinstance(item, pytest.Function) and hasattr(item, "callspec"):
            cases.setdefault((item.path, item.cls, item.originalname), []).append(item)
    return [item for some in cases.values() for item in some[1:-1]]


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Every second worker begins with the last files: what one has compiled with its asserts, the other only reads."""
    report = yield
    worker = getattr(collector.config, "workerinput", {}).get("workerid", "gw0")
    if int(worker.removeprefix("gw")) % 2 and isinstance(collector, pytest.Directory):
        report.result.reverse()
    return report


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    left_out = [item for item in items if ONLY_BRIDGE and needs_hooked(item)]
    if left_out:
        items[:] = [item for item in items if not needs_hooked(item)]
        config.hook.pytest_deselected(items=left_out)
    for item in cases_between([item for item in items if not is_long(item)]):
        item.add_marker("case_between")
    for item in items:
        if isinstance(item, pytest.DoctestItem):
            item.add_marker("docstring")
        between = item.get_closest_marker("case_between") is not None and MODELS in item.path.parents
        if READS_MODELS.intersection(item.path.parents) and not between:
            item.add_marker("reads_models")
    if hasattr(config, "workerinput"):  # one of several processes: what is short comes last
        tests = Counter(item.path for item in items)
        items.sort(
            key=lambda item: (
                BROWSER not in item.nodeid, not is_long(item), -tests[item.path],
                item.path, isinstance(item, pytest.Function),
            )
        )  # fmt: skip


def pytest_collection_finish(session: pytest.Session) -> None:
    """What the imports made stays, so the collections of garbage that many tests ask for need not look through it.

    All of the rest is looked through where a test asks for it, and otherwise a tenth as often as usual.
    """
    if hasattr(session.config, "workerinput"):  # in a run of many tests, some need it in any case
        import transformer_lens  # noqa: F401
    gc.collect()
    gc.freeze()
    gc.set_threshold(*gc.get_threshold()[:2], 100)


SET_AT_IMPORT = ("PYTEST_", "KMP_", "TORCHINDUCTOR_", "HF_XET_")
"""How the environment variables begin that pytest, scikit-learn, torch and lm_eval set for themselves."""


def process_state() -> dict[str, Any]:
    """What any test of a process can change for all that come after it."""
    import torch

    variables = {name: value for name, value in os.environ.items() if not name.startswith(SET_AT_IMPORT)}
    return variables | {
        "the folder": os.getcwd(), "sys.path": list(sys.path),
        "gradients": torch.is_grad_enabled(), "the dtype": torch.get_default_dtype(),
    }  # fmt: skip


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """Which tests share a process, and in which order, depends on how fast the others were: none may count on it."""
    before = process_state()
    yield
    after = process_state()
    names = before.keys() | after.keys()
    changed = {name: (before.get(name), after.get(name)) for name in names if before.get(name) != after.get(name)}
    assert not changed, f"a test must put back what it changes for the whole process, here {changed}: use monkeypatch"


@pytest.fixture(autouse=True)
def locks_in_order() -> Iterator[None]:
    """No lock is taken before its turn, in any thread."""
    refusals.clear()
    yield
    assert not refusals, refusals[0]


@pytest.fixture(scope="session")
def reference_data() -> Path:
    """Folder of published reference data beside the checkout; tests that need it skip where it is absent."""
    if not REFERENCE.is_dir():
        pytest.skip("the reference data folder ../shared/data is not beside this checkout")
    return REFERENCE


@pytest.fixture(scope="session")
def warm_kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Name of a notebook kernel whose imports are done, by one process for all workers of a run."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "jupyter"
    folder.mkdir(exist_ok=True)
    with warm_kernels(folder):
        yield NAME
