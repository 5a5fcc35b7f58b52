"""`ModModel`: a `Model` whose logits are a mixture over its last k layers."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..model import Model
from .checkpoint import MixtureState, save_state
from .early_exit import skips_layers
from .install import mixture_of
from .mixture import Mixture

__all__ = ["ModModel"]


class ModModel(Model):
    """A model with a mixture of depths, as returned by `tune_mod` and by `load_model` of its folder.

    It is a `Model` in every respect: its outputs, generated text and hooks include the mixture, and an edit of the
    residual stream reaches every route. Analyses that decode a single residual stream (the logit lens, the logits in a
    token decomposition, direct effects and tokens of neurons, the final norm's weights) decode it as the last route
    does, even where that route has no weight. A soft cap on the base's logits (Gemma 2) acts on the mixed logits, or on
    those of a route that is decoded alone.

    Source: Explainability in Large Language Models: Pathways to Refinement and Alignment (Luo 2024), section 5.1.

    Example:
        >>> mixture = untrained_mod(base, 2)
        >>> mixture.k, mixture.top_k, mixture.route_layers, mixture.added_parameters
        (2, 2, (4, 5), 768)
        >>> mixture.generate("The Eiffel Tower is in the city of", max_new_tokens=1)
        ' Paris'
    """

    def __init__(self, tl_model: Any, *, state: MixtureState, **options: Any) -> None:
        super().__init__(tl_model, **options)
        self.state = state
        """The learned weights and the base model they belong to."""

    def __repr__(self) -> str:
        used = f"top {self.top_k}" if self.only is None else f"only route {self.only}"
        return f"Mod{super().__repr__()[:-1]}, {self.k} routes, {used})"

    @property
    def mixture(self) -> Mixture:
        """Router and norms, within the TransformerLens model."""
        mixture = mixture_of(self.tl_model)
        if mixture is None:
            raise ValueError(f"the mixture was taken out of {self.name}: load it again")
        return mixture

    @property
    def k(self) -> int:
        """Number of routes: the last k layers."""
        return self.state.k

    @property
    def only(self) -> int | None:
        """The only route that is used, 0..k-1; None for the router's mixture."""
        return self.state.only

    @property
    def route_layers(self) -> tuple[int, ...]:
        """The layer whose output each route reads."""
        return tuple(range(self.n_layers - self.k, self.n_layers))

    @property
    def top_k(self) -> int:
        """Number of routes per token, 1..k; can be set."""
        return self.mixture.top_k

    @top_k.setter
    def top_k(self, value: int) -> None:
        check_top_k(value, self.k)
        with self.lock:
            self.mixture.top_k = value

    @property
    def skips_layers(self) -> bool:
        """Whether generation skips layers above a token's last route; otherwise all layers are computed.

        True for ordinary blocks without hooks. The text is the same either way.
        """
        with self.lock:
            return skips_layers(self)

    @contextlib.contextmanager
    def with_top_k(self, value: int) -> Iterator[None]:
        """Context manager in which each token uses ``value`` routes, in all threads. It may end in any order.

        It waits until passes of other threads have ended, and holds no lock: hold ``lock`` too to compute alone.
        """
        check_top_k(value, self.k)
        choice = self.mixture.using(value)
        with self.lock:
            choice.__enter__()
        try:
            yield
        finally:
            with self.lock:
                choice.__exit__(None, None, None)

    @property
    def added_parameters(self) -> int:
        """Number of parameters added to the base: router, one norm per route, adapters."""
        return sum(value.numel() for value in self.state.weights.values())

    @property
    def weight_hash(self) -> str:
        """SHA-256 of all current weights and of `top_k` (64 hexadecimal digits)."""
        return hashlib.sha256(f"{super().weight_hash} top_k {self.top_k} only {self.only}".encode()).hexdigest()

    def provenance(self) -> dict[str, str | int | float | bool]:
        """As for every model, with the mixture and its base model."""
        return {
            **super().provenance(),
            "mod_k": self.k,
            "mod_top_k": self.top_k,
            **({} if self.only is None else {"mod_only": self.only}),
            "mod_base": self.state.base_name,
            "mod_base_weight_hash": self.state.base_hash,
        }

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write a folder for `load_model` and `tune_mod(resume=...)`; returns its path.

        It holds the learned weights as safetensors, and a JSON file with the base model's name and weight hash; the
        base model itself is not copied.
        """
        return save_state(replace(self.state, top_k=self.top_k), folder)


def check_k(value: Any, n_layers: int) -> None:
    """Raise ValueError unless ``value`` is a possible number of routes of a model."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= n_layers:
        raise ValueError(f"k must be an int in 1..{n_layers} for this {n_layers}-layer model, got {value!r}")


def check_top_k(value: Any, k: int) -> None:
    """Raise ValueError unless ``value`` is a possible number of routes per token."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= k:
        raise ValueError(f"top_k must be an int in 1..{k} for {k} routes, got {value!r}")
