"""`ModelEdit`: changes of MLP weights and of the residual stream; applied, undone and saved.

A file is safetensors. For each edited MLP it has the indices of the neurons, their value vectors before and after, and
the added vector; for each edited stream its map; and the embeddings of the first tokens. The embeddings and the value
vectors before identify the model that the edit belongs to. The metadata hold the rest as JSON.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from interp_widgets.arguments import checked
from interp_widgets.atomic import named_path, whole_file
from interp_widgets.data.files import parse_json, read_tensors, short

from .network import Network
from .patching import Patch, patched_passes
from .placement import has_plain_weights
from .weights import own_weight

_FORMAT = "interp_widgets edit 1"
_PARTS = ("neurons", "before", "after", "added")
_STREAM_PARTS = ("read", "write", "centre", "added")
_STREAM = "stream"
_TOKENS = 4
"""Number of tokens whose embeddings identify the model of an edit."""
Setting = str | int | float | bool | None


@dataclass(frozen=True)
class LayerEdit:
    """An edit of the MLP of one layer.

    Example:
        >>> import torch
        >>> before = base.weight("W_out", 2)[:1].float()
        >>> LayerEdit(torch.tensor([0]), before, 0 * before, torch.zeros(base.d_model)).after.shape
        torch.Size([1, 192])
    """

    neurons: Tensor
    """(n,) int64 indices of the neurons."""
    before: Tensor
    """(n, d_model) float32: their value vectors in the model that the edit was made for."""
    after: Tensor
    """(n, d_model) float32: their new value vectors."""
    added: Tensor
    """(d_model,) float32: added to the MLP's output at every token."""

    def __post_init__(self) -> None:
        _check_tensors(self, _PARTS)
        shapes = self.neurons.ndim, self.before.shape, self.after.shape
        width = self.added.shape[0] if self.added.ndim == 1 else -1
        if shapes != (1, (len(self.neurons), width), (len(self.neurons), width)):
            raise ValueError(
                f"an edit of a layer needs neurons (n,), before and after (n, d_model), and added (d_model,), got "
                f"{tuple(self.neurons.shape)}, {tuple(self.before.shape)}, {tuple(self.after.shape)}, "
                f"{tuple(self.added.shape)}"
            )
        numbers = self.neurons.tolist()
        if self.neurons.is_floating_point() or min(numbers, default=0) < 0 or len(set(numbers)) < len(numbers):
            raise ValueError(f"neurons of an edit must be different ints from 0 on, got {short(numbers)}")

    @property
    def width(self) -> int:
        """d_model."""
        return len(self.added)


@dataclass(frozen=True)
class StreamEdit:
    """An affine change of the residual stream x at every token but a BOS: x - ((x - centre) read) write + added.

    Example:
        >>> import torch
        >>> along = torch.nn.functional.normalize(torch.ones(base.d_model, 1), dim=0)
        >>> nothing = torch.zeros(base.d_model)
        >>> removed = StreamEdit(along, along.T, nothing, nothing)
        >>> bool(removed.change(along.T).norm() < 1e-4)
        True
    """

    read: Tensor
    """(d_model, rank) float32."""
    write: Tensor
    """(rank, d_model) float32."""
    centre: Tensor
    """(d_model,) float32."""
    added: Tensor
    """(d_model,) float32."""

    def __post_init__(self) -> None:
        _check_tensors(self, _STREAM_PARTS)
        if self.read.ndim != 2:
            raise ValueError(
                f"read of an edit of a stream must have shape (d_model, rank), got {tuple(self.read.shape)}"
            )
        width, rank = self.read.shape
        if (self.write.shape, self.centre.shape, self.added.shape) != ((rank, width), (width,), (width,)):
            raise ValueError(
                "an edit of a stream needs read (d_model, rank), write (rank, d_model), centre and added (d_model,), "
                f"got {', '.join(str(tuple(getattr(self, part).shape)) for part in _STREAM_PARTS)}"
            )

    @property
    def width(self) -> int:
        """d_model."""
        return len(self.added)

    def to(self, device: torch.device, dtype: torch.dtype) -> StreamEdit:
        """The same edit on a device and in a dtype."""
        return StreamEdit(*(getattr(self, part).to(device, dtype) for part in _STREAM_PARTS))

    def change(self, value: Tensor) -> Tensor:
        """The stream (..., d_model) after the edit, in its own dtype; the edit must be on its device."""
        wide = value.to(self.read.dtype)
        return (wide - (wide - self.centre) @ self.read @ self.write + self.added).to(value.dtype)


@dataclass(frozen=True)
class ModelEdit:
    """A change of a model's MLP weights or residual stream that can be saved, and undone exactly.

    Example:
        >>> import torch
        >>> before = base.weight("W_out", 2)[:1].float().clone()
        >>> layer = LayerEdit(torch.tensor([0]), before, 0 * before, torch.zeros(base.d_model))
        >>> edit = ModelEdit("one neuron off", {2: layer})
        >>> with edit.applied(base):
        ...     float(base.weight("W_out", 2)[0].abs().max())
        0.0
        >>> bool((base.weight("W_out", 2)[:1] == before).all())
        True
    """

    name: str
    """Name of the edit, listed in `Network.edits`."""
    layers: Mapping[int, LayerEdit] = field(default_factory=dict)
    """Edits of MLPs by layer."""
    settings: Mapping[str, Setting] = field(default_factory=dict)
    """The options that it was made with."""
    streams: Mapping[int, StreamEdit] = field(default_factory=dict)
    """Edits of the stream entering a layer, by layer; n_layers is the stream entering the final norm."""
    embeddings: Tensor | None = None
    """(4, d_model) float32 embeddings of the first tokens of the edit's model; None if it fits any model."""

    def __post_init__(self) -> None:
        for field_name, edits, kind in (("layers", self.layers, LayerEdit), ("streams", self.streams, StreamEdit)):
            for at, one in edits.items():
                if isinstance(at, bool) or not isinstance(at, int) or not isinstance(one, kind):
                    raise TypeError(
                        f"{field_name} of an edit must map numbers of layers to {kind.__name__}, "
                        f"got {short(at)}: {short(one)}"
                    )

    @classmethod
    def of(
        cls,
        model: Network,
        name: str,
        *,
        layers: Mapping[int, LayerEdit] | None = None,
        streams: Mapping[int, StreamEdit] | None = None,
        settings: Mapping[str, Setting] | None = None,
    ) -> ModelEdit:
        """An edit for this model only."""
        return cls(name, layers or {}, settings or {}, streams or {}, _first_embeddings(model))

    @contextmanager
    def applied(self, model: Network) -> Iterator[None]:
        """Context manager: apply the edit in all threads, and undo it exactly afterwards.

        Models that share the weights (`Model.shares_weights`) compute with the edited weights too.

        Raises ValueError, without changing anything, if the edit was made for another model or the weights cannot be
        edited.
        """
        undo = self.apply(model)
        try:
            yield
        finally:
            undo()

    def apply(self, model: Network) -> Callable[[], None]:
        """Edit the model permanently. Returns a function that undoes it; edits must be undone in reverse order."""
        with model.lock, torch.no_grad(), ExitStack() as failed:
            self.check(model)
            undo = failed.enter_context(ExitStack())
            for layer, edit in self.layers.items():
                _edit_layer(model, layer, edit, undo)
            patches = [Patch("resid", at, _change(edit), keeps_bos=True) for at, edit in self.streams.items()]
            undo.enter_context(patched_passes(model, patches, all_threads=True))
            model.applied.append((self.name, undo))
            failed.pop_all()

        def back() -> None:
            with model.lock, torch.no_grad():
                numbers = [number for number, (_, other) in enumerate(model.applied) if other is undo]
                if not numbers:
                    return  # undone before
                if numbers[0] + 1 < len(model.applied):
                    last = model.edits[-1]
                    raise ValueError(f"the edit {last!r} was applied after {self.name!r}: undo it first")
                undo.close()
                model.applied.pop()

        return back

    def check(self, model: Network) -> None:
        """Raise a ValueError where the edit was made for another model, or where the weights cannot be edited."""
        other = "it was made for another model"
        for kind, edits, count in (
            ("layer", self.layers, model.n_layers),
            ("stream", self.streams, model.n_layers + 1),
        ):
            for layer, edit in edits.items():
                if not 0 <= layer < count or edit.width != model.d_model:
                    raise ValueError(
                        f"the edit {self.name!r} is of {kind} {layer} of a model of width {edit.width}; {model.name} "
                        f"has {model.n_layers} layers of width {model.d_model}: {other}"
                    )
        if self.embeddings is not None and not _matches(_first_embeddings(model), self.embeddings, model):
            raise ValueError(
                f"the edit {self.name!r} is for other token embeddings than those of {model.name}: {other}"
            )
        if self.streams:
            model.capabilities.require("residual_stream", "an edit of the stream")
        if not self.layers:
            return
        if model.quantised or model.offloaded or not has_plain_weights(model.tl_model):
            raise ValueError(
                f"the weights of {model.name} are quantised or offloaded and cannot be edited: load it unquantised, "
                "without device_map"
            )
        for layer, edit in self.layers.items():
            values = own_weight(model.tl_model, "W_out", layer)
            if values is None or values.ndim != 2:
                raise ValueError(f"the MLP of layer {layer} of {model.name} has no single output matrix to edit")
            highest = int(edit.neurons.max()) if len(edit.neurons) else -1
            if highest >= len(values):
                raise ValueError(
                    f"the edit {self.name!r} is of neuron {highest} of layer {layer}, {model.name} has {len(values)}: "
                    f"{other}"
                )
            values_now = values[edit.neurons.to(values.device)].float().cpu()
            if not _matches(values_now, edit.before, model):
                raise ValueError(
                    f"the edit {self.name!r} was made for other weights than those of {model.name}: the value vectors "
                    f"of layer {layer} differ"
                )

    @checked
    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the edit to a safetensors file for `load_model(..., edits=[...])` and `ModelEdit.load`."""
        from safetensors.torch import save_file

        target = named_path(path, "path")
        head = {"format": _FORMAT, "name": self.name, "settings": dict(self.settings)}
        with whole_file(target) as draft:
            save_file(self.tensors(), draft, metadata={"edit": json.dumps(head)})
        return target

    @classmethod
    @checked
    def load(cls, path: str | os.PathLike[str]) -> ModelEdit:
        """Read a file that `save` wrote. Raises FileNotFoundError, or ValueError for any other file."""
        tensors, metadata = read_tensors(path, "a model's edit")
        head: Any = parse_json(metadata.get("edit", "null"), f"the header of {path}")
        if not isinstance(head, dict) or head.get("format") != _FORMAT:
            raise ValueError(f"{path} holds no edit of a model: give a file that ModelEdit.save wrote")
        settings = head.get("settings", {})
        return cls.of_tensors(
            str(head.get("name", "")), settings if isinstance(settings, dict) else {}, tensors, what=str(path)
        )

    def tensors(self) -> dict[str, Tensor]:
        """Copies of all its tensors, on the CPU, by the names that they have in a file."""
        held = {f"{layer}.{part}": getattr(edit, part) for layer, edit in self.layers.items() for part in _PARTS}
        held |= {f"{_STREAM}.{layer}.{part}": getattr(edit, part)
                 for layer, edit in self.streams.items() for part in _STREAM_PARTS}  # fmt: skip
        if self.embeddings is not None:
            held["embeddings"] = self.embeddings
        return {key: value.detach().cpu().clone().contiguous() for key, value in held.items()}

    @classmethod
    def of_tensors(
        cls, name: str, settings: Mapping[str, Setting], tensors: Mapping[str, Tensor], *, what: str = "the edit"
    ) -> ModelEdit:
        """The edit that has these `tensors`, which ``what`` holds; ValueError where one is missing or unknown."""
        mlps = {
            key: value for key, value in tensors.items() if key != "embeddings" and not key.startswith(f"{_STREAM}.")
        }
        streams = {key.removeprefix(f"{_STREAM}."): value for key, value in tensors.items()
                   if key.startswith(f"{_STREAM}.")}  # fmt: skip
        return cls(
            name,
            {layer: LayerEdit(**own) for layer, own in _by_layer(mlps, _PARTS, what)},
            settings,
            {layer: StreamEdit(**own) for layer, own in _by_layer(streams, _STREAM_PARTS, what)},
            tensors.get("embeddings"),
        )


def _by_layer(tensors: Mapping[str, Tensor], names: Sequence[str], source: str) -> list[tuple[int, dict[str, Tensor]]]:
    """The tensors of each layer in a file, in the order of layers."""
    layers: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        number, _, part = key.partition(".")
        if part not in names or not number.isdigit():
            raise ValueError(f"{source} holds the unknown tensor {short(repr(key))}")
        layers.setdefault(int(number), {})[part] = value
    missing = [f"{layer}.{part}" for layer, own in layers.items() for part in names if part not in own]
    if missing:
        raise ValueError(f"{source} lacks the tensor {missing[0]!r}")
    return sorted(layers.items())


def _check_tensors(edit: Any, names: Sequence[str]) -> None:
    """TypeError or ValueError unless the parts are tensors of finite numbers."""
    for part in names:
        value = getattr(edit, part)
        if not isinstance(value, Tensor):
            raise TypeError(f"{part} of an edit must be a tensor, got {short(value)}")
        if not bool(torch.isfinite(value).all()):
            raise ValueError(f"{part} of an edit must hold finite numbers")


def _first_embeddings(model: Network) -> Tensor:
    """(4, d_model) float32 embeddings of the model's first tokens."""
    return model.token_embeddings(list(range(min(_TOKENS, model.d_vocab)))).detach().float().cpu().clone()


def _matches(value: Tensor, expected: Tensor, model: Network) -> bool:
    """Whether numbers of this model equal those that an edit was made for, up to the model's rounding."""
    if value.shape != expected.shape:
        return False
    close = 1e-5 if model.dtype in (torch.float32, torch.float64) else 1e-2
    size = float(expected.abs().max()) if expected.numel() else 0.0
    return torch.allclose(value, expected, rtol=0, atol=close * size)


def _change(edit: StreamEdit) -> Callable[[Tensor], Tensor]:
    """The edit's change of the stream, with its tensors moved to a device once."""
    moved: dict[torch.device, StreamEdit] = {}

    def change(value: Tensor) -> Tensor:
        if value.device not in moved:
            moved[value.device] = edit.to(value.device, torch.promote_types(value.dtype, torch.float32))
        return moved[value.device].change(value)

    return change


def _edit_layer(model: Network, layer: int, edit: LayerEdit, undo: ExitStack) -> None:
    """Apply one layer's edit, and register in ``undo`` how to restore the old values."""
    values = own_weight(model.tl_model, "W_out", layer)
    if values is None:
        raise ValueError(f"the MLP of layer {layer} of {model.name} has no single output matrix to edit")
    rows = edit.neurons.to(values.device)
    if len(rows):
        before = values[rows].clone()
        undo.callback(_assign, values, rows, before)
        values[rows] = edit.after.to(values.device, values.dtype)
    if bool(edit.added.any()):
        bias = own_weight(model.tl_model, "b_out", layer)
        if bias is None:
            bias = _new_bias(model, layer, values, undo)
        else:
            undo.callback(_assign, bias, slice(None), bias.clone())
        bias += edit.added.to(bias.device, bias.dtype)


def _assign(values: Tensor, rows: Any, before: Tensor) -> None:
    values[rows] = before


def _new_bias(model: Network, layer: int, values: Tensor, undo: ExitStack) -> Tensor:
    """Give the linear map of an output matrix a bias of zeros."""
    address = values.untyped_storage().data_ptr()
    for module in model.tl_model.blocks[layer].modules():
        if not isinstance(module, nn.Linear) or module.out_features != model.d_model:
            continue
        if getattr(module, "bias", None) is None and module.weight.untyped_storage().data_ptr() == address:
            bias = nn.Parameter(torch.zeros(model.d_model, dtype=values.dtype, device=values.device), False)
            undo.callback(module.register_parameter, "bias", None)
            module.register_parameter("bias", bias)
            return bias.data
    raise ValueError(f"the MLP of layer {layer} of {model.name} has no bias, and none can be given to it")
