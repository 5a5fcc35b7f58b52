"""The weight files of a model's folder: which there are, and what they hold, read from their headers."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from ..data.files import short
from .errors import LoadError, sentence

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
CONVERSION = (
    "python -c \"from transformers import AutoModelForCausalLM as A; A.from_pretrained('{folder}', "
    "use_safetensors=False).save_pretrained('{folder}', safe_serialization=True)\""
)
_DTYPES = {"F64": torch.float64, "F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
_DIMENSIONS = (
    "d_ff", "d_model", "ffn_dim", "ffn_hidden_size", "head_dim", "hidden_size", "intermediate_size", "kv_heads",
    "n_embd", "n_head", "n_heads", "n_inner", "num_attention_heads", "num_experts", "num_key_value_heads",
    "num_kv_heads", "num_labels", "num_local_experts", "vocab_size",
)  # fmt: skip
"""Entries of configurations that are sizes of weights."""
_TABLES = re.compile(r"(^|\.)(inv_freq|position_ids|masked_bias|(attn|attention)\.bias)$")
"""Names of tables that models compute by themselves and old files hold. A bias of attention can have a mask's name."""
_OTHER_HEADS = re.compile(r"^(score|classifier|classification_head|qa_outputs|v_head|value_head|reward_head)\.")
"""Names of the weights of heads for other tasks, which do not change what a language model computes."""


@dataclass(frozen=True)
class WeightFiles:
    """What the headers of a folder's weight files say."""

    folder: Path
    tensors: Mapping[str, tuple[str, tuple[int, ...]]]
    """Dtype, as safetensors names it, and shape of every tensor."""

    @cached_property
    def sizes(self) -> Counter[torch.dtype]:
        """Numbers per floating-point dtype, without computed tables; empty for quantised files."""
        sizes: Counter[torch.dtype] = Counter()
        for name, (dtype, shape) in self.tensors.items():
            if dtype in _DTYPES and not self.is_table(name):
                sizes[_DTYPES[dtype]] += torch.Size(shape).numel()
        return sizes

    @property
    def dtype(self) -> torch.dtype | None:
        """The dtype of most numbers; None if none of them is a plain floating-point number."""
        return max(self.sizes, key=lambda dtype: self.sizes[dtype], default=None)

    @property
    def widest(self) -> torch.dtype | None:
        """The dtype that holds every number as it is in the files; None as for `dtype`."""
        widest: torch.dtype | None = None
        for dtype in self.sizes:
            widest = dtype if widest is None else torch.promote_types(widest, dtype)
        return widest

    def is_table(self, name: str) -> bool:
        """Whether a tensor is a table that models compute by themselves, such as an attention mask."""
        if not _TABLES.search(name):
            return False
        shapes = [shape for key, (_, shape) in self.tensors.items() if key.endswith(name) or name.endswith(key)]
        return not name.endswith("n.bias") or all(len(shape) == 4 for shape in shapes)


def read_headers(folder: Path) -> WeightFiles:
    """What the weight files of a folder hold. LoadError where one is missing, damaged, outside of it or a pickle."""
    from safetensors import SafetensorError, safe_open

    tensors: dict[str, tuple[str, tuple[int, ...]]] = {}
    for path in _files(folder):
        try:
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118  (it is no dictionary)
                    part = file.get_slice(name)
                    tensors[name] = part.get_dtype(), tuple(part.get_shape())
        except (SafetensorError, OSError) as error:
            raise LoadError(
                f"the weights in {path} are damaged ({sentence(error)}): copy or download the model again"
            ) from error
    if not tensors:
        raise LoadError(f"the weight files of {folder} hold no tensor: copy or download the model again")
    return WeightFiles(folder, tensors)


def has_weights(folder: Path) -> bool:
    """Whether a folder has the weights of a whole model, or an index of them."""
    return any((folder / name).is_file() for name in (SINGLE, INDEX))


def _files(folder: Path) -> list[Path]:
    """The weight files of a folder; transformers reads a single file if there is one."""
    if (folder / SINGLE).is_file():
        return [folder / SINGLE]
    index = folder / INDEX
    if index.is_file():
        shards = shard_names(index)
        outside = next((shard for shard in shards if not is_inside(folder, shard)), None)
        if outside is not None:
            raise LoadError(
                f"{index} names a weight file outside of its folder ({short(repr(outside))}): copy that file into the "
                "folder, if you trust where it comes from, and name it in the index without a path"
            )
        missing = [shard for shard in shards if not os.path.isfile(folder / shard)]
        if missing:
            raise LoadError(
                f"{folder} lacks {short(missing[0])} ({len(missing)} of {len(shards)} weight files are missing): "
                "copy the model again"
            )
        return [folder / shard for shard in shards]
    pickles = sorted(path.name for path in folder.iterdir() if path.suffix in PICKLE_SUFFIXES)
    if pickles:
        raise LoadError(
            f"{folder} holds its weights as a pickle ({pickles[0]}), which can run code when read and is refused: "
            f"if you trust it, convert it once with {CONVERSION.format(folder=folder)}"
        )
    raise LoadError(f"{folder} has no {SINGLE}: save the model with save_pretrained(), or copy the weight file too")


def is_inside(folder: Path, shard: str) -> bool:
    """Whether a weight file named in an index is in its folder, as a file or as a link into the hub's cache."""
    if "\0" in shard or os.path.basename(shard) in ("", ".", ".."):
        return False
    home = os.path.realpath(folder)
    if os.path.commonpath([home, os.path.realpath(os.path.dirname(os.path.join(home, shard)))]) != home:
        return False
    target = os.path.realpath(os.path.join(home, shard))
    blobs = os.path.join(os.path.dirname(os.path.dirname(home)), "blobs")
    cached = os.path.basename(os.path.dirname(home)) == "snapshots"
    return any(os.path.commonpath([root, target]) == root for root in (home, *([blobs] if cached else [])))


def shard_names(index: Path) -> list[str]:
    """The weight files that an index names."""
    try:
        content = json.loads(index.read_text(encoding="utf8"))
    except (ValueError, RecursionError) as error:
        raise LoadError(f"{index} is not valid JSON ({error}): copy the model again") from error
    files = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(files, dict) or not files or not all(isinstance(file, str) for file in files.values()):
        raise LoadError(f"{index} has no weight_map from the names of weights to their files: copy the model again")
    if not isinstance(content.get("metadata"), dict):
        raise LoadError(f"{index} has no metadata: copy the model again")
    return sorted(set(files.values()))


def check_sizes(config: Any, files: WeightFiles) -> None:
    """Raise a LoadError if a configuration declares sizes that its weight files could not hold, before a model of these
    sizes is built.

    Args:
        config: the content of config.json, or one part of it.
        files: the weight files beside it.
    """
    numbers = sum(torch.Size(shape).numel() for _, shape in files.tensors.values())
    limits = dict.fromkeys(_LAYERS, len(files.tensors)) | dict.fromkeys(_DIMENSIONS, numbers)
    for name, most in limits.items():
        count = config.get(name)
        if isinstance(count, int | float) and not count <= most:
            raise LoadError(
                f"the config.json of {files.folder} declares {name} = {count}, but its weight files hold "
                f"{len(files.tensors):,} tensors with {numbers:,} numbers: copy both from the same model"
            )
    for part in config.values():
        if isinstance(part, dict):
            check_sizes(part, files)


def check_report(files: WeightFiles, report: Mapping[str, Collection[Any]], *, allow_mismatch: bool) -> str | None:
    """Compare the weights that the files hold with those that the config declares.

    Args:
        files: the files that were read.
        report: transformers' ``output_loading_info``.
        allow_mismatch: whether both may differ.

    Returns:
        What differs, as a sentence; None if nothing does.

    Raises:
        LoadError: it differs and may not, or weights have another shape or are unmerged LoRA ones.
    """
    source = files.folder
    unexpected = sorted(
        key for key in report.get("unexpected_keys") or () if not (_OTHER_HEADS.match(key) or files.is_table(key))
    )
    lora = next((key for key in unexpected if "lora_" in key), None)
    if lora is not None:
        raise LoadError(
            f"{source} holds unmerged LoRA weights ({lora}): "
            "call merge_and_unload() on the peft model and save it again"
        )
    mismatched = sorted(map(str, report.get("mismatched_keys") or ()))
    if mismatched:
        raise LoadError(f"{source} has weights of another shape than its config says, first {mismatched[0]}")
    missing = sorted(report.get("missing_keys") or ())
    if not missing and not unexpected:
        return None
    clauses = [
        f"{verb} {len(keys)} weight{'s' * (len(keys) > 1)} that its config {declares}, first {keys[0]}"
        for keys, verb, declares in (
            (missing, "lacks", "declares"),
            (unexpected, "holds", "does not declare"),
        )
        if keys
    ]
    difference = f"{source} {' and '.join(clauses)}"
    if not allow_mismatch:
        raise LoadError(
            f"{difference}: the weights belong to another config; copy both from the same model, or give "
            "allow_mismatch=True"
        )
    return f"{difference}: weights that it lacks are random, and others are left out"
