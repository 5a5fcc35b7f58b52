"""Every function on every architecture: right, or refused in a sentence; nothing else."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator

import pytest
import torch

from tests.architectures import functions, table
from tests.architectures.functions import FUNCTIONS, Comparison
from tests.architectures.matrix import BACKENDS, Backend, Verdict, fault_of, load_verdict, loaded, verdict
from tests.architectures.models import ARCHITECTURES, random_model
from tests.architectures.naive import NAMES, Naive, names_of

STORED = json.loads(table.VERDICTS.read_text(encoding="utf8"))


def fault(cell: tuple[str, str, str], kind: str, today: Verdict) -> str | None:
    """What is wrong with a cell, or with what is stored of it."""
    if today.kind == "wrong":
        return f"{', '.join(cell)}: {today.reason}"
    if today.kind != kind:
        return f"{', '.join(cell)}: {today.kind} ({today.reason}) and no longer {kind}: run `make architectures`"
    return None


def by_architecture(names: list[str]) -> list[object]:
    return [pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in names]


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("backend", [*BACKENDS, "auto"])
@pytest.mark.parametrize("architecture", by_architecture(list(ARCHITECTURES)))
def test_load(architecture: str, backend: Backend) -> None:
    today = load_verdict(architecture, backend)
    kinds = dict(zip(BACKENDS, STORED[architecture]["loads"].split("/"), strict=True))
    found = fault((architecture, "load", backend), kinds.get(backend, today.kind), today)
    assert found is None, found


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("architecture", by_architecture(list(ARCHITECTURES)))
def test_cells(architecture: str, backend: Backend) -> None:
    """One test for the cells of all functions, which says all that are wrong: 10,000 tests are many to handle."""
    faults = [
        fault(
            (architecture, function, backend),
            cell.split("/")[BACKENDS.index(backend)],
            verdict(architecture, function, backend),
        )
        for function, cell in STORED[architecture]["cells"].items()
    ]
    found = [one for one in faults if one is not None]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("function", [pytest.param(name, marks=pytest.mark.xdist_group("llama")) for name in FUNCTIONS])
def test_every_function_notices_another_model(function: str) -> None:
    other = Naive(random_model("llama", seed=1), names_of("llama"))
    own = FUNCTIONS[function].run(loaded("llama", "bridge"))
    with contextlib.suppress(functions.Wrong):  # other tokens
        errors = [comparison.error() for comparison in FUNCTIONS[function].compare(other, own)]
        assert max(errors) > 100 * functions.TOLERANCE[torch.float64]


def test_the_matrix_is_large() -> None:
    assert len(ARCHITECTURES) >= 36
    assert set(NAMES) <= set(ARCHITECTURES)
    assert list(STORED) == list(ARCHITECTURES)
    assert all(list(row["cells"]) == list(FUNCTIONS) for row in STORED.values())


def test_the_table_and_the_page_say_what_the_matrix_found() -> None:
    page = table.WHERE.read_text(encoding="utf8")
    assert table.page(STORED) == table.TABLE.read_text(encoding="utf8"), "run `make architectures`"
    assert table.replaced(page, table.section(STORED)) == page, "run `make architectures`"


@pytest.mark.parametrize(
    "sentence",
    [
        "this model has no hook 'blocks.1.mlp.hook_post'",
        "'NoneType' object has no attribute 'weight'",
        "Error(s) in loading:\n\tsize mismatch",
        "Unsupported architecture: DbrxForCausalLM",
        "this model has no W_Q: its MLP has no gate, use W_in and W_out",
    ],
)
def test_words_from_inside_are_no_refusal(sentence: str) -> None:
    assert fault_of(sentence)


def test_a_sentence_is_a_refusal() -> None:
    assert fault_of("the model has no MLP neurons, because its MLPs are experts: ablate modules instead") is None


def test_comparisons_find_a_small_fault() -> None:
    naive = torch.linspace(-1, 1, 50)
    limit = functions.TOLERANCE[torch.float32]
    assert Comparison("", naive.clone(), naive).error() == 0
    assert Comparison("", torch.where(naive == 1, 0.999, naive), naive).error() > limit
    assert Comparison("", torch.where(naive == 1, torch.nan, naive), naive).error() > limit
    with pytest.raises(functions.Wrong, match="shape"):
        Comparison("", naive[:-1], naive).error()
    with pytest.raises(functions.Wrong, match="instead of"):
        Comparison("", [1, 2], [1, 3]).error()
