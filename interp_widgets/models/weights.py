"""Weights with the same names and orientation for both backends."""

from __future__ import annotations

import hashlib
import math
import operator
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from .placement import parameter_places, plain_weight

ATTENTION = ("W_Q", "W_K", "W_V", "W_O", "b_Q", "b_K", "b_V", "b_O")
SHARED = ("W_K", "W_V", "b_K", "b_V")
"""Weights of heads that several query heads may share."""
MLP = ("W_in", "W_gate", "W_out", "b_in", "b_gate", "b_out")
NORMS = ("ln1_w", "ln1_b", "ln2_w", "ln2_b", "ln1_post_w", "ln1_post_b", "ln2_post_w", "ln2_post_b")
OUTER = ("embed", "pos_embed", "ln_final", "unembed")
"""Parts of a model around its blocks."""
FINAL_NORM = ("ln_final_w", "ln_final_b")
GLOBAL = ("W_E", "W_pos", "W_U", "b_U", *FINAL_NORM)
_READING = ("W_in", "W_gate", "b_in", "b_gate")
_EXPERTS = ("experts", "moe")
"""Parts of a bridge's block that run beside its MLP and whose output is added to that of the MLP."""
_OFFSETS = (0, 1)
_Place = tuple[Callable[[], Any], Callable[[], Any], str]
"""A part, the module of transformers that it lies in, and under which name; kept alive by neither."""
_PLACES: weakref.WeakKeyDictionary[Any, list[_Place]] = weakref.WeakKeyDictionary()
"""Where the parts of bridges, and those within them, lay when they were first seen."""
_ADDED: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
"""Offsets that norms of transformers add to their weight before multiplying, cached when determined."""

_PART = 2**26
"""Most bytes of a parameter that are copied at a time to be hashed."""


class PartReplacedError(ValueError):
    """The weight belongs to a module that the model no longer runs."""


def weight(tl_model: Any, name: str, layer: int | None, *, grouped: bool = False) -> Tensor:
    """One weight matrix or bias; see `Network.weight`."""
    if not isinstance(name, str):
        raise TypeError(f"name must be a str such as 'W_Q', got an object of type {type(name).__name__}")
    try:
        layer = layer if layer is None else operator.index(layer)
    except TypeError as error:
        raise TypeError(f"layer must be an int or None, got an object of type {type(layer).__name__}") from error
    if name in GLOBAL:
        if layer is not None:
            raise ValueError(f"{name} belongs to the whole model, so layer must be left out, got {layer}")
        return _norm(tl_model, tl_model, name) if name in FINAL_NORM else _global(tl_model, name)
    if name not in ATTENTION + MLP + NORMS:
        raise ValueError(f"name must be one of {', '.join(GLOBAL + ATTENTION + MLP + NORMS)}, got {name[:60]!r}")
    n_layers = tl_model.cfg.n_layers
    if layer is None or not -n_layers <= layer < n_layers:
        raise ValueError(f"layer must be in {-n_layers}..{n_layers - 1} for this {n_layers}-layer model, got {layer}")
    if name in NORMS:
        return _norm(tl_model, tl_model.blocks[layer], name)
    _check_in_place(getattr(tl_model.blocks[layer], "attn" if name in ATTENTION else "mlp", None), name)
    value = own_weight(tl_model, name, layer)
    value = _absent_weight(tl_model, name, layer) if value is None else value.detach()
    heads = tl_model.cfg.n_heads
    if name in SHARED and value.shape[0] != heads and not grouped:
        value = value.repeat_interleave(heads // value.shape[0], 0)
    return value


def note_places(tl_model: Any) -> None:
    """Keep where a bridge's parts lie in the transformers model, so that one that is replaced there is not taken for
    what runs."""
    model = getattr(tl_model, "original_model", None)
    if model is None:
        return
    for label in OUTER:
        _note_place(getattr(tl_model, label, None), model)
    for block in tl_model.blocks:
        for part in block.children():
            _note_place(part, getattr(block, "original_component", None))


def _note_place(part: Any, around: Any) -> None:
    if part is None or part in _PLACES or not hasattr(part, "original_component"):
        return
    found = [_place(part, around)]
    found += [_place(inner, part.original_component, around) for inner in part.children()]
    _PLACES[part] = [place for place in found if place is not None]


def _place(part: Any, *around: Any) -> _Place | None:
    """The place of a part in the first of the modules that holds it; None if none of them does."""
    name = getattr(part, "name", None)
    path, _, leaf = name.rpartition(".") if isinstance(name, str) else ("", "", "")
    for module in around:
        try:
            holder = module.get_submodule(path)
        except (AttributeError, TypeError):
            continue
        if holder._modules.get(leaf) is part:
            return weakref.ref(part), weakref.ref(holder), leaf
    return None


def is_replaced(part: Any) -> bool:
    """Whether another module runs in the place of a bridge's part, or of one within it, than when it was loaded."""
    for known, holder, leaf in _PLACES.get(part, ()):
        module = holder()
        if module is None or module._modules.get(leaf) is not known():
            return True
    return False


def _check_in_place(part: Any, name: str) -> None:
    if part is not None and is_replaced(part):
        raise PartReplacedError(
            f"this model has no {name} any more, because that part of the transformers model was replaced after it "
            "was loaded: load the changed transformers model with load_model"
        )


def token_embeddings(tl_model: Any, ids: Tensor) -> Tensor:
    """(batch, positions, d_model) token embeddings, equal to those of transformers' ``get_input_embeddings()``: before
    any norm, and without position information."""
    if not isinstance(ids, Tensor) or ids.dtype not in (torch.int32, torch.int64):
        got = ids.dtype if isinstance(ids, Tensor) else type(ids).__name__
        raise TypeError(f"token ids must be an integer tensor (batch, positions), got {got}")
    # the bridge's embedding runs hooks, which belong to the pass that reads the rows
    table = getattr(tl_model.embed, "original_component", None)
    with torch.no_grad():
        try:
            rows: Tensor = tl_model.embed.W_E[ids] if table is None else table(ids)
        except IndexError as error:
            raise ValueError(f"token ids must be in 0..{tl_model.cfg.d_vocab - 1} for this vocabulary") from error
    return rows.detach()


def own_weight(tl_model: Any, name: str, layer: int) -> Tensor | None:
    """A weight of a block's attention or MLP as the library stores it; None where it is not a single tensor."""
    block = tl_model.blocks[layer]
    part = getattr(block, "attn" if name in ATTENTION else "mlp", None)
    if name in MLP and any(getattr(block, beside, None) is not None for beside in _EXPERTS):
        return None  # the matrix is only a part of what counts as the MLP
    if part is not None and is_replaced(part):
        return None
    # a bridge's weights are properties, which raise their own error for other kinds of blocks
    try:
        # HookedTransformer keeps shared key/value heads once, under a name of their own
        value = getattr(part, f"_{name}" if name in SHARED and hasattr(part, f"_{name}") else name, None)
    except (RuntimeError, ValueError, LookupError, TypeError, AttributeError):
        return None
    if not isinstance(value, Tensor):
        return None
    return None if name in _READING and _holds_two(tl_model, value, layer) else value


def _holds_two(tl_model: Any, value: Tensor, layer: int) -> bool:
    """Whether a matrix or bias in front of the neurons is that of a gate and of the linear branch in one."""
    written = own_weight(tl_model, "W_out", layer)
    return written is not None and value.shape[-1] != written.shape[0]


def mlp_width(tl_model: Any) -> int:
    """Neurons per MLP: rows of the first layer's output matrix, or the configuration's number if there is none."""
    value = own_weight(tl_model, "W_out", 0)
    return int(tl_model.cfg.d_mlp or 0) if value is None or value.ndim != 2 else int(value.shape[0])


def _norm(tl_model: Any, parent: Any, name: str) -> Tensor:
    """Scale or bias (d_model,) of a norm; ones and zeros where it has none."""
    label, kind = name.rsplit("_", 1)
    norm = getattr(parent, label, None)
    if norm is None and label != "ln_final":
        raise ValueError(f"this model has no {name}: its blocks have no {label}")
    _check_in_place(norm, name)
    inner = getattr(norm, "original_component", None)  # the bridge's norm exposes transformers' parameters
    value = getattr(
        norm if inner is None else inner, kind if inner is None else {"w": "weight", "b": "bias"}[kind], None
    )
    if value is None:
        reference = next(tl_model.parameters())
        fill = torch.ones if kind == "w" else torch.zeros
        return fill(tl_model.cfg.d_model, dtype=reference.dtype, device=reference.device)
    # HookedTransformer's norm weights are the factors themselves
    return value.detach() if inner is None or kind == "b" else _norm_factor(inner, value.detach())


def _norm_factor(norm: Any, stored: Tensor) -> Tensor:
    """(d_model,) the factor of a transformers norm whose weight is ``stored``: the weight itself, the weight plus one
    (Gemma, Nemotron, Qwen3-Next), or else the norm's output for a normalised row."""
    if norm not in _ADDED:
        seen = _measured_factor(norm, stored)
        differences = [float((seen - stored.float() - offset).abs().sum()) for offset in _OFFSETS]
        least = min(differences)
        if not least < 0.02 * float(seen.abs().sum()):
            return stored if least != least else seen.to(stored.dtype)  # not a number: so is the weight
        _ADDED[norm] = _OFFSETS[differences.index(least)]
    return stored + _ADDED[norm] if _ADDED[norm] else stored


@torch.no_grad()
def _measured_factor(norm: Any, stored: Tensor) -> Tensor:
    """(d_model,) the factor of a norm, measured on two rows of equal size; its hooks do not run, and biases cancel."""
    epsilon = next(filter(None, (getattr(norm, name, None) for name in ("eps", "variance_epsilon"))), 0.0)
    size = max(64.0, 1e3 * math.sqrt(epsilon))  # so that the epsilon does not show
    row = torch.full((1, 1, stored.shape[-1]), size, dtype=stored.dtype, device=stored.device)
    row[..., 1::2] *= -1
    positive, negative = (type(norm).forward(norm, x)[0, 0].float() for x in (row, -row))
    return (positive - negative) / 2 * row[0, 0].sign().float()


def _global(tl_model: Any, name: str) -> Tensor:
    _check_in_place(getattr(tl_model, {"W_E": "embed", "W_pos": "pos_embed"}.get(name, "unembed"), None), name)
    value = getattr(tl_model, name, None)
    if value is None and name == "W_pos":  # the bridge keeps it on the component only
        value = getattr(getattr(tl_model, "pos_embed", None), "weight", None)
    if value is not None and name == "W_E":
        # Gemma's and XGLM's embedding modules scale their rows: the scaled rows are what the model reads
        scale = getattr(getattr(tl_model.embed, "original_component", None), "embed_scale", None)
        return value.detach() if scale is None else value.detach() * torch.as_tensor(scale).to(value)
    if value is not None:
        return value.detach()
    if name == "b_U":
        unembed = tl_model.W_U
        return torch.zeros(unembed.shape[-1], dtype=unembed.dtype, device=unembed.device)
    raise ValueError(f"this model has no {name}: its positions are {tl_model.cfg.positional_embedding_type}")


def _absent_weight(tl_model: Any, name: str, layer: int) -> Tensor:
    """An absent bias of a matrix is a zero bias; an absent matrix is an error."""
    cfg, width = tl_model.cfg, mlp_width(tl_model)
    shared = getattr(cfg, "n_key_value_heads", None) or cfg.n_heads
    shape = {
        "b_Q": (cfg.n_heads, cfg.d_head),
        "b_K": (shared, cfg.d_head),
        "b_V": (shared, cfg.d_head),
        "b_O": (cfg.d_model,),
        "b_in": (width,),
        "b_gate": (width,),
        "b_out": (cfg.d_model,),
    }.get(name)
    matrix = "W_in" if name == "b_gate" else name.replace("b_", "W_")  # an MLP without a gate has no bias of it
    if shape is not None and own_weight(tl_model, matrix, layer) is None:
        shape = None
    if shape is None and getattr(cfg, "attn_only", False):
        raise ValueError(f"this model has no {name}: its blocks are attention only, there is no MLP to read")
    if name == "W_gate" and own_weight(tl_model, "W_in", layer) is not None:
        raise ValueError(f"this model has no {name}: its MLP has no gate, use W_in and W_out")
    if shape is None:
        part = "attention" if name in ATTENTION else "MLP"
        raise ValueError(f"this model has no {name}: its {part} is not made of one such matrix per layer")
    reference = next(tl_model.parameters())
    return torch.zeros(shape, dtype=reference.dtype, device=reference.device)


def first_bad_tensor(module: Any) -> str | None:
    """Name of the first parameter holding NaN or infinity, or None."""
    with torch.no_grad():
        for name, owner, leaf in parameter_places(module):
            parameter = plain_weight(owner, leaf)
            # a float32 sum is non-finite exactly if an element is (weights are far below 1e38), and takes no memory
            wide = parameter.dtype if parameter.dtype == torch.float64 else torch.float32
            if parameter.is_floating_point() and not bool(parameter.sum(dtype=wide).isfinite()):
                return name
    return None


def weight_hash(module: Any, *, wide: bool = False) -> str:
    """SHA-256 over every parameter's name, dtype, shape and values: 64 hexadecimal digits.

    ``wide`` reads half-precision values as float32, so that a model and its exact float32 copy have the same hash.
    """
    digest, parts = hashlib.sha256(), _bytes_of(module, wide)
    with ThreadPoolExecutor(1) as reader:  # the next part is put in order and copied while this one is hashed
        coming = reader.submit(next, parts, None)
        while (part := coming.result()) is not None:
            coming = reader.submit(next, parts, None)
            digest.update(part)
    return digest.hexdigest()


def _bytes_of(module: Any, wide: bool) -> Iterator[Any]:
    """What `weight_hash` hashes, in parts of at most `_PART` bytes or one row."""
    for name, owner, leaf in sorted(parameter_places(module), key=lambda item: item[0]):
        parameter = plain_weight(owner, leaf).detach()
        if wide and parameter.dtype in (torch.float16, torch.bfloat16):
            parameter = parameter.float()
        yield f"{name} {parameter.dtype} {tuple(parameter.shape)}\n".encode()
        table = parameter if parameter.ndim else parameter[None]
        for rows in table.split(max(1, _PART * len(table) // max(1, table.nbytes))) if table.numel() else ():
            # put in order where it is: an accelerator does it a hundred times as fast
            raw: Any = rows.contiguous().cpu().reshape(-1).view(torch.uint8)
            yield memoryview(raw.numpy())
