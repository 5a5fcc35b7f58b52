"""Converts transformers models to TransformerLens models."""

from __future__ import annotations

import contextlib
import copy
import json
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from . import transformerlens
from .bridge_cache import take_either_keyword
from .errors import LoadError
from .hooks import differentiable
from .library_messages import quiet
from .memory import is_out_of_memory
from .placement import is_offloaded, is_placed, kept_elsewhere
from .small_copy import position_limit

# Rotary tables are stored per layer, so a 128k context would cost gigabytes before the first token
LONGEST_TABLE = 8192

# TransformerLens chooses its conversion by searching for these words in the whole path of the folder
_PATH_WORDS = ("llama", "gemma", "bert", "t5", "coder", "wav2vec", "phi", "qwen", "opt-", "olmo", "redwood")


_ROW_FACTORS = {"falcon_h1": "embedding_multiplier"}
"""By type of a model, the setting by which transformers multiplies the embedding rows of ids, but not rows that it is
given."""


@contextlib.contextmanager
def _neutral_folder() -> Iterator[Path]:
    """A temporary folder whose path has none of the words by which TransformerLens guesses an architecture."""
    for parent in (tempfile.gettempdir(), "/tmp", "/var/tmp", str(Path.cwd())):
        if any(word in parent.lower() for word in _PATH_WORDS) or not Path(parent).is_dir():
            continue
        for _ in range(20):
            with tempfile.TemporaryDirectory(prefix="m_", dir=parent) as name:
                if not any(word in name.lower() for word in _PATH_WORDS):
                    yield Path(name)
                    return
    raise OSError("no temporary folder with a neutral path was found; set TMPDIR to a short path such as /tmp")


def sharing_copy(hf_model: Any) -> Any:
    """A copy of a transformers model that shares the memory of its weights: an in-place edit of one edits both.

    Weights that were made in inference mode, through which no gradient can flow, are copied.

    Everything else is copied: modules, modes, hooks, buffers, config, and each parameter's `requires_grad` and
    gradient.
    """
    # subclasses of nn.Parameter, in which bitsandbytes stores more than numbers, are copied
    shared = [value for value in hf_model.parameters() if nn.Parameter not in type(value).__mro__[1:]]
    memo: dict[int, Any] = {
        id(value): nn.Parameter(differentiable(value).detach(), value.requires_grad) for value in shared
    }
    memo |= {id(value): value.clone() for value in hf_model.buffers() if value.is_inference()}
    memo |= {id(value): value for value in kept_elsewhere(hf_model)}
    return copy.deepcopy(hf_model, memo)


def share_weights(first: Any, second: Any) -> bool:
    """Whether any parameter of one model shares memory with one of the other's."""
    memory = {storage.data_ptr() for storage in map(_storage, first.parameters()) if storage is not None}
    return any(storage.data_ptr() in memory for storage in map(_storage, second.parameters()) if storage is not None)


def _storage(parameter: Any) -> Any:
    # None for offloaded or quantised parameters, which have no storage of their own
    return None if parameter.is_meta or type(parameter) is not nn.Parameter else parameter.untyped_storage()


def prepare(hf_model: Any, *, device: torch.device, dtype: torch.dtype) -> Any:
    """Make a transformers model compute as both backends do: evaluation mode, one device, one dtype, eager attention.

    A model that is spread over devices or quantised keeps its devices and dtypes.

    Weights that have the dtype already are not copied. Computed tables, such as the frequencies of rotary embeddings,
    keep the dtype that transformers gave them: half-precision frequencies would shift positions past the first hundred.
    """
    if not is_placed(hf_model):
        _move(hf_model, device, dtype)
    if hf_model.dtype == torch.float64:  # the other implementations of experts in transformers have no float64
        hf_model.set_experts_implementation("eager")
    _attend_eagerly(hf_model)
    feed_rows(hf_model)
    return hf_model.eval()


def feed_rows(hf_model: Any) -> None:
    """Have a transformers model compute the same from ids and from the rows of its embedding table for them."""
    config = hf_model.config.get_text_config()
    factor = getattr(config, _ROW_FACTORS.get(config.model_type, ""), 1.0)
    if factor == 1.0:
        return

    def multiply(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        rows = kwargs.get("inputs_embeds")
        return args, kwargs if rows is None else {**kwargs, "inputs_embeds": rows * factor}

    hf_model.get_decoder().register_forward_pre_hook(multiply, with_kwargs=True)


def _move(hf_model: Any, device: torch.device, dtype: torch.dtype) -> None:
    saved = hf_model.state_dict().keys()
    tables = {name: value for name, value in hf_model.named_buffers() if name not in saved}
    hf_model.to(device=device, dtype=dtype)
    for name, value in tables.items():
        owner, _, leaf = name.rpartition(".")
        setattr(hf_model.get_submodule(owner), leaf, value.to(device=device))


def _attend_eagerly(hf_model: Any) -> None:
    # only this implementation computes the attention patterns that the bridge reads; others also round differently in
    # half precision, by up to 0.8 nats
    if hasattr(hf_model, "set_attn_implementation"):
        hf_model.set_attn_implementation("eager")


def to_hooked(hf_model: Any, *, processed: bool, device: torch.device, dtype: torch.dtype) -> Any:
    """Convert a transformers model to a HookedTransformer that shares its weights; the given model is not changed.

    Raises any error of TransformerLens for an architecture that it cannot convert.
    """
    config = hf_model.config.to_dict()
    config["architectures"] = [type(hf_model).__name__]
    if "n_positions" in config:  # transformers 5 dropped GPT-2's n_ctx, TransformerLens still reads it
        config["n_ctx"] = config["n_positions"]
    flags = [parameter.requires_grad for parameter in hf_model.parameters()]
    try:
        with quiet(type(hf_model).__name__), _neutral_folder() as folder:
            (folder / "config.json").write_text(json.dumps(config, default=str), encoding="utf8")
            cfg = transformerlens.part("get_pretrained_model_config")(
                str(folder), hf_cfg=config, device=str(device), fold_ln=processed, dtype=dtype
            )
            if cfg.positional_embedding_type == "rotary":  # 2048 is hard-coded for some families, whatever the model
                cfg.n_ctx = min(config.get("max_position_embeddings") or cfg.n_ctx, LONGEST_TABLE)
            state = transformerlens.part("get_pretrained_state_dict")(str(folder), cfg, hf_model, dtype=dtype)
            cfg.tokenizer_name = None
            model = transformerlens.part("HookedTransformer")(cfg, tokenizer=None, move_to_device=False)
            # views of the transformers weights; some conversions make their zeros on the CPU
            shared = {name: value.detach().to(device) for name, value in model.fill_missing_keys(state).items()}
            if processed:
                _load_processed(model, shared)
            else:
                model.load_state_dict(shared, strict=False, assign=True)
            model.move_model_modules_to_device()
    finally:
        for parameter, flag in zip(hf_model.parameters(), flags, strict=True):
            parameter.requires_grad_(flag)
    return model.eval()


def _load_processed(model: Any, state: dict[str, Tensor]) -> None:
    """Fold norms and value biases into a HookedTransformer's own copy of these weights, and centre weights.

    The numbers equal those of `HookedTransformer.load_and_process_state_dict`, which would copy all weights three
    times. Its function is called with one block at a time, as the only block of a model, and with the embeddings and
    unembedding as a model without blocks. The copy has the memory layout of the given weights, which attention reads
    faster.
    """
    copies = {name: torch.empty_like(value) for name, value in state.items()}
    model.load_state_dict(copies, strict=False, assign=True)
    folds = model.cfg.normalization_type in ("LN", "LNPre", "RMS", "RMSPre") and any(
        name.endswith((".ln1.w", ".ln2.w", "ln_final.w")) for name in state
    )

    def process(names: dict[str, str], needed: dict[str, Tensor], n_layers: int) -> None:
        """Process and copy these weights; ``names`` maps names in the function's model to names in the model."""
        cfg = copy.copy(model.cfg)
        cfg.n_layers = n_layers
        weights = {key: state[name] for key, name in names.items()} | needed
        # centring an unembedding makes it copy all given weights
        processed = transformerlens.part("ProcessWeights").process_weights(
            weights, cfg, fold_ln=folds, center_unembed=n_layers == 0
        )
        for key, name in names.items():
            copies[name].copy_(processed[key])

    process({name: name for name in state if not name.startswith("blocks.")}, {}, 0)
    needed = {name: torch.zeros(1, 1) for name in ("embed.W_E", "pos_embed.W_pos")}
    for layer in range(model.cfg.n_layers):
        prefix = f"blocks.{layer}."
        block = {f"blocks.0.{name.removeprefix(prefix)}": name for name in state if name.startswith(prefix)}
        process(block, needed, 1)


@contextlib.contextmanager
def _refusing_offloaded(hf_model: Any) -> Iterator[None]:
    """Turn errors about offloaded weights, which TransformerLens reads to wrap this architecture, into a LoadError."""
    try:
        yield
    except RuntimeError as error:
        if is_out_of_memory(error) or not is_offloaded(hf_model):
            raise
        raise LoadError(
            f"{type(hf_model).__name__} cannot have weights on disk or on a processor beside a GPU, because "
            "TransformerLens splits its query, key and value weights when it loads: give a device_map without them"
        ) from error


def silence_bridge() -> None:
    """Hide the bridge's warnings about rounding when a norm's hook is edited; the self-check bounds this rounding."""
    for text in ("A forward hook edited hook_scale", "Backward hooks on hook_scale"):
        warnings.filterwarnings("ignore", message=text)


def to_bridge(hf_model: Any, *, processed: bool, device: torch.device, dtype: torch.dtype) -> Any:
    """Wrap a transformers model in a TransformerBridge, which takes ownership: never use ``hf_model`` afterwards."""
    with quiet(type(hf_model).__name__), _refusing_offloaded(hf_model):
        _attend_eagerly(hf_model)
        hf_model.config.architectures = [type(hf_model).__name__]
        bridge = transformerlens.part("build_bridge_from_module")(
            hf_model,
            type(hf_model).__name__,
            hf_config=copy.deepcopy(hf_model.config),
            tokenizer=None,
            dtype=dtype,
            device=device,
            model_name=getattr(hf_model.config, "_name_or_path", "") or type(hf_model).__name__,
        )
        if not processed:  # hooks get their usual names; what some adapters refuse is the processing of weights
            bridge.adapter.supports_compatibility_mode = True
        bridge.enable_compatibility_mode(disable_warnings=True, no_processing=not processed)
        if hasattr(bridge.embed, "_output_contribution_scale"):  # TransformerLens 4 multiplies the rows that it shows
            bridge.embed._output_contribution_scale = 1.0
        limit = position_limit(hf_model.config.get_text_config())
        if limit is not None:  # the bridge looks it up under one name only, else assumes 2048
            bridge.cfg.n_ctx = limit
        if is_offloaded(hf_model):  # some bridges read such weights only when they run
            with torch.no_grad():
                bridge(torch.zeros(1, 2, dtype=torch.long, device=device))
    silence_bridge()
    take_either_keyword(bridge)
    return bridge.eval()
