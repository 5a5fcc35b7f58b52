"""What a model's state costs: at every call, read whole, and the hash of its weights.

    python benchmarks/state_key.py [--device cuda] [--parameters 1e9]

The demo model on both backends, and a stack of blocks of the LLaMA-1B shape whose values do not matter (float32, 4 GB
of memory for a billion parameters). Milliseconds of the fastest call; what is done at every call has the limits that
the project sets itself: 2 ms for the demo model, 50 ms for a billion parameters. Then what is seen of one changed value
that leaves no trace in PyTorch, in the largest tensor.
"""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from interp_widgets.models import load_demo_pair
from interp_widgets.models.state import Watch, edits, remembered, state_key, weights_key
from interp_widgets.models.weights import weight_hash

WIDTH, HIDDEN, VOCABULARY = 2048, 8192, 128_256


def milliseconds(function: Callable[[], object], device: torch.device, repeats: int = 15) -> float:
    """The fastest of some calls, as other programs slow down the others."""
    function()
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        function()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(1e3 * (time.perf_counter() - began))
    return min(times)


def block(device: torch.device) -> nn.Module:
    """The matrices of one LLaMA block."""
    sizes = {"q": (WIDTH, WIDTH), "k": (WIDTH, 512), "v": (WIDTH, 512), "o": (WIDTH, WIDTH),
             "gate": (WIDTH, HIDDEN), "up": (WIDTH, HIDDEN), "down": (HIDDEN, WIDTH)}  # fmt: skip
    parts: dict[str, nn.Module] = {name: nn.Linear(*size, bias=False, device="meta") for name, size in sizes.items()}
    parts |= {name: nn.RMSNorm(WIDTH, device="meta") for name in ("ln1", "ln2")}
    return nn.ModuleDict(parts).to_empty(device=device)


def large(parameters: float, device: torch.device) -> Any:
    """A network of so many parameters and an unembedding of half a gigabyte and more; it computes nothing."""
    size = sum(parameter.numel() for parameter in block(torch.device("meta")).parameters())
    table = min(VOCABULARY, int(parameters / 4 / WIDTH))
    count = max(1, round((parameters - table * WIDTH) / size))
    model = nn.ModuleDict({"blocks": nn.ModuleList(block(device) for _ in range(count))})
    model["unembed"] = nn.Linear(WIDTH, table, bias=False, device=device)
    with torch.no_grad():
        for index, parameter in enumerate(model.parameters()):
            parameter.fill_(index / 1000)
    return SimpleNamespace(name="large", tl_model=model, lock=threading.RLock(), _watch=Watch(model))


def rows(network: Any, device: torch.device, limit: float) -> list[tuple[str, float, float | None]]:
    """Name, milliseconds and limit of each thing that is asked for."""
    table: list[tuple[str, float, float | None]] = [
        ("a look without values", milliseconds(lambda: remembered(network, "nothing", object), device), None),
        ("state, at every call", milliseconds(lambda: state_key(network), device), limit),
        ("state, every byte read", milliseconds(lambda: state_key(network, exact=True), device), None),
        ("digest of the weights", milliseconds(lambda: weights_key(network), device), None),
        ("edits since the load", milliseconds(lambda: edits(network), device), None),
        ("made anew, as at a load", milliseconds(lambda: Watch(network.tl_model), device, 3), None),
    ]
    began = time.perf_counter()
    weight_hash(network.tl_model)
    return [*table, ("SHA-256, only when weights moved", 1e3 * (time.perf_counter() - began), None)]


def one_value(network: Any) -> list[str]:
    """What is seen of one changed value in the largest tensor, changed through memory that PyTorch does not watch."""
    largest = max(network.tl_model.parameters(), key=torch.Tensor.numel)
    before, quick = state_key(network, exact=True), state_key(network)
    values = largest.data.view(-1)  # .data does not count changes
    kept = values[123_457].clone()
    values[123_457] += 1
    seen, exact = state_key(network), state_key(network, exact=True)
    values[123_457] = kept
    undone = state_key(network, exact=True)
    return [
        f"one value of {largest.numel() * 4 / 1e6:.0f} MB changed through .data:",
        f"  quick key moved: {seen.content != quick.content}, and says that it is certain: {seen.certain}",
        f"  exact key moved: {exact.content != before.content}; undone, it is the one from before: {undone == before}",
    ]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--parameters", type=float, default=1e9)
    options = parser.parse_args()
    device = torch.device(options.device)
    for backend in ("hooked", "bridge"):
        model = load_demo_pair(device=device, backend=backend).tuned  # type: ignore[arg-type]
        show(f"demo model, {backend}", model, rows(model, device, 2.0))
    network = large(options.parameters, device)
    show("made-up model", network, rows(network, device, 50.0))
    print(*one_value(network), sep="\n")


def show(title: str, network: Any, table: list[tuple[str, float, float | None]]) -> None:
    """Print one table."""
    parameters = list(network.tl_model.parameters())
    count, size = sum(p.numel() for p in parameters), sum(p.nbytes for p in parameters) / 1e6
    print(f"{title}: {count / 1e6:,.1f}M parameters in {len(parameters)} tensors, {size:,.0f} MB")
    for name, value, limit in table:
        print(f"  {name:<34} {value:>10.2f} ms" + ("" if limit is None else f"   (limit {limit:g} ms)"))


if __name__ == "__main__":
    main()
