"""`ModelEdit`: new value vectors of some neurons, and a vector added to what an MLP writes; applied, undone and saved.

A file is safetensors: for each layer the numbers of the neurons, their value vectors before and after, and the vector
that is added; its metadata hold the rest as JSON. The value vectors before say which model the edit belongs to.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from interp_widgets.arguments import checked
from interp_widgets.atomic import whole_file
from interp_widgets.data.files import parse_json, read_tensors, short

from .network import Network
from .placement import has_plain_weights
from .weights import own_weight

_FORMAT = "interp_widgets edit 1"
_PARTS = ("neurons", "before", "after", "added")
Setting = str | int | float | bool | None


@dataclass(frozen=True)
class LayerEdit:
    """What is edited in the MLP of one layer.

    Example:
        >>> import torch
        >>> before = base.weight("W_out", 2)[:1].float()
        >>> LayerEdit(torch.tensor([0]), before, 0 * before, torch.zeros(base.d_model)).after.shape
        torch.Size([1, 192])
    """

    neurons: Tensor
    """(n,) int64 numbers of the neurons."""
    before: Tensor
    """(n, d_model) float32: their value vectors in the model that the edit was made for."""
    after: Tensor
    """(n, d_model) float32: their new value vectors."""
    added: Tensor
    """(d_model,) float32: what is added to the MLP's output at every token."""

    def __post_init__(self) -> None:
        for part in _PARTS:
            if not isinstance(getattr(self, part), Tensor):
                raise TypeError(f"{part} of an edit must be a tensor, got {short(getattr(self, part))}")
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
            raise ValueError(f"neurons of an edit must be different whole numbers from 0 on, got {short(numbers)}")
        if not all(bool(torch.isfinite(part).all()) for part in (self.before, self.after, self.added)):
            raise ValueError("an edit must hold finite numbers")


@dataclass(frozen=True)
class ModelEdit:
    """A change of a model's MLP weights that can be undone to the last bit, and saved.

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
    """What it is called where a model says that it is edited."""
    layers: Mapping[int, LayerEdit]
    """By the number of the layer."""
    settings: Mapping[str, Setting] = field(default_factory=dict)
    """What it was made with."""

    @contextmanager
    def applied(self, model: Network) -> Iterator[None]:
        """Inside, the model's weights are the edited ones, for all threads; afterwards every bit is as it was.

        So are those of every model that shares them (`Model.shares_weights`).

        Raises ValueError where the edit was made for another model, or where the weights cannot be edited; then nothing
        is changed.
        """
        undo = self.apply(model)
        try:
            yield
        finally:
            undo()

    def apply(self, model: Network) -> Callable[[], None]:
        """Edit the model's weights for good; returns what undoes it."""
        with model.lock, torch.no_grad(), ExitStack() as failed:
            self._check(model)
            undo = ExitStack()
            failed.push(undo)
            for layer, edit in self.layers.items():
                _edit_layer(model, layer, edit, undo)
            failed.pop_all()

        def back() -> None:
            with model.lock, torch.no_grad():
                undo.close()

        return back

    def _check(self, model: Network) -> None:
        if model.quantised or model.offloaded or not has_plain_weights(model.tl_model):
            raise ValueError(
                f"the weights of {model.name} are quantised or kept elsewhere and cannot be edited: load it whole"
            )
        for layer, edit in self.layers.items():
            if not 0 <= layer < model.n_layers or edit.added.shape[0] != model.d_model:
                raise ValueError(
                    f"the edit {self.name!r} is of layer {layer} of a model of width {edit.added.shape[0]}; "
                    f"{model.name} has {model.n_layers} layers of width {model.d_model}: it was made for another model"
                )
            values = own_weight(model.tl_model, "W_out", layer)
            if values is None or values.ndim != 2:
                raise ValueError(f"the MLP of layer {layer} of {model.name} has no single output matrix to edit")
            highest = int(edit.neurons.max()) if len(edit.neurons) else -1
            if highest >= len(values):
                raise ValueError(
                    f"the edit {self.name!r} is of neuron {highest} of layer {layer}, {model.name} has {len(values)}: "
                    "it was made for another model"
                )
            own = values[edit.neurons.to(values.device)].float().cpu()
            close = 1e-5 if model.dtype in (torch.float32, torch.float64) else 1e-2
            size = float(edit.before.abs().max()) if len(own) else 0.0
            if not torch.allclose(own, edit.before, rtol=0, atol=close * size):
                raise ValueError(
                    f"the edit {self.name!r} was made for other weights than those of {model.name}: the value vectors "
                    f"of layer {layer} differ"
                )

    @checked
    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the edit to a safetensors file, which `load_model(..., edits=[...])` and `ModelEdit.load` read."""
        from safetensors.torch import save_file

        target = Path(os.path.expanduser(path))
        tensors = {
            f"{layer}.{part}": getattr(edit, part).detach().cpu().clone().contiguous()
            for layer, edit in self.layers.items()
            for part in _PARTS
        }
        head = {"format": _FORMAT, "name": self.name, "settings": dict(self.settings)}
        with whole_file(target) as draft:
            save_file(tensors, draft, metadata={"edit": json.dumps(head)})
        return target

    @classmethod
    @checked
    def load(cls, path: str | os.PathLike[str]) -> ModelEdit:
        """Read what `save` wrote. Raises FileNotFoundError, or ValueError for a file that is no edit."""
        tensors, metadata = read_tensors(path, "a model's edit")
        head: Any = parse_json(metadata.get("edit", "null"), f"the header of {path}")
        if not isinstance(head, dict) or head.get("format") != _FORMAT:
            raise ValueError(f"{path} holds no edit of a model: give a file that ModelEdit.save wrote")
        layers: dict[int, dict[str, Tensor]] = {}
        for key, value in tensors.items():
            number, _, part = key.partition(".")
            if part not in _PARTS or not number.isdigit():
                raise ValueError(f"{path} holds the unknown tensor {short(repr(key))}")
            layers.setdefault(int(number), {})[part] = value
        missing = [f"{layer}.{part}" for layer, own in layers.items() for part in _PARTS if part not in own]
        if missing:
            raise ValueError(f"{path} lacks the tensor {missing[0]!r}")
        settings = head.get("settings", {})
        return cls(
            str(head.get("name", "")),
            {layer: LayerEdit(**own) for layer, own in sorted(layers.items())},
            settings if isinstance(settings, dict) else {},
        )


def _edit_layer(model: Network, layer: int, edit: LayerEdit, undo: ExitStack) -> None:
    """Write one layer's edit; ``undo`` learns how to put back what was there."""
    values = own_weight(model.tl_model, "W_out", layer)
    if values is None:
        raise ValueError(f"the MLP of layer {layer} of {model.name} has no single output matrix to edit")
    rows = edit.neurons.to(values.device)
    if len(rows):
        held = values[rows].clone()
        undo.callback(_put, values, rows, held)
        values[rows] = edit.after.to(values.device, values.dtype)
    if bool(edit.added.any()):
        bias = own_weight(model.tl_model, "b_out", layer)
        if bias is None:
            bias = _new_bias(model, layer, values, undo)
        else:
            undo.callback(_put, bias, slice(None), bias.clone())
        bias += edit.added.to(bias.device, bias.dtype)


def _put(values: Tensor, rows: Any, held: Tensor) -> None:
    values[rows] = held


def _new_bias(model: Network, layer: int, values: Tensor, undo: ExitStack) -> Tensor:
    """A bias of zeros for the linear map that holds an output matrix."""
    place = values.untyped_storage().data_ptr()
    for module in model.tl_model.blocks[layer].modules():
        if not isinstance(module, nn.Linear) or module.out_features != model.d_model:
            continue
        if getattr(module, "bias", None) is None and module.weight.untyped_storage().data_ptr() == place:
            bias = nn.Parameter(torch.zeros(model.d_model, dtype=values.dtype, device=values.device), False)
            undo.callback(module.register_parameter, "bias", None)
            module.register_parameter("bias", bias)
            return bias.data
    raise ValueError(f"the MLP of layer {layer} of {model.name} has no bias, and none can be given to it")
