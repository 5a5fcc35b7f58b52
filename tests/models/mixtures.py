"""Random mixtures of depths on the tiny models, and the same logits by a naive sum in float64."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from interp_widgets.models import ModModel
from interp_widgets.models.mixture_of_depths.assemble import new_mixture, norm_parameters
from interp_widgets.models.mixture_of_depths.checkpoint import MixtureState, base_hash
from interp_widgets.models.mixture_of_depths.install import late_parts
from interp_widgets.models.mixture_of_depths.opening import build_mixture, read_base
from tests.models.tiny import HALF_SEED, tiny_folder, tiny_hf


def random_state(
    family: str, k: int, *, top_k: int | None = None, copied: bool = False, seed: int = 0, base_seed: int = 0
) -> MixtureState:
    """A router of scale 0.3 and norms changed at random (or, ``copied``, left as the final norm)."""
    hf_model, _ = read_base(tiny_folder(family, base_seed))
    found = base_hash(hf_model)
    parts = late_parts(hf_model)
    generator = torch.Generator().manual_seed(seed)
    mixture = new_mixture(parts, 0.3 * torch.randn(32, k, generator=generator), k if top_k is None else top_k)
    weights = {"router": mixture.router.detach().clone()}
    for name, parameter in norm_parameters(mixture, parts).items():
        shift = 0.0 if copied else 0.3
        weights[name] = parameter.detach() + shift * torch.randn(parameter.shape, generator=generator)
    return MixtureState(k, mixture.top_k, None, str(tiny_folder(family, base_seed)), family, found, weights)


@functools.cache
def tiny_mixture(
    family: str,
    backend: str = "auto",
    k: int = 2,
    *,
    top_k: int | None = None,
    copied: bool = False,
    dtype: torch.dtype = torch.float32,
) -> ModModel:
    """A loaded `ModModel` on the CPU (shared between tests: leave it as it was)."""
    base_seed = HALF_SEED if dtype == torch.bfloat16 else 0
    state = random_state(family, k, top_k=top_k, copied=copied, base_seed=base_seed)
    hf_model, tokenizer = read_base(tiny_folder(family, base_seed))
    return build_mixture(
        hf_model, state, tokenizer=tokenizer, name=f"{family} + MoD", source=None,
        device="cpu", dtype=dtype, backend=backend,  # type: ignore[arg-type]
    )  # fmt: skip


def naive(family: str, state: MixtureState, ids: Tensor) -> tuple[Tensor, list[Tensor], Tensor]:
    """Ensemble logits, each route's logits and the gates, all (batch, positions, ...), by the definition."""
    hf_model: Any = tiny_hf(family, dtype=torch.float64)
    parts = late_parts(hf_model)
    entered: list[Tensor] = []
    left: list[Tensor] = []

    def keep(module: Any, args: tuple[Any, ...], options: dict[str, Any], made: Any) -> None:
        entered.append(args[0] if args else options["hidden_states"])
        left.append(made[0] if isinstance(made, tuple) else made)

    for layer in parts.layers:
        layer.register_forward_hook(keep, with_kwargs=True)
    with torch.no_grad():
        hf_model(ids)
        scores = entered[-state.k] @ state.weights["router"].double()
        chosen = scores.topk(state.top_k, dim=-1).indices
        kept = torch.full_like(scores, -torch.inf).scatter(-1, chosen, scores.gather(-1, chosen))
        weights = kept.exp() / kept.exp().sum(-1, keepdim=True)
        raw = []
        for index in range(state.k):
            for name, parameter in parts.norm.named_parameters():
                parameter.copy_(state.weights[f"norms.{index}.{name}"])
            raw.append(parts.head(parts.norm(left[index - state.k])))
        total = torch.stack([weights[..., i, None] * raw[i] for i in range(state.k)]).sum(0)
        cap = getattr(hf_model.config, "final_logit_softcapping", None)
        capped = [logits if cap is None else cap * torch.tanh(logits / cap) for logits in (total, *raw)]
    return capped[0], capped[1:], weights
