"""Reads models from GGUF files: weights dequantised one by one, tokenizer and chat template with them.

transformers knows the architectures, the names and the layouts; its own loader holds every weight twice for a moment.
"""

from __future__ import annotations

import gc
import os
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from interp_widgets.arguments import short

from .errors import LoadError, sentence
from .library_messages import issue, quiet
from .memory import float32_fits, is_out_of_memory

SUFFIX = ".gguf"
INSTALL = "pip install gguf"
CHUNK = 4_000_000
"""Bytes of a file that are dequantised at a time."""
_READING = threading.RLock()


def gguf_file_in(path: Path) -> Path | None:
    """The GGUF file at a path: the file itself, or the only one of a folder that holds no other model.

    LoadError for a folder with several of them, or a model in parts.
    """
    if os.path.isfile(path):
        return path if path.suffix.lower() == SUFFIX else None
    if not os.path.isdir(path) or (path / "config.json").exists():
        return None
    files = sorted(file for file in path.iterdir() if file.suffix.lower() == SUFFIX and file.is_file())
    if len(files) > 1:
        names = ", ".join(file.name for file in files[:5])
        raise LoadError(f"{path} holds {len(files)} GGUF files ({names}): give the path of one of them")
    return files[0] if files else None


def read_gguf(path: Path, dtype: torch.dtype | None, *, allow_mismatch: bool = False) -> tuple[Any, Any]:
    """A transformers model in evaluation mode on the CPU, and its tokenizer, from a GGUF file.

    Args:
        path: the file.
        dtype: of the weights; None for float32, or bfloat16 where float32 does not fit into the memory.
        allow_mismatch: whether what transformers does not read of the file may be left out.

    Raises:
        LoadError: the file is damaged, of an architecture or a quantisation that transformers or gguf cannot read, or
            gguf is not installed; or transformers would leave weights or a scaling of positions out, and it may not.
    """
    try:
        import gguf  # noqa: F401  (whether it is there)
    except ImportError as error:
        raise LoadError(f"{path} is a GGUF file, which needs the package gguf: run {INSTALL}") from error
    from accelerate import init_empty_weights
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    where = {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
    local = {"trust_remote_code": False, "local_files_only": True}
    with quiet(str(path)), _one_reader(path) as reader:
        kind = _field(reader, "general.architecture")
        _check_whole(reader, path)
        scaling = _field(reader, f"{kind}.rope.scaling.type")
        try:
            config = AutoConfig.from_pretrained(**where, **local)
            tokenizer = AutoTokenizer.from_pretrained(**where, **local)
            reader.forget()
            dtype = _usual_dtype(reader) if dtype is None else dtype
            with init_empty_weights(include_buffers=False):
                model = AutoModelForCausalLM.from_config(config, dtype=dtype)
            left_out: list[str] = []
            weights = dict(_weights(reader, model, str(kind), dtype, left_out))
            model.load_state_dict(weights, assign=True, strict=False)
            model.tie_weights()
        except LoadError:
            raise
        except Exception as error:  # transformers and gguf raise errors of many types
            if is_out_of_memory(error):
                raise
            raise LoadError(
                f"transformers cannot read {path}, a GGUF file of the architecture {short(kind)}: {sentence(error)}"
            ) from error
    missing = [name for name, value in model.named_parameters() if value.is_meta]
    if missing:
        raise LoadError(
            f"{path} lacks {len(missing)} weights that its architecture has, first {missing[0]}: download it again"
        )
    rope = config.get_text_config().to_dict().get("rope_parameters") or {}
    if scaling not in (None, "none") and rope.get("rope_type", "default") == "default":
        left_out.append(f"the scaling of positions {scaling!r}")
    if left_out:
        difference = (
            f"transformers leaves {len(left_out)} part{'s' * (len(left_out) > 1)} of {path} out, first {left_out[0]}"
        )
        if not allow_mismatch:
            raise LoadError(
                f"{difference}: the model would compute other numbers; give its folder with config.json, or "
                "allow_mismatch=True"
            )
        issue(difference)
    return model.eval(), tokenizer


@contextmanager
def _one_reader(path: Path) -> Iterator[Any]:
    """The reader of a file, which transformers takes as well while the block runs.

    A header holds an entry for every token of the vocabulary, and transformers reads it once for each thing it asks,
    slowly; it also makes the map of names again for every module. Both are most of a load.
    """
    import gguf
    from transformers import modeling_gguf_pytorch_utils

    class Reader(gguf.GGUFReader):
        """Without the cost of a memory map for every entry, and of several arrays for every token."""

        @property
        def data(self) -> Any:
            return self._plain

        @data.setter
        def data(self, mapped: Any) -> None:
            self._plain = mapped.view(np.ndarray)

        def forget(self) -> None:
            """Free what is known of the header: there is an object for every token of the vocabulary."""
            self.fields.clear()
            checkpoint.clear()
            gc.collect()

        def _get_field_parts(self, orig_offs: int, raw_type: int) -> Any:
            if raw_type == gguf.GGUFValueType.ARRAY and self.byte_order == "I":
                (kind,), (count,) = self._get(orig_offs, np.uint32), self._get(orig_offs + 4, np.uint64)
                parts = [self._get(orig_offs, np.uint32), self._get(orig_offs + 4, np.uint64)]
                found, stop = self._entries(gguf.GGUFValueType(kind), int(count), orig_offs + 12)
                if found:
                    types = [gguf.GGUFValueType.ARRAY, gguf.GGUFValueType(kind)]
                    return stop - orig_offs, parts + found, list(range(2, 2 + len(found))), types
            return super()._get_field_parts(orig_offs, raw_type)

        def _entries(self, kind: Any, count: int, start: int) -> tuple[list[Any], int]:
            """The entries of an array of strings or numbers, and where it ends; none for an array of another kind."""
            usual = self.gguf_scalar_to_np.get(kind)
            if usual is not None:
                numbers = self._get(start, usual, count)
                return list(numbers.reshape(-1, 1)), start + numbers.nbytes
            if kind != gguf.GGUFValueType.STRING:
                return [], start
            whole, length_of = memoryview(self._plain), struct.Struct("<Q").unpack_from
            strings: list[Any] = []
            for _ in range(count):
                (length,) = length_of(whole, start)
                strings.append(whole[start + 8 : start + 8 + length])
                start += 8 + length
            return strings, start

    library: Any = gguf
    of_transformers: Any = modeling_gguf_pytorch_utils
    checkpoint: dict[str, dict[str, Any]] = {}
    changed = [
        (library, "GGUFReader"),
        (library, "get_tensor_name_map"),
        (of_transformers, "load_gguf_checkpoint"),
        (of_transformers, "_gguf_parse_value"),
    ]
    with _READING:
        usual = {name: getattr(owner, name) for owner, name in changed}
        try:
            reader = Reader(path)
        except Exception as error:  # it checks nothing by itself, so that anything may be raised
            raise LoadError(f"{path} is damaged or no GGUF file ({sentence(error)}): download it again") from error

        def reader_of(other: Any, *mode: Any) -> Any:
            return reader if os.path.samefile(other, path) else usual["GGUFReader"](other, *mode)

        def checkpoint_of(other: Any, *options: Any, **more: Any) -> Any:
            if options or more.get("return_tensors") or not os.path.samefile(other, path):
                return usual["load_gguf_checkpoint"](other, *options, **more)
            if not checkpoint:
                checkpoint.update(usual["load_gguf_checkpoint"](other))
            return {name: dict(part) for name, part in checkpoint.items()}  # who asks changes his own

        def value_of(value: Any, types: Any) -> Any:
            if isinstance(value, memoryview):  # an entry of an array of strings
                return str(value, "utf8")
            return usual["_gguf_parse_value"](value, types)

        replacements = (reader_of, cache(usual["get_tensor_name_map"]), checkpoint_of, value_of)
        try:
            for (owner, name), replacement in zip(changed, replacements, strict=True):
                setattr(owner, name, replacement)
            yield reader
        finally:
            for owner, name in changed:
                setattr(owner, name, usual[name])


def _weights(
    reader: Any, empty: Any, kind: str, dtype: torch.dtype, left_out: list[str]
) -> Iterator[tuple[str, torch.Tensor]]:
    """Name and value of each weight of a file for the model `empty`, dequantised one after the other.

    The names of weights that the model does not have are put into `left_out`.
    """
    from transformers.modeling_gguf_pytorch_utils import (
        TENSOR_PROCESSORS,
        TensorProcessor,
        get_gguf_hf_weights_map,
    )

    processor = TENSOR_PROCESSORS.get(kind, TensorProcessor)(config=empty.config.get_text_config().to_dict())
    names = get_gguf_hf_weights_map(empty, processor)
    made: dict[str, Any] = {"tensors": {}}  # where experts are collected
    for tensor in reader.tensors:
        found = processor.process(
            weights=_dequantised(tensor), name=tensor.name, tensor_key_mapping=names, parsed_parameters=made
        )
        if found.name in names:
            yield names[found.name], torch.from_numpy(np.ascontiguousarray(found.weights)).to(dtype)
        elif found.name is not None:  # else it is a part of what is collected
            left_out.append(str(found.name))
    yield from ((name, value.to(dtype)) for name, value in made["tensors"].items())


def _dequantised(tensor: Any) -> NDArray[np.float32]:
    """The numbers of a weight, some rows at a time: the steps in between take several times its size."""
    from gguf import dequantize

    data, kind = tensor.data, tensor.tensor_type
    rows = max(1, CHUNK * len(data) // max(1, data.nbytes))
    try:
        if data.ndim < 2 or rows >= len(data):
            return np.array(dequantize(data, kind), dtype=np.float32)
        values = np.empty((len(data), *dequantize(data[:1], kind).shape[1:]), dtype=np.float32)
        for start in range(0, len(data), rows):
            values[start : start + rows] = dequantize(data[start : start + rows], kind)
        return values
    except NotImplementedError as error:
        raise LoadError(
            f"the quantisation {kind.name} of {tensor.name} cannot be read: use a file of another one, such as Q4_K_M "
            "or Q8_0"
        ) from error


def _usual_dtype(reader: Any) -> torch.dtype:
    """float32, or bfloat16 where that does not fit."""
    numbers = sum(int(tensor.n_elements) for tensor in reader.tensors)
    return torch.float32 if float32_fits(numbers, torch.device("cpu")) else torch.bfloat16


def _check_whole(reader: Any, path: Path) -> None:
    """Raise a LoadError where a header declares what the file does not hold, or a part of a model."""
    if not reader.tensors:
        raise LoadError(f"{path} holds no weights: it may be a vocabulary alone; give the file of a model")
    parts = _field(reader, "split.count")
    if isinstance(parts, int) and parts > 1:
        raise LoadError(f"{path} is one of {parts} parts of a model: join them with gguf-split --merge")


def _field(reader: Any, name: str) -> Any:
    """A value of a file's header; None where it has none."""
    field = reader.get_field(name)
    return None if field is None else field.contents()
