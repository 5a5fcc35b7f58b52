"""The pretend accelerator has the manners that it is there for: what breaks on a GPU breaks on it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from interp_widgets.models.devices import device_of
from tests.accelerator import strict


def ones(device: str = "strict:0") -> Tensor:
    return torch.ones(3, device=device)


def test_it_computes() -> None:
    values = torch.arange(6.0, device="strict").reshape(2, 3)
    assert values.device == torch.device("strict:0")
    assert (values @ values.T).cpu().tolist() == [[5, 14], [14, 50]]
    assert (ones("strict:1") + 1).device == torch.device("strict:1")
    assert (ones() * torch.tensor(2.0)).tolist() == [2, 2, 2], "a number on the CPU may be an operand"
    assert values[torch.tensor([1]), torch.tensor([2])].item() == 5, "and so may index lists"
    assert torch.accelerator.current_accelerator() == torch.device("strict")


MIXTURES: dict[str, Callable[[], Any]] = {
    "sum": lambda: ones() + torch.ones(3),
    "product": lambda: torch.ones(3, 3) @ ones(),
    "concatenation": lambda: torch.cat([ones(), torch.ones(3)]),
    "choice": lambda: torch.where(torch.tensor([True, False, True]), ones(), ones()),
    "in place": lambda: ones().add_(torch.ones(3)),
    "out": lambda: torch.add(ones(), ones(), out=torch.empty(3)),
    "embedding": lambda: torch.nn.functional.embedding(torch.tensor([0]), torch.ones(3, 3, device="strict")),
}


@pytest.mark.parametrize("name", MIXTURES)
def test_an_operand_on_the_cpu_raises(name: str) -> None:
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        MIXTURES[name]()


def test_an_operand_on_the_other_index_raises() -> None:
    with pytest.raises(RuntimeError, match="found at least two devices, strict:0 and strict:1"):
        ones() + ones("strict:1")
    assert (ones() + ones("strict:1").to("strict:0")).tolist() == [2, 2, 2]


def test_numpy_of_its_tensors_raises() -> None:
    with pytest.raises(TypeError, match="can't convert strict:0 device type tensor to numpy"):
        ones().numpy()
    assert ones().cpu().numpy().tolist() == [1, 1, 1]


def test_a_generator_of_the_cpu_raises() -> None:
    with pytest.raises(RuntimeError, match="Expected a 'strict' device type for generator but found 'cpu'"):
        torch.randn(3, device="strict", generator=torch.Generator())
    own = torch.Generator(device="strict").manual_seed(0)
    assert torch.randn(3, device="strict", generator=own).isfinite().all()


WIDE: dict[str, Callable[[], Any]] = {
    "cast": lambda: ones().double(),
    "new": lambda: torch.zeros(3, dtype=torch.float64, device="strict"),
    "moved": lambda: torch.from_numpy(np.ones(3)).to("strict"),
    "sum": lambda: ones().sum(dtype=torch.float64),
    "promotion": lambda: torch.promote_types(torch.float32, torch.float64) and ones().to(torch.float64) + ones(),
}


@pytest.mark.parametrize("name", WIDE)
def test_float64_raises_where_it_is_switched_off(name: str) -> None:
    assert WIDE[name]().dtype == torch.float64
    with strict.without_float64(), pytest.raises(TypeError, match="no float64"):
        WIDE[name]()
    assert WIDE[name]().dtype == torch.float64, "the switch is put back"


def test_float32_stays_where_float64_is_switched_off() -> None:
    with strict.without_float64():
        narrow = torch.from_numpy(np.ones(3)).to("strict", torch.float32)
        assert (narrow * 0.5 + torch.tensor(0.5, dtype=torch.float64)).dtype == torch.float32


def test_what_is_counted() -> None:
    first, second = torch.ones(4, device="strict"), torch.ones(4, device="strict")
    with strict.counting() as counts:
        third = (first + second).view(2, 2).mT[0]  # views launch nothing
    assert counts == strict.Counts(operations=1)
    with strict.counting() as counts:
        third.double()
        first.clone()
    assert counts == strict.Counts(copies=2)
    with strict.counting() as counts:
        torch.tensor([1.0, 2.0], device="strict")
    assert counts == strict.Counts(uploads=1)
    with strict.counting() as counts:
        first.cpu()
        second.sum().item()
        first.nonzero()
    assert counts == strict.Counts(operations=2, waits=3)


def test_a_model_loads_on_any_accelerator_that_torch_sees() -> None:
    assert device_of("strict:1") == torch.device("strict:1")
    assert device_of(torch.device("strict")) == torch.device("strict")
    with pytest.raises(ValueError, match=r"device 'strict:2' was requested, but torch sees 2, counted from 0"):
        device_of("strict:2")
    with pytest.raises(ValueError, match=r"torch sees no MPS device: use device='cpu' or 'strict'"):
        device_of("mps")
