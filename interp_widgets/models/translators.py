"""Translators of a tuned lens: one affine map per layer that maps its residual stream to the last layer's basis.

The file is safetensors with ``"{layer}.weight"`` (d_model, d_model), output axis first, and ``"{layer}.bias"``
(d_model,) for every layer, the layout of the tuned-lens library's ``params.pt``. As there, a translator is added to the
stream, h + W h + b, unless the file's metadata say ``{"form": "affine"}``: then it is W h + b.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from interp_widgets.arguments import checked
from interp_widgets.atomic import named_path, whole_file
from interp_widgets.data.files import read_tensors, short
from interp_widgets.releases import stamped

Form = Literal["residual", "affine"]
"""``residual``: h + W h + b, as in the tuned-lens library; ``affine``: W h + b."""

_KEY = re.compile(r"(0|[1-9][0-9]{0,8})\.(weight|bias)")


@dataclass(frozen=True)
class Translators:
    """One affine map per layer; `load_translators` reads them, `save_translators` writes them.

    Source: Eliciting Latent Predictions from Transformers with the Tuned Lens (Belrose et al. 2023), section 2.
    """

    weights: tuple[Tensor, ...]
    """Per layer (d_model, d_model), output axis first."""
    biases: tuple[Tensor, ...]
    """Per layer (d_model,)."""
    form: Form = "residual"
    """Whether the map is added to the stream."""
    name: str = "translators"
    """Their source, for messages and provenance."""

    def __post_init__(self) -> None:
        if self.form not in get_args(Form):
            raise ValueError(
                f"form must be 'residual' (h + W h + b) or 'affine' (W h + b), got {short(repr(self.form))}"
            )
        if not self.weights or len(self.weights) != len(self.biases):
            raise ValueError(
                f"{self.name} must have one weight and one bias for every layer, "
                f"got {len(self.weights)} weights and {len(self.biases)} biases"
            )
        width = self.biases[0].numel()
        if not width:
            raise ValueError(f"{self.name} must have a width of 1 or more, got 0")
        for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            if tuple(weight.shape) != (width, width) or tuple(bias.shape) != (width,):
                raise ValueError(
                    f"{self.name}: layer {layer} must have a weight ({width}, {width}) and a bias ({width},), "
                    f"got {tuple(weight.shape)} and {tuple(bias.shape)}"
                )
            if not all(part.is_floating_point() and part.element_size() > 1 for part in (weight, bias)):
                raise ValueError(f"{self.name}: layer {layer} must hold floats, got {weight.dtype} and {bias.dtype}")
            if not (weight.isfinite().all() and bias.isfinite().all()):
                raise ValueError(f"{self.name}: layer {layer} holds NaN or infinity; train or save it again")

    @property
    def d_model(self) -> int:
        """Width of the residual stream they were made for."""
        return self.biases[0].numel()

    def check(self, model: Any) -> None:
        """Raise a ValueError unless they have a model's number of layers and width."""
        if (len(self.weights), self.d_model) != (model.n_layers, model.d_model):
            raise ValueError(
                f"{self.name} is for {len(self.weights)} layers of width {self.d_model}, but {model.name} has "
                f"{model.n_layers} layers of width {model.d_model}: give translators that were made for this model"
            )

    def __call__(self, layer: int, stream: Tensor) -> Tensor:
        """The translated residual stream (..., d_model) entering a block, computed in its dtype."""
        weight, bias = (part[layer].to(stream.device, stream.dtype) for part in (self.weights, self.biases))
        moved = torch.nn.functional.linear(stream, weight, bias)
        return stream + moved if self.form == "residual" else moved


@checked
def load_translators(path: str | os.PathLike[str]) -> Translators:
    """Read the translators of a tuned lens from a safetensors file.

    Args:
        path: of a file that `save_translators` wrote.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: not a safetensors file, or a weight or bias is missing, unknown or of another shape.

    Example:
        >>> import torch
        >>> from pathlib import Path
        >>> from tempfile import TemporaryDirectory
        >>> weights, biases = [torch.zeros(192, 192)] * 6, [torch.zeros(192)] * 6
        >>> with TemporaryDirectory() as folder:
        ...     lens = load_translators(save_translators(Path(folder) / "lens.safetensors", weights, biases))
        >>> lens.d_model, logit_lens(model, "Paris is in", translators=lens).lens
        (192, 'tuned')
    """
    source = named_path(path, "path")
    try:
        tensors, metadata = read_tensors(source, "translators")
    except ValueError as error:
        raise ValueError(
            f"{error}: convert it with save_translators(path, weights, biases), "
            "other formats can run code when they are read"
        ) from error
    weights, biases = _by_layer(tensors, str(source))
    form: Any = metadata.get("form", "residual")  # checked there
    return Translators(weights, biases, form, str(source))


def _by_layer(tensors: dict[str, Tensor], name: str) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    unknown = next((key for key in tensors if not _KEY.fullmatch(key)), None)
    if unknown is not None or not tensors:
        contents = f"the tensor {short(repr(unknown))}" if tensors else "no tensor"
        raise ValueError(f"{name} must hold '0.weight', '0.bias', '1.weight' and so on, got {contents}")
    layers = 1 + max(int(key.split(".")[0]) for key in tensors)
    names = (f"{layer}.{part}" for layer in range(layers) for part in ("weight", "bias"))
    missing = next((key for key in names if key not in tensors), None)  # after no more than there are tensors
    if missing is not None:
        raise ValueError(f"{name} has {layers} layers but lacks {missing!r}: every layer needs a weight and a bias")
    return tuple(tensors[f"{i}.weight"] for i in range(layers)), tuple(tensors[f"{i}.bias"] for i in range(layers))


@checked
def save_translators(
    path: str | os.PathLike[str], weights: Sequence[Tensor], biases: Sequence[Tensor], *, form: Form = "residual"
) -> Path:
    """Write translators, one per layer, to a safetensors file that `load_translators` and `logit_lens` read.

    Args:
        path: of the file.
        weights: per layer (d_model, d_model), output axis first, as ``torch.nn.Linear`` keeps it.
        biases: per layer (d_model,).
        form: ``"residual"`` for h + W h + b, ``"affine"`` for W h + b.

    Raises:
        ValueError: shapes that do not fit, numbers that are not finite, an unknown form.
        FileNotFoundError: the folder does not exist.

    Example:
        >>> import torch
        >>> from pathlib import Path
        >>> from tempfile import TemporaryDirectory
        >>> weights, biases = [torch.zeros(192, 192)] * 6, [torch.zeros(192)] * 6  # they change nothing
        >>> with TemporaryDirectory() as folder:
        ...     save_translators(Path(folder) / "lens.safetensors", weights, biases).name
        'lens.safetensors'
    """
    from safetensors.torch import save_file

    target = named_path(path, "path")
    checked = Translators(tuple(weights), tuple(biases), form, str(target))
    if not target.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {target.parent} to write {target.name} into: make it first")
    tensors: dict[str, Tensor] = {}
    for layer, (weight, bias) in enumerate(zip(checked.weights, checked.biases, strict=True)):
        # copies: safetensors refuses tensors that share memory
        tensors |= {f"{layer}.weight": weight.detach().cpu().clone(), f"{layer}.bias": bias.detach().cpu().clone()}
    with whole_file(target) as draft:
        save_file({key: value.contiguous() for key, value in tensors.items()}, draft, metadata=stamped({"form": form}))
    return target
