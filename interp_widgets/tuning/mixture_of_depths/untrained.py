"""`untrained_mod`: a mixture before its first tuning step."""

from __future__ import annotations

from interp_widgets.arguments import checked
from interp_widgets.models import Model, ModModel
from interp_widgets.models.mixture_of_depths.assemble import new_mixture, norm_parameters
from interp_widgets.models.mixture_of_depths.checkpoint import MixtureState, base_hash
from interp_widgets.models.mixture_of_depths.install import late_parts
from interp_widgets.models.mixture_of_depths.model import check_k, check_top_k
from interp_widgets.models.mixture_of_depths.opening import build_mixture, read_base
from interp_widgets.models.state import check_as_loaded

from .trainer import first_router


@checked
def untrained_mod(model: Model, k: int = 3, *, top_k: int | None = None, seed: int = 0) -> ModModel:
    """A mixture of depths before its first tuning step: a random router, and norms copied from the final norm.

    `tune_mod` with the same k and seed starts from these weights.

    Args:
        model: a `Model` that was loaded from a name or folder.
        k: number of routes, 1..n_layers.
        top_k: routes that each token uses; k by default.
        seed: seed of the router.

    Raises:
        ValueError: a number is out of range, or the model came from memory, was edited or does not support a mixture.

    Source: Explainability in Large Language Models: Pathways to Refinement and Alignment (Luo 2024), sections 5.1.1
    and 5.1.2.

    Example:
        >>> mixture = untrained_mod(model, 2)
        >>> mixture.route_layers, mixture.added_parameters
        ((4, 5), 768)
    """
    if isinstance(model, ModModel):
        raise ValueError(f"{model.name} already has a mixture: give its base model")
    check_k(k, model.n_layers)
    used = k if top_k is None else top_k
    check_top_k(used, k)
    if model.source is None:
        raise ValueError(
            f"{model.name} came from memory and its transformers model is unknown: load it by its name or folder"
        )
    check_as_loaded(model, "a mixture of depths")
    hf_model, tokenizer = read_base(model, model.tokenizer)
    parts = late_parts(hf_model)
    mixture = new_mixture(parts, first_router(next(parts.norm.parameters()), k, seed), used)
    named = {"router": mixture.router, **norm_parameters(mixture, parts)}
    weights = {name: parameter.detach().cpu().clone() for name, parameter in named.items()}
    state = MixtureState(k, used, None, model.source, model.name, base_hash(hf_model), weights)
    return build_mixture(
        hf_model, state, tokenizer=tokenizer, name=f"{model.name} + untrained MoD", source=None, device=model.device,
        dtype=model.dtype, backend=model.backend,
    )  # fmt: skip
