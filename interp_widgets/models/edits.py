"""`ModelEdit`: changes of MLP weights and of the residual stream; applied, undone and saved.

A file is safetensors. For each edited MLP it has the indices of the neurons, their value vectors before and after, and
the added vector; for each edited stream its map; and the embeddings of the first tokens. The embeddings and the value
vectors before identify the model that the edit belongs to. The metadata hold the rest as JSON, and
the checksum of the file.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn

from interp_widgets.arguments import checked
from interp_widgets.atomic import named_path, whole_file
from interp_widgets.checksums import ROOM, is_sealed, sealed
from interp_widgets.data.files import existing_file, opened, parse_json, read_tensors, short
from interp_widgets.releases import refusal, stamped
from interp_widgets.renamed import renamed

from .network import Network
from .patching import PassPatch, patched_passes
from .placement import has_plain_weights
from .weights import own_weight

_FORMAT = "interp_widgets edit 2"
_WITHOUT_CHECKSUM = "interp_widgets edit 1"
_PARTS = ("neurons", "before", "after", "added")
_STREAM_PARTS = ("read", "write", "center", "added")
_IN_FILES = {"center": "centre"}
"""Parts that have an older name in files."""
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


@renamed(centre="center")
@dataclass(frozen=True)
class StreamEdit:
    """An affine change of the residual stream x at every token but a BOS: x - ((x - center) read) write + added.

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
    center: Tensor
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
        if (self.write.shape, self.center.shape, self.added.shape) != ((rank, width), (width,), (width,)):
            raise ValueError(
                "an edit of a stream needs read (d_model, rank), write (rank, d_model), center and added (d_model,), "
                f"got {', '.join(str(tuple(getattr(self, part).shape)) for part in _STREAM_PARTS)}"
            )

    @property
    def width(self) -> int:
        """d_model."""
        return len(self.added)

    def to(self, device: torch.device, dtype: torch.dtype) -> StreamEdit:
        """This edit on a device and in a dtype."""
        return StreamEdit(*(getattr(self, part).to(device, dtype) for part in _STREAM_PARTS))

    def change(self, value: Tensor) -> Tensor:
        """The stream (..., d_model) after the edit, in its own dtype; the edit must be on its device."""
        wide = value.to(self.read.dtype)
        return (wide - (wide - self.center) @ self.read @ self.write + self.added).to(value.dtype)


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

        Several edits may be in force and may end in any order, in any thread: each end takes away its own edit, and the
        others act as if it had never been applied. Where edits replace the same value vector, the one applied last
        counts; what they add to an MLP's output or to a stream adds up. Models that share the weights
        (`Model.shares_weights`) compute with the edited weights too.

        Raises ValueError, without changing anything, if the edit was made for another model or the weights cannot be
        edited.
        """
        undo = self.apply(model)
        try:
            yield
        finally:
            undo()

    def apply(self, model: Network) -> Callable[[], None]:
        """Edit the model permanently. Returns a function that undoes this edit, in whatever order edits are undone."""
        with model.lock, torch.no_grad(), ExitStack() as failed:
            self.check(model)
            undo = failed.enter_context(ExitStack())
            for layer, edit in self.layers.items():
                written = _WrittenLayer(model.tl_model, layer, edit)
                undo.callback(written.take_away)
                written.write()
            patches = [PassPatch("resid", at, _change(edit), keeps_bos=True) for at, edit in self.streams.items()]
            undo.enter_context(patched_passes(model, patches, all_threads=True))
            model.applied.append((self.name, undo))
            failed.pop_all()

        def back() -> None:
            with torch.no_grad():
                numbers = [number for number, (_, other) in enumerate(model.applied) if other is undo]
                if numbers:  # it was not undone before
                    del model.applied[numbers[0]]
                    undo.close()

        return lambda: _between_passes(model, back)

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
        if model.quantized or model.offloaded or not has_plain_weights(model.tl_model):
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
            rows = edit.neurons.to(values.device)
            versions = (values[rows], _unedited(values, rows))  # made for the model with the edits in force, or without
            if not any(_matches(version.float().cpu(), edit.before, model) for version in versions):
                raise ValueError(
                    f"the edit {self.name!r} was made for other weights than those of {model.name}: the value vectors "
                    f"of layer {layer} differ"
                )

    @checked
    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the edit to a safetensors file for `load_model(..., edits=[...])` and `ModelEdit.load`."""
        from safetensors.torch import save

        target = named_path(path, "path")
        head = stamped({"format": _FORMAT, "name": self.name, "settings": dict(self.settings)})
        content = sealed(save(self.tensors(), metadata={"edit": json.dumps(head), "checksum": ROOM}))
        with whole_file(target) as draft:
            draft.write_bytes(content)
        return target

    @classmethod
    @checked
    def load(cls, path: str | os.PathLike[str]) -> ModelEdit:
        """Read a file that `save` wrote. Raises FileNotFoundError, or ValueError for any other or a damaged file."""
        with opened(existing_file(path, "a model's edit")) as file:
            content = file.read()
        try:
            whole = is_sealed(content)
        except ValueError as error:
            raise ValueError(f"{path} is damaged ({error}): save the edit again") from error
        tensors, metadata = read_tensors(path, "a model's edit")
        head: Any = parse_json(metadata.get("edit", "null"), f"the header of {path}")
        if not isinstance(head, dict) or head.get("format") not in (_FORMAT, _WITHOUT_CHECKSUM):
            other = f"{path} holds no edit of a model: give a file that ModelEdit.save wrote"
            raise ValueError(refusal(path, head, other))
        if not whole and head["format"] == _FORMAT:
            raise ValueError(f"{path} is damaged (it lacks its checksum): save the edit again")
        settings = head.get("settings", {})
        return cls.of_tensors(
            str(head.get("name", "")), settings if isinstance(settings, dict) else {}, tensors, what=str(path)
        )

    def tensors(self) -> dict[str, Tensor]:
        """Copies of all its tensors, on the CPU, by the names that they have in a file."""
        held = {f"{layer}.{part}": getattr(edit, part) for layer, edit in self.layers.items() for part in _PARTS}
        held |= {f"{_STREAM}.{layer}.{_IN_FILES.get(part, part)}": getattr(edit, part)
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
        names = [_IN_FILES.get(part, part) for part in _STREAM_PARTS]
        return cls(
            name,
            {layer: LayerEdit(**own) for layer, own in _by_layer(mlps, _PARTS, what)},
            settings,
            {layer: StreamEdit(*(own[name] for name in names)) for layer, own in _by_layer(streams, names, what)},
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


_writing = threading.RLock()
"""Held while the weights of edits change, since several models may share them; acquired after a model's lock."""
_written: WeakSet[_WrittenLayer] = WeakSet()
"""What edits in force have written, in all models."""


class _WrittenLayer:
    """One layer of an edit in force."""

    _numbers = itertools.count()

    def __init__(self, tl_model: Any, layer: int, edit: LayerEdit) -> None:
        values = own_weight(tl_model, "W_out", layer)
        if values is None:
            raise ValueError(f"the MLP of layer {layer} has no single output matrix to edit")
        self.number = next(self._numbers)
        self.values, self.rows = values, edit.neurons.to(values.device)
        self.before: Tensor | None = None
        """The rows of the matrix as they were."""
        self._tl_model, self._layer, self._edit = tl_model, layer, edit
        self._undo = ExitStack()

    def write(self) -> None:
        """Change the weights, after all other edits of the same matrix."""
        with _writing:
            _written.add(self)
            if len(self.rows):
                self.before = self.values[self.rows].clone()
                self._undo.callback(_assign, self.values, self.rows, self.before)
                self.values[self.rows] = self._edit.after.to(self.values.device, self.values.dtype)
            if bool(self._edit.added.any()):
                bias = own_weight(self._tl_model, "b_out", self._layer)
                if bias is None:
                    bias = _new_bias(self._tl_model, self._layer, self.values, self._undo)
                else:
                    self._undo.callback(_assign, bias, slice(None), bias.clone())
                bias += self._edit.added.to(bias.device, bias.dtype)

    def take_away(self) -> None:
        """Leave the weights as if this edit had never been applied: later ones are undone and written again."""
        with _writing:
            later = [other for other in _writers(self.values) if other.number > self.number]
            for other in reversed(later):
                other._undo.close()
            self._undo.close()
            _written.discard(self)
            for other in later:
                other.write()


def _writers(values: Tensor) -> list[_WrittenLayer]:
    """What has been written into a matrix, in the order of writing."""
    place = values.device, values.data_ptr()
    same = [one for one in _written if (one.values.device, one.values.data_ptr()) == place]
    return sorted(same, key=lambda one: one.number)


def _unedited(values: Tensor, rows: Tensor) -> Tensor:
    """Rows of a matrix without the edits in force."""
    held = values[rows].clone()
    with _writing:
        for one in reversed(_writers(values)):
            if one.before is not None:
                same = rows[:, None] == one.rows
                held[same.any(1)] = one.before[same.int().argmax(1)[same.any(1)]]
    return held


def _between_passes(model: Network, undo: Callable[[], None]) -> None:
    """Call ``undo`` while no pass runs; where this thread must not wait for that, as soon as none does."""

    def locked() -> None:
        with model.lock:
            undo()

    held = False
    try:
        # a discarded generator may be closed by a thread that holds other locks
        held = model.lock.acquire(blocking=not isinstance(sys.exc_info()[1], GeneratorExit))
    finally:
        if not held:  # also where Ctrl+C ends the wait
            threading.Thread(target=locked, name="interp-widgets undo", daemon=True).start()
    if held:
        try:
            undo()
        finally:
            model.lock.release()


def _assign(values: Tensor, rows: Any, before: Tensor) -> None:
    values[rows] = before


def _new_bias(tl_model: Any, layer: int, values: Tensor, undo: ExitStack) -> Tensor:
    """Give the linear map of an output matrix a bias of zeros."""
    address, width = values.untyped_storage().data_ptr(), values.shape[-1]
    for module in tl_model.blocks[layer].modules():
        if not isinstance(module, nn.Linear) or module.out_features != width:
            continue
        if getattr(module, "bias", None) is None and module.weight.untyped_storage().data_ptr() == address:
            bias = nn.Parameter(torch.zeros(width, dtype=values.dtype, device=values.device), False)
            undo.callback(module.register_parameter, "bias", None)
            module.register_parameter("bias", bias)
            known = vars(tl_model.blocks[layer].mlp)
            if "b_out" in known:  # a bridge looks up the tensors of its parts once
                undo.callback(known.__setitem__, "b_out", known["b_out"])
                known["b_out"] = bias
            return bias.data
    raise ValueError(f"the MLP of layer {layer} has no bias, and none can be given to it")
