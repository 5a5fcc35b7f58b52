"""The bytes of a model's tensors: the storages they are in, and digests of them.

Bytes on the CPU are read in place. Those on an accelerator are copied in one batch if they are few, and otherwise
summed on the device; there is one synchronisation per device.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
import xxhash
from torch import Tensor, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

__all__ = ["READ_BYTES", "Storages", "digests", "samples", "values"]

READ_BYTES = 64 * 2**20
"""Models of at most this many bytes are read completely for every key."""
SAMPLES, SAMPLE_BYTES, SMALL_BYTES = 64, 64, 2**16
"""For a larger model: number and size in bytes of the samples of a tensor; tensors up to the last number are read
completely."""
_CHUNK = 2**22
"""Number of words of an accelerator's memory that have weights of their own."""
_CHUNKS = 8
"""Most chunks that are summed at a time: 256 MB of products."""


class Storages:
    """The storages of tensors; one that several tensors share is listed once."""

    def __init__(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        self.held: dict[tuple[Any, ...], Any] = {}
        self.versions: dict[tuple[Any, ...], list[int]] = {}
        self._numbers: dict[tuple[Any, ...], int] = {}
        self.places: list[str] = []
        """Dtype, shape, storage and offset of each tensor."""
        self.readable = True
        """Whether all of them have content that can be read."""
        for name, tensor in tensors:
            if type(tensor) in (Tensor, nn.Parameter):
                self._add(name, tensor)
            else:
                for path, plain in _plain_tensors(name, tensor):
                    self._add(path, plain)
        self.bytes: int = sum(storage.nbytes() for storage in self.held.values())

    def _add(self, path: str, tensor: Tensor) -> None:
        kind = f"{path} {tensor.dtype} {tuple(tensor.shape)} {tensor.device}"
        if tensor.device.type == "meta" or tensor.layout != torch.strided:
            self.readable = False
            self.places.append(kind)
            return
        storage = tensor.untyped_storage()
        key = (storage.device, storage.data_ptr(), storage.nbytes())
        if key not in self.held:
            self.held[key], self.versions[key], self._numbers[key] = storage, [], len(self.held)
        # Inference tensors do not count their changes.
        self.versions[key].append(-1 if tensor.is_inference() else tensor._version)
        self.places.append(f"{kind} {self._numbers[key]} {tensor.storage_offset()} {tensor.stride()}")


def _plain_tensors(path: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    """A tensor, or the tensors that a subclass, such as a quantised one, consists of."""
    wrapper: Any = tensor
    if is_traceable_wrapper_subclass(wrapper):
        for name in wrapper.__tensor_flatten__()[0]:
            yield from _plain_tensors(f"{path}.{name}", getattr(wrapper, name))
    else:
        yield path, tensor


def _is_here(storage: Any) -> bool:
    """Whether a storage is on the CPU."""
    return bool(storage.device.type == "cpu")


def _buffer(storage: Any) -> Any:
    """The bytes of a storage on the CPU."""
    return (ctypes.c_ubyte * storage.nbytes()).from_address(storage.data_ptr())


def _words(storage: Any, dtype: torch.dtype) -> Tensor:
    """(n,) a storage of an accelerator as integers of this dtype; left-over bytes are ignored."""
    count = storage.nbytes() // dtype.itemsize
    return torch.empty(0, dtype=dtype, device=storage.device).set_(storage, 0, (count,), (1,))


def samples(storages: Sequence[Any]) -> list[bytes]:
    """Bytes sampled evenly from each storage; all bytes of a small one."""
    contents: dict[int, bytes] = {}
    elsewhere: list[tuple[int, Tensor]] = []
    for number, storage in enumerate(storages):
        size = storage.nbytes()
        rows, step = (1, 0) if size <= SMALL_BYTES else (SAMPLES, (size - SAMPLE_BYTES) // (SAMPLES - 1))
        shape = (rows, size if rows == 1 else SAMPLE_BYTES)
        if not _is_here(storage):
            elsewhere.append((number, _words(storage, torch.uint8).as_strided(shape, (step, 1))))
        elif size:
            contents[number] = np.ndarray(shape, np.uint8, _buffer(storage), strides=(step, 1)).tobytes()
    contents |= _copied(elsewhere)
    return [contents.get(number, b"") for number in range(len(storages))]


def digests(storages: Sequence[Any]) -> list[bytes]:
    """A digest of all bytes of each storage."""
    contents: dict[int, bytes] = {}
    elsewhere: list[tuple[int, Tensor]] = []
    for number, storage in enumerate(storages):
        if not _is_here(storage):
            elsewhere.append((number, _words(storage, torch.uint8)))
        else:
            contents[number] = xxhash.xxh3_128_digest(_buffer(storage)) if storage.nbytes() else b""
    if sum(part.numel() for _, part in elsewhere) <= READ_BYTES:
        contents |= {number: xxhash.xxh3_128_digest(part) for number, part in _copied(elsewhere).items()}
    else:
        numbers = [number for number, _ in elsewhere]
        contents |= _copied(zip(numbers, _weighted_sums([storages[number] for number in numbers]), strict=True))
    return [contents[number] for number in range(len(storages))]


def _copied(parts: Iterable[tuple[int, Tensor]]) -> dict[int, bytes]:
    """The bytes of tensors on accelerators, with one copy per device."""
    devices: dict[torch.device, list[tuple[int, Tensor]]] = {}
    for number, part in parts:
        devices.setdefault(part.device, []).append((number, part.reshape(-1)))
    contents: dict[int, bytes] = {}
    for some in devices.values():
        raw, start = torch.cat([part for _, part in some]).cpu().numpy().tobytes(), 0
        for number, part in some:
            stop = start + part.numel()
            contents[number], start = raw[start:stop], stop
    return contents


def _weighted_sums(storages: Sequence[Any]) -> list[Tensor]:
    """(8,) bytes per storage: the sum of its 32-bit words, each times its own odd weight, modulo 2**64.

    A single changed word always changes it; swapped words do except with probability 2**-64. It runs on the device, at
    the speed of its memory.
    """
    most = max((storage.nbytes() // 4 for storage in storages), default=0)
    tables: dict[torch.device, tuple[Tensor, Tensor]] = {}
    totals = []
    for storage in storages:
        words = _words(storage, torch.int32)
        if words.device not in tables:
            within, between = torch.arange(min(_CHUNK, most)), torch.arange(_CHUNK, _CHUNK + most // _CHUNK + 4)
            tables[words.device] = _weights(within.to(words.device)), _weights(between.to(words.device))
        weights, outer = tables[words.device]
        whole = len(words) // _CHUNK * _CHUNK
        sums = [(chunks * weights).sum(-1) for chunks in words[:whole].view(-1, _CHUNK).split(_CHUNKS) if len(chunks)]
        if whole < len(words):
            sums.append((words[whole:] * weights[: len(words) - whole]).sum()[None])
        if storage.nbytes() % 4:
            sums.append(_words(storage, torch.uint8)[len(words) * 4 :].long())
        parts = torch.cat(sums) if sums else outer[:0]
        totals.append((parts * outer[: len(parts)]).sum()[None].view(torch.uint8))
    return totals


def _weights(index: Tensor) -> Tensor:
    """(n,) odd 64-bit numbers, one for each index, without a pattern (the finisher of SplitMix64)."""
    mixed = (index + 1) * -7046029254386353131
    mixed = (mixed ^ (mixed >> 30)) * -4658895280553007687
    return (mixed ^ (mixed >> 27)) | 1


def values(tensors: Iterable[tuple[str, Tensor]]) -> dict[str, str]:
    """A digest of dtype, shape and values for every name."""
    by_name: dict[str, str] = {}
    group: list[tuple[str, Tensor, list[Any]]] = []
    size = 0

    def read() -> None:
        each = iter(digests([storage for *_, own in group for storage in own]))
        for name, tensor, own in group:
            digest = b"".join(itertools.islice(each, len(own)))
            by_name[name] = f"{tensor.dtype} {tuple(tensor.shape)} {digest.hex()}"
        group.clear()

    for name, tensor in tensors:
        plain = tensor.detach().contiguous().clone() if _is_view(tensor) else tensor
        storages = Storages([("", plain)])
        # many are read at once, but the digest of a tensor must not depend on the others
        if group and size + storages.bytes > READ_BYTES:
            read()
            size = 0
        group.append((name, plain, list(storages.held.values())))
        size += storages.bytes
    read()
    return by_name


def _is_view(tensor: Tensor) -> bool:
    """Whether a tensor's storage holds more than the tensor, or in another order."""
    plain = tensor.device.type != "meta" and tensor.layout == torch.strided
    return plain and not (tensor.is_contiguous() and tensor.untyped_storage().nbytes() == tensor.nbytes)
