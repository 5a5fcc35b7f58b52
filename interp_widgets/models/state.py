"""One notion of a model's state: what its numbers depend on, as a key that is cheap enough to ask for at every call.

A key has two halves. *Structure* is the modules: their classes and functions, plain settings such as ``eps`` or
``attn_scale``, the configuration, the hooks that act in the calling thread, and the type, shape and place of every
tensor. *Content* is the bytes of all parameters, buffers and other tensors. Edits through ``.data`` or ``.numpy()``
leave no trace in PyTorch, so bytes are read: all of them up to `READ_BYTES`, which takes a millisecond or three; of
larger models samples, and all of them where `state_key` is asked to be exact (about 0.2 s for 4 GB).

Where the state cannot say what a model computes, the key says so (`State.certain`), and whoever keeps results computes
them again: a hook or a function that a user wrote may do anything, dropout draws lots, and tensors without content
cannot be read.
"""

from __future__ import annotations

import ctypes
import dataclasses
import itertools
import operator
import secrets
import sys
import threading
import types
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
import xxhash
from torch import Tensor, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from .hooks import _MARK, _OWN_HOOKS, acts

__all__ = [
    "READ_BYTES",
    "Edits",
    "State",
    "Watch",
    "Watched",
    "check_as_loaded",
    "edits",
    "last_remembered",
    "remembered",
    "state_key",
    "structure_key",
    "weights_key",
]

T = TypeVar("T")

READ_BYTES = 64 * 2**20
"""Bytes of a model's tensors up to which all of them are read for every key."""
SAMPLES, SAMPLE_BYTES, SMALL_BYTES = 64, 64, 2**16
"""Of a larger model: how many samples of how many bytes of a tensor; tensors up to so many bytes are read whole."""

_KNOWN_CODE = {
    "accelerate", "bitsandbytes", "compressed_tensors", "einops", "hqq", "interp_widgets", "jaxtyping", "numpy",
    "torch", "torchao", "transformer_lens", "transformers",
}  # fmt: skip
"""Packages whose classes and functions compute from what a state holds and from nothing else."""
_NO_SETTINGS = {"alibi", "bwd_hooks", "ctx", "fwd_hooks", "is_caching", "name", "tokenizer"}
"""Attributes of modules that are names, hooks (read from PyTorch's tables) or memory of earlier passes."""
_NO_CONFIG = {"device", "dtype", "model_name", "name_or_path", "seed", "tokenizer_name", "torch_dtype"}
_SELF_SCALING = {"dynamic", "longrope"}
"""Kinds of rotary embeddings that make their table anew in every pass."""
_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size, np.generic)
_CONTAINERS = (dict, list, tuple, set, frozenset)
_HOOK_TABLES = (
    ("_forward_pre_hooks", "pre-hook"), ("_forward_hooks", "hook"),
    ("_backward_pre_hooks", "backward pre-hook"), ("_backward_hooks", "backward hook"),
)  # fmt: skip
_MODULE_OWN = frozenset(vars(nn.Module()))
_CHUNK = 2**22
"""Words of an accelerator's memory that are summed at a time."""


@dataclass(frozen=True)
class State:
    """What a model is at one moment: equal states compute equal numbers if they are `certain`."""

    structure: bytes
    """Of modules, functions, settings, hooks, and of every tensor's type, shape and place."""
    content: bytes
    """Of the bytes of all tensors."""
    known_code: bool = field(compare=False)
    """Whether only known code computes, without chance: no hook, no function or class of the user's, no dropout."""
    read: bool = field(compare=False)
    """Whether every byte was read just now; else `content` may be that of before an edit."""

    @property
    def certain(self) -> bool:
        """Whether an equal state means equal numbers. Without it, results must not be served again under this key."""
        return self.known_code and self.read


@dataclass(frozen=True)
class Edits:
    """How a model differs from what was loaded, its parameters aside: `Network.weight_hash` stands for these."""

    sentence: str
    """What differs, for readers."""
    key: str | None
    """Hexadecimal digits of what differs; None where only interventions of the calling thread do."""


class Watched(Protocol):
    """What has a state: a `Network`."""

    name: str
    lock: Any
    tl_model: Any
    _watch: Watch


def state_key(network: Watched, *, exact: bool = False, wait: float = -1) -> State:
    """The state of a model as the calling thread sees it now.

    Args:
        network: a `Network` or `Model`.
        exact: read every byte, also of large models; without it, a key of a model above `READ_BYTES` is not certain,
            because an edit of few values that leaves no trace in PyTorch may lie between the samples.
        wait: seconds to wait for a pass that is running in another thread, without limit by default.

    Raises:
        TimeoutError: the model still computes in another thread.
    """
    if not network.lock.acquire(timeout=wait):
        raise TimeoutError("the model computes in another thread")
    try:
        with torch.no_grad():
            return network._watch.state(network.tl_model, exact=exact)
    finally:
        network.lock.release()


def structure_key(network: Watched) -> bytes:
    """The half of the state that needs no look at values: which modules, functions, settings and hooks there are, and
    the type, shape and place of every tensor. For what holds of a model whatever its weights are."""
    with network.lock, torch.no_grad():
        return network._watch.structure(network.tl_model)


def remembered(network: Watched, name: str, find: Callable[[], T]) -> T:
    """What ``find`` gives for a model, found again when the model's structure is another one."""
    with network.lock:
        structure = structure_key(network)
        held = network._watch.memory.get(name)
        if held is None or held[0] != structure:
            held = network._watch.memory[name] = structure, find()
        answer: T = held[1]
        return answer


def last_remembered(network: Watched, name: str) -> Any:
    """What `remembered` gave last, without another look at the model; None if it was never asked."""
    return network._watch.memory.get(name, (None, None))[1]


def weights_key(network: Watched) -> bytes:
    """A digest of all parameters as they are now, every byte read: it moves exactly when `weight_hash` does."""
    with network.lock, torch.no_grad():
        return network._watch.weights(network.tl_model)


def edits(network: Watched) -> Edits | None:
    """How a model differs from what was loaded in modules, functions, settings, buffers and hooks; None if it is as
    it was."""
    with network.lock, torch.no_grad():
        return network._watch.edits(network.tl_model)


def check_as_loaded(network: Watched, purpose: str) -> None:
    """Raise a ValueError if a model has been edited since it was loaded, for a purpose that reads its source anew."""
    with network.lock, torch.no_grad():
        watch, edit = network._watch, network._watch.edits(network.tl_model)
        moved = watch.weights(network.tl_model) != watch.loaded_weights
    if moved or (edit is not None and edit.key is not None):
        what = "its weights hold other values" if moved or edit is None else edit.sentence
        raise ValueError(
            f"{network.name} was edited after it was loaded ({what}), and {purpose} reads it anew from where it was "
            "loaded: undo the edit, or save the edited model and load that"
        )


# ---- what a model is made of


@dataclass(slots=True)
class _Part:
    """One module, configuration or class: its settings, each under its name."""

    path: str
    kind: str
    """Its class, described."""
    fixed: tuple[tuple[str, str], ...]
    """Settings that cannot change but by another object."""
    label: str = ""
    """Its class, for readers."""
    free: frozenset[str] = frozenset()
    """Settings that users change through the model: another state, but no edit."""
    live: tuple[tuple[str, str], ...] = ()
    """Settings whose object may have changed: functions, containers, configurations."""
    hooks: tuple[tuple[str, str, bool], ...] = ()
    """(what it is, its number, whether it acts in this thread only) of the hooks that act."""
    line: str = ""
    """All of it but `live` and `hooks`, in one text."""

    def __post_init__(self) -> None:
        self.line = self.line or f"{self.path} {self.kind} {self.fixed}"

    def with_live(self, live: Sequence[tuple[str, str]], hooks: Sequence[tuple[str, str, bool]] = ()) -> _Part:
        return _Part(self.path, self.kind, self.fixed, self.label, self.free, tuple(live), tuple(hooks), self.line)

    @property
    def settings(self) -> dict[str, str]:
        return dict(self.fixed + self.live)


class _Memo:
    """What was read of a module's or a configuration's attributes; it holds as long as these are the same objects."""

    __slots__ = (
        "children",
        "configs",
        "held",
        "inner",
        "keys",
        "kind",
        "live",
        "owner",
        "part",
        "pick",
        "tensors",
        "values",
    )

    def __init__(self, owner: Any, path: str, names: Sequence[str]) -> None:
        self.owner, self.kind = owner, type(owner)
        self.held: dict[str, Any] = vars(owner)
        self.keys = tuple(self.held)
        self.children: tuple[Any, ...] = tuple(self.held.get("_modules", _NOTHING).values())
        self.pick: Callable[[dict[str, Any]], Any] = operator.itemgetter(*names) if len(names) > 1 else lambda held: ()
        self.values = self.pick(self.held)
        self.live: list[tuple[str, Any]] = []
        """Attributes that are described at every look: the same object may have changed."""
        self.configs: list[tuple[str, Any]] = []
        self.tensors: list[tuple[str, Tensor]] = []
        self.inner: list[tuple[str, nn.Module]] = []
        """Modules held as plain attributes."""
        fixed: list[tuple[str, str]] = []
        for name in names:
            value = self.held[name]
            if isinstance(value, nn.Module):
                self.inner.append((name, value))
            elif isinstance(value, _PLAIN):
                fixed.append((name, f"{type(value).__name__} {value!r}"))
            elif isinstance(value, _CONTAINERS):
                if _is_plain(value):  # others are registers of modules and hooks
                    self.live.append((name, value))
            elif isinstance(value, Tensor):
                self.tensors.append((f"{path}.{name}", value))
            elif callable(value) or isinstance(value, np.ndarray):
                self.live.append((name, value))
            elif _is_config(value):
                self.configs.append((f"{path}.{name}", value))
            else:  # the inside of other objects is their own affair
                fixed.append((name, type(value).__qualname__))
        free: frozenset[str] = getattr(self.kind, "SETTINGS", frozenset())
        self.part = _Part(path, _described(self.kind), tuple(fixed), self.kind.__name__, free)

    def holds(self) -> bool:
        """Whether it says what would be read now."""
        held, children = self.held, self.children
        return (
            type(self.owner) is self.kind
            and tuple(held) == self.keys
            and all(map(operator.is_, self.pick(held), self.values))
            and (not children or _same_objects(held["_modules"].values(), children))
        )


_NOTHING: dict[str, Any] = {}


def _same_objects(left: Collection[Any], right: Collection[Any]) -> bool:
    return len(left) == len(right) and all(map(operator.is_, left, right))


def _is_plain(value: Any) -> bool:
    """Whether a container holds nothing but plain values and containers of them."""
    parts = itertools.chain(value, value.values()) if isinstance(value, dict) else value
    return all(isinstance(part, _PLAIN) or (isinstance(part, _CONTAINERS) and _is_plain(part)) for part in parts)


class _Survey:
    """One look at all modules of a model; of what was read at the last one, all is used again that still holds."""

    def __init__(self, root: nn.Module, before: Sequence[_Memo], configs: Mapping[int, _Memo]) -> None:
        self.certain = True
        self.parts: list[_Part] = []
        self.parameters: list[tuple[str, Tensor]] = []
        self.buffers: list[tuple[str, Tensor]] = []
        """Also tensors that are plain attributes."""
        self.configs: dict[int, _Memo] = {}
        self._configs_before = configs
        self._classes: dict[type, None] = {}
        known = [memo for memo in before if memo.holds()]
        if not (known and len(known) == len(before) and known[0].owner is root):
            known = list(_memos(root, {id(memo.owner): memo for memo in known}))
        self.modules = known
        self._kept = _kept_elsewhere(memo.held for memo in known)
        for memo in self.modules:
            self._add(memo)
        for kind in self._classes:
            self._add_class(kind)
        everywhere = _acting({table: getattr(torch.nn.modules.module, f"_global{table}") for table, _ in _HOOK_TABLES})
        if everywhere:
            self.certain = False
            self.parts.append(_Part("every module", "", ()).with_live((), everywhere))

    def _add(self, memo: _Memo) -> None:
        held, part, kind = memo.held, memo.part, memo.kind
        if kind not in self._classes:
            self._classes[kind] = None
        for name, tensor in memo.tensors:
            (self.parameters if isinstance(tensor, nn.Parameter) else self.buffers).append((name, tensor))
        for path, config in memo.configs:
            self._add_config(path, config)
        if held["_parameters"]:
            for name, parameter in held["_parameters"].items():
                if parameter is not None:
                    self.parameters.append((f"{part.path}.{name}", self._kept.get(id(parameter), parameter)))
        if held["_buffers"]:
            for name, buffer in held["_buffers"].items():
                if buffer is not None and not (name == "inv_freq" and held.get("rope_type") in _SELF_SCALING):
                    self.buffers.append((f"{part.path}.{name}", buffer))
        hooks = None
        if (
            held["_forward_hooks"]
            or held["_forward_pre_hooks"]
            or held["_backward_hooks"]
            or held["_backward_pre_hooks"]
        ):
            hooks = _acting(held)
        if hooks or (held["training"] and _drops(held)):
            self.certain = False
        if hooks or memo.live:
            part = part.with_live([(name, self._describe(value)) for name, value in memo.live], hooks or ())
        self.parts.append(part)

    def _add_config(self, path: str, config: Any) -> None:
        if id(config) in self.configs:
            return
        memo = self._configs_before.get(id(config))
        if memo is None or memo.owner is not config or not memo.holds():
            memo = _Memo(config, path, _fields(config))
        self.configs[id(config)] = memo
        self.parts.append(memo.part.with_live([(name, self._describe(value)) for name, value in memo.live]))
        for name, inner in memo.configs:
            self._add_config(name, inner)

    def _add_class(self, kind: type) -> None:
        """What a class computes with: it may have been exchanged in the class itself."""
        self.certain = self.certain and _is_known(kind)
        calls = ((name, getattr(kind, name, None)) for name in ("forward", "__call__"))
        functions = [(name, self._function(call)) for name, call in calls if isinstance(call, types.FunctionType)]
        self.parts.append(_Part(f"class {kind.__module__}.{kind.__qualname__}", "", ()).with_live(functions))

    def _describe(self, value: Any) -> str:
        """A text that is the same for two values exactly if they do the same, as far as this can be told."""
        if isinstance(value, _PLAIN):
            return f"{type(value).__name__} {value!r}"
        if isinstance(value, types.FunctionType | types.BuiltinFunctionType):
            return self._function(value)
        if isinstance(value, type):
            return _described(value)
        if isinstance(value, dict):
            return "{" + ", ".join(f"{key!r}: {self._describe(part)}" for key, part in value.items()) + "}"
        if isinstance(value, set | frozenset):
            return f"{type(value).__name__} {sorted(map(repr, value))}"
        if isinstance(value, list | tuple):
            return f"{type(value).__name__} [" + ", ".join(self._describe(part) for part in value) + "]"
        if isinstance(value, np.ndarray):
            return f"array {value.dtype} {value.shape} {xxhash.xxh3_128_hexdigest(value.tobytes())}"
        if isinstance(value, partial):
            return f"partial {self._describe((value.func, value.args, value.keywords))}"
        if isinstance(value, types.MethodType):
            return f"{self._function(value.__func__)} of {_described(type(value.__self__))}"
        self.certain = self.certain and _is_known(type(value))
        return _described(type(value))

    def _function(self, function: Any) -> str:
        if not _is_known(function):
            self.certain = False
        # the code may be exchanged inside a function, as IPython's autoreload does
        return f"function {_token(function)} {_token(getattr(function, '__code__', None))}"


def _memos(root: nn.Module, known: Mapping[int, _Memo]) -> Iterator[_Memo]:
    """Every module within reach, once, under its shortest path; also those that are plain attributes, as a bridge holds
    transformers' model."""
    queue: deque[tuple[str, nn.Module]] = deque([("", root)])
    seen: set[int] = set()
    while queue:
        path, module = queue.popleft()
        if id(module) in seen:
            continue
        seen.add(id(module))
        memo = known.get(id(module))
        if memo is None or memo.part.path != path:
            memo = _Memo(module, path, _names(module))
        yield memo
        for name, child in itertools.chain(memo.held["_modules"].items(), memo.inner):
            if child is not None:
                queue.append((f"{path}.{name}" if path else name, child))


def _kept_elsewhere(modules: Iterable[Mapping[str, Any]]) -> dict[int, Tensor]:
    """For offloaded parameters of modules with these attributes, by their ``id``, what accelerate keeps for them."""
    return {
        id(parameter): held["_hf_hook"].weights_map[name]
        for held in modules
        if "_hf_hook" in held and getattr(held["_hf_hook"], "weights_map", None) is not None
        for name, parameter in held["_parameters"].items()
        if parameter is not None and parameter.is_meta
    }


def _names(module: nn.Module) -> list[str]:
    """The attributes of a module that its numbers may depend on."""
    held = vars(module)
    kinds = held.get("rope_type")  # one, or one for each kind of layer
    listed = kinds.values() if isinstance(kinds, dict) else [kinds]
    scales = {"max_seq_len_cached"} if _SELF_SCALING.intersection(listed) else set()
    own = _MODULE_OWN | _NO_SETTINGS | scales
    return ["training", *(name for name in held if name not in own and name[0] != "_")]


def _fields(config: Any) -> list[str]:
    """The fields of a configuration that a model's numbers may depend on."""
    private = "_attn_implementation_internal"
    return [name for name in vars(config) if (name[0] != "_" or name == private) and name not in _NO_CONFIG]


def _acting(held: Mapping[str, Any]) -> list[tuple[str, str, bool]]:
    """The hooks in a module's tables that act in this thread, but those of the library itself."""
    return [
        (what, str(number), hasattr(hook, _MARK))
        for table, what in _HOOK_TABLES
        # copied first: another thread may put a hook of its own on at this moment
        for number, hook in list(held[table].items())
        if acts(hook) and not str(getattr(hook, "__module__", "")).startswith(_OWN_HOOKS)
    ]


def _drops(held: Mapping[str, Any]) -> bool:
    """Whether a module of these attributes sets values to zero at random while it is in training mode."""
    return any(
        (name == "p" or "dropout" in name) and isinstance(value, float) and value > 0 for name, value in held.items()
    )


def _is_known(code: Any) -> bool:
    """Whether a class or function is of a package that computes from what a state holds and from nothing else."""
    package = (getattr(code, "__module__", None) or "builtins").partition(".")[0]
    return package in _KNOWN_CODE or package in sys.stdlib_module_names


def _described(kind: type) -> str:
    """A class; one that adds nothing to its bases is its bases."""
    adds = any(name[:2] != "__" or callable(value) for name, value in vars(kind).items())
    own = str(_token(kind)) if adds or kind is object else " ".join(map(_described, kind.__bases__))
    return f"{kind.__qualname__} ({own})"


def _is_config(value: Any) -> bool:
    return dataclasses.is_dataclass(value) or (hasattr(value, "to_dict") and hasattr(value, "__dict__"))


_numbers = itertools.count(secrets.randbits(60))
_known: dict[int, tuple[Callable[[], Any], int]] = {}
_known_lock = threading.Lock()


def _token(value: Any) -> int:
    """A number for an object that no other object ever has, in this process or in another."""
    entry = _known.get(id(value))
    if entry is not None and entry[0]() is value:
        return entry[1]
    try:
        held: Callable[[], Any] = weakref.ref(value)
    except TypeError:
        held = lambda: value  # such as None and the methods of built-in types
    with _known_lock:
        entry = _known.get(id(value))  # two threads may have met it at once
        if entry is None or entry[0]() is not value:
            entry = _known[id(value)] = held, next(_numbers)
        return entry[1]


# ---- the bytes of tensors


class _Storages:
    """The memory that tensors lie in; what several of them share is there once."""

    def __init__(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        self.held: dict[tuple[Any, ...], Any] = {}
        self.versions: dict[tuple[Any, ...], list[int]] = {}
        self._numbers: dict[tuple[Any, ...], int] = {}
        self.places: list[str] = []
        """Per tensor its type, its shape, and where in which memory it is."""
        self.readable = True
        """Whether all of them have content that can be read."""
        for name, tensor in tensors:
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
        key = (str(storage.device), storage.data_ptr(), storage.nbytes())
        if key not in self.held:
            self.held[key], self.versions[key], self._numbers[key] = storage, [], len(self.held)
        # Inference tensors do not count their changes.
        self.versions[key].append(-1 if tensor.is_inference() else tensor._version)
        self.places.append(f"{kind} {self._numbers[key]} {tensor.storage_offset()} {tensor.stride()}")


def _plain_tensors(path: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    """A tensor, or those that one of a class of its own, such as a quantised one, is made of."""
    wrapper: Any = tensor
    if is_traceable_wrapper_subclass(wrapper):
        for name in wrapper.__tensor_flatten__()[0]:
            yield from _plain_tensors(f"{path}.{name}", getattr(wrapper, name))
    else:
        yield path, tensor


def _is_here(storage: Any) -> bool:
    """Whether a storage is in the processor's memory, not in an accelerator's."""
    return bool(storage.device.type == "cpu")


def _buffer(storage: Any) -> Any:
    """The bytes of a storage in the processor's memory."""
    return (ctypes.c_ubyte * storage.nbytes()).from_address(storage.data_ptr())


def _words(storage: Any, dtype: torch.dtype) -> Tensor:
    """(n,) the whole numbers of this type in a storage of an accelerator; bytes behind the last are left out."""
    count = storage.nbytes() // dtype.itemsize
    return torch.empty(0, dtype=dtype, device=storage.device).set_(storage, 0, (count,), (1,))


def _samples(storages: Sequence[Any]) -> list[bytes]:
    """Of each storage bytes from all over it; of a small one all."""
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


def _digests(storages: Sequence[Any]) -> list[bytes]:
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
    """The bytes of tensors of an accelerator, with one copy per device."""
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
    """Of each storage (8,) bytes: the sum of its 32-bit words, each times an odd weight of its own, modulo 2**64.

    One changed word always moves it, and words that change places do but for a chance of about 2**-64. It runs where
    the storages are, at the speed of their memory.
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
        sums = [(chunk.long() * weights[: len(chunk)]).sum()[None] for chunk in words.split(_CHUNK) if len(chunk)]
        parts = torch.cat([*sums, _words(storage, torch.uint8)[len(words) * 4 :].long()])
        totals.append((parts * outer[: len(parts)]).sum()[None].view(torch.uint8))
    return totals


def _weights(index: Tensor) -> Tensor:
    """(n,) odd 64-bit numbers, one for each index, without a pattern (the finisher of SplitMix64)."""
    mixed = (index + 1) * -7046029254386353131
    mixed = (mixed ^ (mixed >> 30)) * -4658895280553007687
    return (mixed ^ (mixed >> 27)) | 1


@dataclass(slots=True)
class _Read:
    """What a storage held when all of it was read."""

    versions: list[int]
    sample: bytes
    digest: bytes


# ---- one model's states


class Watch:
    """The states of one model; a `Network` has one, made when the model is as it was loaded."""

    def __init__(self, tl_model: nn.Module) -> None:
        self._memos: tuple[Sequence[_Memo], Mapping[int, _Memo]] = ((), {})
        self._reads: dict[tuple[Any, ...], _Read] = {}
        self.memory: dict[str, tuple[bytes, Any]] = {}
        """What was found of the model, with the structure that it had then."""
        with torch.no_grad():
            survey = self._survey(tl_model)
            self._loaded = {part.path: part for part in survey.parts}
            self._loaded_buffers = _values(survey.buffers)
            self.loaded_weights = self.weights(tl_model)
            """The `weights_key` of then."""

    def structure(self, root: nn.Module) -> bytes:
        """See `structure_key`."""
        survey = self._survey(root)
        return _structure(survey, _Storages([*survey.parameters, *survey.buffers]))

    def state(self, root: nn.Module, *, exact: bool) -> State:
        """See `state_key`."""
        survey = self._survey(root)
        storages = _Storages([*survey.parameters, *survey.buffers])
        digests, read = self._read(storages, exact=exact)
        content = xxhash.xxh3_128_digest(b"".join(digests))
        return State(_structure(survey, storages), content, survey.certain, storages.readable and read)

    def weights(self, root: nn.Module) -> bytes:
        """See `weights_key`."""
        kept = _kept_elsewhere(vars(module) for module in root.modules())
        named = sorted(root.named_parameters(), key=lambda item: item[0])
        storages = _Storages((name, kept.get(id(parameter), parameter)) for name, parameter in named)
        if not storages.readable:  # what cannot be read is like nothing before
            return secrets.token_bytes(16)
        parts = [*(place.encode() for place in storages.places), *_digests(list(storages.held.values()))]
        return xxhash.xxh3_128_digest(b"\n".join(parts))

    def edits(self, root: nn.Module) -> Edits | None:
        """See the function `edits`."""
        survey = self._survey(root)
        differences = list(_differences(self._loaded, {part.path: part for part in survey.parts}))
        buffers = _values(survey.buffers)
        for name in sorted({*buffers, *self._loaded_buffers}):
            if buffers.get(name) != self._loaded_buffers.get(name):
                differences.append((f"{name} holds other values", f"{name} {buffers.get(name)!r}"))
        if not differences:
            return None
        sentences = [sentence for sentence, _ in differences]
        more = f" and {len(sentences) - 3} more" if len(sentences) > 3 else ""
        lasting = [key for _, key in differences if key is not None]
        key = xxhash.xxh3_128_hexdigest("\n".join(lasting).encode()) if lasting else None
        return Edits(f"{'; '.join(sentences[:3])}{more}", key)

    def _survey(self, root: nn.Module) -> _Survey:
        survey = _Survey(root, *self._memos)
        self._memos = survey.modules, survey.configs
        return survey

    def _read(self, storages: _Storages, *, exact: bool) -> tuple[list[bytes], bool]:
        """A digest per storage, and whether all bytes have been read for it now."""
        held = storages.held
        if storages.bytes <= READ_BYTES:
            return _digests(list(held.values())), True
        samples = dict(zip(held, _samples(list(held.values())), strict=True))
        reads: dict[tuple[Any, ...], _Read] = {}
        for key in held:
            before = self._reads.get(key)
            if before is None or exact:
                continue
            if (before.versions, before.sample) == (storages.versions[key], samples[key]):
                reads[key] = before
        due = [key for key in held if key not in reads]
        for key, digest in zip(due, _digests([held[key] for key in due]), strict=True):
            reads[key] = _Read(storages.versions[key], samples[key], digest)
        self._reads = reads
        return [reads[key].digest for key in held], len(due) == len(held)


def _structure(survey: _Survey, storages: _Storages) -> bytes:
    words = [f"{part.line} {part.live} {part.hooks}" if part.live or part.hooks else part.line for part in survey.parts]
    return xxhash.xxh3_128_digest("\n".join([*words, *storages.places]).encode())


def _values(tensors: Iterable[tuple[str, Tensor]]) -> dict[str, str]:
    """For every name a digest of type, shape and values."""
    values: dict[str, str] = {}
    group: list[tuple[str, Tensor, list[Any]]] = []
    size = 0

    def read() -> None:
        digests = iter(_digests([storage for *_, own in group for storage in own]))
        for name, tensor, own in group:
            digest = b"".join(itertools.islice(digests, len(own)))
            values[name] = f"{tensor.dtype} {tuple(tensor.shape)} {digest.hex()}"
        group.clear()

    for name, tensor in tensors:
        plain = tensor.detach().contiguous().clone() if _is_view(tensor) else tensor
        storages = _Storages([("", plain)])
        # many are read at once; how a tensor is read must not depend on what others there are
        if group and size + storages.bytes > READ_BYTES:
            read()
            size = 0
        group.append((name, plain, list(storages.held.values())))
        size += storages.bytes
    read()
    return values


def _is_view(tensor: Tensor) -> bool:
    """Whether the memory of a tensor holds more than the tensor, or in another order."""
    plain = tensor.device.type != "meta" and tensor.layout == torch.strided
    return plain and not (tensor.is_contiguous() and tensor.untyped_storage().nbytes() == tensor.nbytes)


def _differences(before: Mapping[str, _Part], now: Mapping[str, _Part]) -> Iterator[tuple[str, str | None]]:
    """What parts differ in: a sentence, and what tells it from other differences; None where only this thread sees it.

    Of a module that is another one, or is gone, what is inside is not listed.
    """
    listed: list[str] = []
    for path in sorted({*before, *now}):
        if any(path.startswith(f"{other}.") or not other for other in listed):
            continue
        old, new, name = before.get(path), now.get(path), path or "the model"
        if old is None or new is None or old.kind != new.kind:
            listed.append(path)
            what = (
                "is gone" if new is None else f"is a {new.label}" + (f", no {old.label}" if old else ", and was none")
            )
            yield f"{name} {what}", f"{path} {None if new is None else new.kind}"
            continue
        if old is not new:
            settings, loaded = new.settings, old.settings
            for key in sorted({*settings, *loaded} - new.free):
                if settings.get(key) != loaded.get(key):
                    yield f"{name} has another {key}", f"{path} {key} {settings.get(key)}"
    for path, part in now.items():
        for what, number, scoped in part.hooks:
            name = path or "the model"
            if scoped:
                yield f"an intervention acts at {name}", None
            else:
                yield f"a {what} acts on {name}", f"{path} {what} {number}"
