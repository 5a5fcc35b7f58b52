"""`Network`: a model without tokenizer: weights, hooks, sizes and state. The engines work on it."""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from interp_widgets.arguments import checked
from interp_widgets.locks import Rank, RankedLock
from interp_widgets.renamed import renamed

from . import weights
from .capabilities import Capabilities, find_capabilities
from .devices import is_spread
from .hooks import Edit, Objective, Run, canonical_hook_names, differentiable, run_hooked
from .memory import free_bytes
from .placement import is_offloaded, quantisation, weights_materialised
from .state import Watch, last_remembered, remembered, weights_key
from .stopping import unstoppable

Backend = Literal["hooked", "bridge"]


@renamed(quantised="quantized")
class Network:
    """A TransformerLens model with the same names for both backends; `Model` adds the tokenizer.

    Sizes: n_layers, n_heads, n_kv_heads (key/value heads, n_heads unless they are shared), d_model, d_head, d_mlp,
    d_vocab, n_ctx (positions). `lock` is held while the model computes, so that a cell's run and a widget's run never
    see each other's hooks. `caches`: whether keys and values may be reused. `bos_token_id` and `prepend_bos`: how a
    text begins; see `Model`.
    """

    def __init__(
        self,
        tl_model: Any,
        *,
        name: str,
        backend: Backend,
        processed: bool = False,
        bos_token_id: int | None = None,
        prepend_bos: bool = False,
        parameters: int | None = None,
        caches: bool = True,
    ) -> None:
        cfg = tl_model.cfg
        self._parameters = parameters
        self.lock = RankedLock(Rank.MODEL, f"the model {name}")
        self.tl_model = tl_model
        self._watch = Watch(tl_model)
        weights.note_places(tl_model)
        self._hashes: dict[bytes, str] = {}
        self.name = name
        self.backend: Backend = backend
        self.processed = processed
        self.n_layers: int = cfg.n_layers
        self.n_heads: int = cfg.n_heads
        self.n_kv_heads: int = getattr(cfg, "n_key_value_heads", None) or cfg.n_heads
        self.d_model: int = cfg.d_model
        self.d_head: int = cfg.d_head
        with weights_materialised(*tl_model.blocks[0].modules()):
            self.d_mlp: int = weights.mlp_width(tl_model)
        self.d_vocab: int = cfg.d_vocab
        self.n_ctx: int = cfg.n_ctx
        self.normalization: Literal["LayerNorm", "RMSNorm"] = (
            "RMSNorm" if str(cfg.normalization_type).upper().startswith("RMS") else "LayerNorm"
        )
        self.caches = caches
        self.bos_token_id = bos_token_id
        self.prepend_bos = bool(prepend_bos and bos_token_id is not None)
        self.applied: list[tuple[str, contextlib.ExitStack]] = []
        """Name and undo stack of every edit in force, in the order of applying, maintained by `ModelEdit.apply`."""

    @property
    def norm_epsilon(self) -> float:
        """What the norms add to the variance."""
        return float(getattr(self.tl_model.cfg, "eps", None) or 0.0)

    @property
    def edits(self) -> tuple[str, ...]:
        """The names of the edits in force, in the order in which they were applied."""
        return tuple(name for name, _ in self.applied)

    @property
    def device(self) -> torch.device:
        """The device of the weights; for a model spread over several devices, that of its embeddings."""
        return next(self.tl_model.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        """The floating-point dtype of the weights."""
        return next(self.tl_model.parameters()).dtype

    @property
    def precision(self) -> torch.dtype:
        """The dtype whose precision results have: transformers' RMSNorm computes in float32 in a float64 model."""
        dtype = self.dtype
        rounds = self.backend == "bridge" and dtype == torch.float64 and self.normalization == "RMSNorm"
        return torch.float32 if rounds else dtype

    @functools.cached_property
    def spread(self) -> bool:
        """Whether the weights are on several devices; `weight`, hooks and logits are on the first nevertheless."""
        return is_spread(self.tl_model)

    @functools.cached_property
    def parameter_count(self) -> int:
        """Number of parameters of the transformers model, where tied input and output embeddings count once.

        For a model created by TransformerLens, TransformerLens's count, where they count twice.
        """
        own = (parameter.numel() for parameter in self.tl_model.parameters())
        return sum(own) if self._parameters is None else self._parameters

    @property
    def weight_hash(self) -> str:
        """SHA-256 of the current weights (64 hexadecimal digits); recomputed only when they change."""
        with self.lock:
            key = weights_key(self)
            if key not in self._hashes:
                self._hashes[key] = weights.weight_hash(self.tl_model)
            return self._hashes[key]

    @property
    def capabilities(self) -> Capabilities:
        """The model's capabilities, and the reasons for missing ones; determined by one short pass at load, and again
        after an edit of modules, functions or settings."""
        return remembered(self, "capabilities", self._find_capabilities)

    @property
    def last_capabilities(self) -> Capabilities:
        """`capabilities` as last determined, for later steps of one call: the model is not examined again."""
        held: Capabilities | None = last_remembered(self, "capabilities")
        return self.capabilities if held is None else held

    def _find_capabilities(self) -> Capabilities:
        with unstoppable():
            return find_capabilities(
                self.tl_model, caches=self.caches, normalization=self.normalization, d_mlp=self.d_mlp
            )

    @functools.cached_property
    def offloaded(self) -> bool:
        """Whether accelerate keeps some weights on disk or on another device and loads them when they are used."""
        return is_offloaded(self.tl_model)

    @functools.cached_property
    def quantized(self) -> str | None:
        """How transformers has quantised the weights, such as ``"torchao"``; None for plain ones."""
        return quantisation(getattr(self.tl_model, "original_model", None))

    @property
    def hook_names(self) -> tuple[str, ...]:
        """The hook names for `run`: HookedTransformer's names on both backends."""
        return canonical_hook_names(self.tl_model)

    def free_memory(self) -> int:
        """Bytes of memory on the model's device that are free for a computation."""
        return free_bytes(self.device)

    # ---- token ids

    def _checked_ids(self, ids: Tensor | Sequence[int]) -> list[int]:
        try:
            checked_ids = [operator.index(i) for i in (ids.flatten().tolist() if isinstance(ids, Tensor) else ids)]
        except TypeError as error:
            raise TypeError(f"give text, or token ids as a list of int, got {_preview(ids)}") from error
        wrong = next((i for i in checked_ids if not 0 <= i < self.d_vocab), None)
        if wrong is not None:
            raise ValueError(self._no_such_token(wrong))
        return checked_ids

    def _no_such_token(self, token: int) -> str:
        """What is wrong with an id outside the vocabulary."""
        return f"token ids must be in 0..{self.d_vocab - 1} for this vocabulary, got {token}"

    def _batch(self, ids: Tensor | Sequence[int] | Sequence[Sequence[int]]) -> Tensor:
        if isinstance(ids, Tensor) and (ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool):
            raise TypeError(f"token ids must be integers, got a tensor of {ids.dtype}")
        try:  # not moved yet: ids of a list are checked without synchronising
            batch = torch.as_tensor(ids, dtype=torch.long)
        except (RuntimeError, OverflowError, ValueError) as error:  # larger than any id, or lists of different lengths
            raise ValueError(
                f"ids must be a list of token ids in 0..{self.d_vocab - 1}, or several of one length, "
                f"got {_preview(ids)}"
            ) from error
        batch = batch[None] if batch.ndim == 1 else batch
        if batch.ndim != 2 or batch.numel() == 0:
            raise ValueError(
                "ids must be a non-empty list of token ids or a (batch, positions) tensor, "
                f"got shape {tuple(batch.shape)}"
            )
        if batch.shape[1] > self.n_ctx:
            raise ValueError(
                f"{batch.shape[1]} tokens do not fit the model's context of {self.n_ctx} tokens: shorten the text"
            )
        low, high = torch.stack(batch.aminmax()).tolist()
        if low < 0 or high >= self.d_vocab:
            raise ValueError(self._no_such_token(low if low < 0 else high))
        return differentiable(batch.to(self.device))

    # ---- hooks, embeddings and weights

    @checked
    def run(
        self,
        ids: Tensor | Sequence[int] | Sequence[Sequence[int]],
        *,
        capture: str | Iterable[str] = (),
        edit: Mapping[str, Edit] | None = None,
        grad: Objective | None = None,
        embeddings: Tensor | None = None,
    ) -> Run:
        """One forward pass, reading, changing and differentiating values at named hooks.

        Args:
            ids: token ids, a list or a (batch, positions) tensor.
            capture: hook names to read, such as ``"blocks.0.hook_resid_pre"``; values are recorded after any edit.
            edit: for a hook name, a function from its value to a new value of the same shape (batch axis first).
            grad: a function from the logits (batch, positions, d_vocab) to one number; fills ``gradients`` for every
                captured name. No parameter's ``.grad`` is touched.
            embeddings: (positions, d_model) or (batch, positions, d_model) token embeddings used instead of the ids'
                own; position information is still added by the model.

        Raises:
            ValueError: unknown hook names (similar ones are suggested), too many tokens, an edit that changes a shape.
        """
        batch = self._batch(ids)
        for name, change in (edit or {}).items():
            if not callable(change):
                raise TypeError(f"the edit of {name} must be a callable, got {change!r}")
        if embeddings is not None:
            embeddings = embeddings[None] if embeddings.ndim == 2 else embeddings
            if embeddings.shape[1:] != (batch.shape[1], self.d_model):
                expected = f"(batch, {batch.shape[1]}, {self.d_model})"
                raise ValueError(f"embeddings must have shape {expected}, got {tuple(embeddings.shape)}")
            batch = batch.expand(embeddings.shape[0], -1)
            embeddings = differentiable(embeddings.to(device=self.device, dtype=self.dtype))
        with self.lock, self.frozen() if grad is not None else contextlib.nullcontext():
            return run_hooked(
                self.tl_model, batch, backend=self.backend, capture=capture, edit=edit, grad=grad, embeddings=embeddings
            )

    @checked
    def token_embeddings(self, ids: Tensor | Sequence[int]) -> Tensor:
        """(positions, d_model) token embedding of each id, without position information."""
        return self.embed(self._batch(ids))[0]

    def embed(self, batch: Tensor) -> Tensor:
        """(batch, positions, d_model) token embeddings of ids (batch, positions), which are not checked."""
        return weights.token_embeddings(self.tl_model, batch)

    @property
    def gated(self) -> bool:
        """Whether the MLPs multiply a linear branch with a gate."""
        return bool(getattr(self.tl_model.cfg, "gated_mlp", False))

    def weight(self, name: str, layer: int | None = None, *, grouped: bool = False) -> Tensor:
        """One weight in HookedTransformer's orientation (input axis first), detached and not copied where possible.

        Whole model: W_E (d_vocab, d_model), W_pos (n_ctx, d_model), W_U (d_model, d_vocab), b_U (d_vocab), and the
        final norm's scale ln_final_w and bias ln_final_b (d_model).
        Per layer: W_Q, W_K, W_V (n_heads, d_model, d_head), W_O (n_heads, d_head, d_model), b_Q, b_K, b_V
        (n_heads, d_head), b_O (d_model), W_in, W_gate (d_model, d_mlp), W_out (d_mlp, d_model), b_in (d_mlp),
        b_out (d_model); the norms before attention and MLP ln1_w, ln1_b, ln2_w, ln2_b (d_model), and ln1_post_w,
        ln1_post_b, ln2_post_w, ln2_post_b of models that normalise the outputs of both. Shared key/value heads are
        repeated per query head unless ``grouped``; an absent bias is zero, the scale of a norm without one (or folded
        away) is one, and Gemma's is the actual factor. A norm or factor between two matrices (BitNet, Falcon-H1) is
        part of neither.
        """
        if name in ("ln1_w", "ln1_b"):
            _ = self.capabilities  # determined again where a module was replaced
        return self.last_weight(name, layer, grouped=grouped)

    def last_weight(self, name: str, layer: int | None = None, *, grouped: bool = False) -> Tensor:
        """`weight` for later steps of one call: the model is not examined again, see `last_capabilities`."""
        value = self._held_weight(name, layer, grouped=grouped)
        if name in ("ln1_w", "ln1_b") and self.last_capabilities.norms_behind_attention:
            return torch.ones_like(value) if name == "ln1_w" else torch.zeros_like(value)
        return value

    def _held_weight(self, name: str, layer: int | None = None, *, grouped: bool = False) -> Tensor:
        """`weight` without a look at what the norms of the blocks read."""
        owners = list(self._owners(layer))
        if not owners:  # plain weights can be read at any time, even during a pass
            return self._weight(name, layer, grouped)
        with self.lock, weights_materialised(*owners):
            try:
                return self._weight(name, layer, grouped)
            except NotImplementedError as error:
                raise ValueError(
                    f"{name} of {self.name} cannot be read, because its weights are quantised ({self.quantized}): "
                    "load the model that it was made from"
                ) from error

    def _weight(self, name: str, layer: int | None, grouped: bool) -> Tensor:
        value = weights.weight(self.tl_model, name, layer, grouped=grouped)
        return value.to(self.device) if self.spread else value

    def _owners(self, layer: int | None) -> Iterator[torch.nn.Module]:
        """The modules whose weights must be made readable to read those of a layer or of the whole model."""
        if not (self.offloaded or self.quantized):
            return
        outer = (getattr(self.tl_model, part, None) for part in ("embed", "pos_embed", "ln_final", "unembed"))
        for part in outer if layer is None else self.tl_model.blocks[layer : layer + 1]:
            yield from () if part is None else part.modules()

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """Context manager in which no parameter requires a gradient; the flags are restored afterwards."""
        flags = [(parameter, parameter.requires_grad) for parameter in self.tl_model.parameters()]
        try:
            for parameter, _ in flags:
                parameter.requires_grad_(False)
            yield
        finally:
            for parameter, flag in flags:
                parameter.requires_grad_(flag)


def _preview(value: object) -> str:
    """The beginning of a value on one line."""
    return " ".join(str(value).split())[:60]
