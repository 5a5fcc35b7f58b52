"""Text generation with a key/value cache, token by token, the same on both backends."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch import Tensor

from .engine import incremental_decoder
from .mixture_of_depths.early_exit import EarlyExit, skips_layers
from .mixture_of_depths.install import mixture_of
from .network import Network
from .top_k import likeliest


def stepper(network: Network) -> Callable[[Tensor], Tensor]:
    """A function that maps further token ids (1, n) of one sequence to logits, and caches keys and values.

    It holds the model's lock during a step only, so that other threads may use the model in between. Raises ValueError
    if the model was edited since the first step: what is cached belongs to the model as it was.
    """
    with network.lock:
        mixture, first = mixture_of(network.tl_model), _edition(network)
        feed = incremental_decoder(network)
        if mixture is not None and skips_layers(network):
            feed = EarlyExit(network, mixture, mixture.top_k).feed

    def step(ids: Tensor) -> Tensor:
        with network.lock:
            if _edition(network) != first:
                raise ValueError(f"{network.name} was edited while it generated a text: generate it again")
            return feed(ids)

    return step


def _edition(network: Network) -> tuple[Any, ...]:
    """What `ModelEdit.apply` and `ModModel.top_k` change, equal again once it is undone."""
    mixture = mixture_of(network.tl_model)
    return (None if mixture is None else mixture.top_k, *(undo for _, undo in network.applied))


@torch.no_grad()
def generate_ids(
    step: Callable[[Tensor], Tensor],
    ids: Sequence[int],
    *,
    device: torch.device,
    max_new_tokens: int,
    temperature: float,
    seed: int,
    stop: Collection[int],
    check: Callable[[], None] | None,
    on_token: Callable[[int], None] | None,
    keep_end: bool = False,
) -> list[int]:
    """Continue a checked prompt by a function from `stepper`; see `Model.generate_ids`."""
    generator = torch.Generator().manual_seed(int(seed) % 2**63)
    feed = torch.tensor([list(ids)], device=device)
    generated: list[int] = []
    while len(generated) < max_new_tokens:
        if check is not None:
            check()
        last = step(feed)[0, -1].cpu().double()  # the same sample on every device
        if not torch.isfinite(last.max()):
            raise ValueError("the model's logits are not finite (NaN or infinity); look for broken weights or edits")
        if temperature == 0:
            token = likeliest(last)
        else:
            token = int(torch.multinomial(((last - last.max()) / temperature).softmax(-1), 1, generator=generator))
        if token in stop:
            return [token] if keep_end and not generated else generated
        generated.append(token)
        if on_token is not None:
            on_token(token)
        feed = torch.tensor([[token]], device=device)
    return generated
