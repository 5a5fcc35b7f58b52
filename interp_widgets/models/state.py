"""A model's state: everything that its numbers depend on, as a key that is cheap enough to compute at every call.

A key has three parts. *Structure* is the modules: their classes and functions, plain settings such as ``eps`` or
``attn_scale``, the configuration, the hooks that act in the calling thread, and the dtype, shape and storage of every
tensor. *Content* is the bytes of all parameters, buffers and other tensors. Edits through ``.data`` or ``.numpy()``
leave no trace in PyTorch, so the bytes are read: all of them up to `contents.READ_BYTES`, which takes one to three
milliseconds; samples of larger models, or all of them if `state_key` must be exact (about 0.2 s for 4 GB). *Declared*
is what no module or tensor shows: tokenizer and chat template (`reading`), whether a text begins with a BOS, and how
the model was loaded.

If the state does not determine what a model computes, the key says so (`State.certain`), and cached results must be
computed again: a user's hook or function may do anything, dropout is random, and tensors without content cannot be
read.

`State` compares models within a process; `facts` are the same for equal models in every process, and go into files.
"""

from __future__ import annotations

import dataclasses
import itertools
import operator
import secrets
import sys
import threading
import types
import weakref
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
import xxhash
from torch import Tensor, nn

from interp_widgets.locks import Rank, may_wait_for

from . import contents
from .hooks import HOOK_TABLES, acting_hooks, is_scoped
from .reading import Reading, template_digest

__all__ = [
    "FACTS",
    "Edits",
    "State",
    "Watch",
    "Watched",
    "check_as_loaded",
    "edits",
    "facts",
    "facts_of",
    "is_as_loaded",
    "last_remembered",
    "note_loaded",
    "remembered",
    "state_key",
    "weights_key",
]

T = TypeVar("T")

_KNOWN_CODE = {
    "accelerate", "bitsandbytes", "compressed_tensors", "einops", "hqq", "interp_widgets", "jaxtyping", "numpy",
    "torch", "torchao", "transformer_lens", "transformers",
}  # fmt: skip
"""Packages whose classes and functions depend only on what a state holds."""
FACTS = ("weight_hash", "dtype", "backend", "processed", "tokenizer", "chat_template", "adds_bos", "edited", "edit_key")
"""What a model's numbers depend on, by the names in its provenance; the last two only of an edited model."""
_REMEMBERED_FACTS = 1000
_NO_SETTINGS = {"alibi", "bwd_hooks", "ctx", "fwd_hooks", "is_caching", "name", "name_or_path", "tokenizer"}
"""Attributes of modules that are names, hooks (read from PyTorch's tables) or caches of earlier passes."""
_NO_CONFIG = {"device", "dtype", "model_name", "name_or_path", "seed", "tokenizer_name", "torch_dtype"}
SELF_SCALING = {"dynamic", "longrope"}
"""Kinds of rotary embeddings that recompute their table in every pass."""
_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size, np.generic)
_CONTAINERS = (dict, list, tuple, set, frozenset)
_MODULE_OWN = frozenset(vars(nn.Module()))


@dataclass(frozen=True)
class State:
    """The state of a model at one moment; models with equal states compute equal numbers if they are `certain`."""

    structure: bytes
    """Digest of modules, functions, settings, hooks, and of every tensor's dtype, shape and storage."""
    content: bytes
    """Digest of the bytes of all tensors."""
    declared: tuple[tuple[str, Any], ...]
    """What no module or tensor shows: how texts become ids, and how the model was loaded."""
    known_code: bool = field(compare=False)
    """Whether only known, deterministic code runs: no hook, no function or class of the user, no dropout."""
    read: bool = field(compare=False)
    """Whether every byte was read just now; otherwise `content` may be from before an edit."""

    @property
    def certain(self) -> bool:
        """Whether an equal state means equal numbers; otherwise results must not be cached under this key."""
        return self.known_code and self.read


@dataclass(frozen=True)
class Edits:
    """How a model differs from the loaded one apart from its parameters, which `Network.weight_hash` covers."""

    sentence: str
    """Description of the differences."""
    key: str | None
    """Hexadecimal digest of the differences; None if they are only interventions of the calling thread."""


class Watched(Protocol):
    """A `Network`, which has a state."""

    name: str
    lock: Any
    tl_model: Any
    _watch: Watch

    @property
    def weight_hash(self) -> str: ...


def state_key(network: Watched, *, exact: bool = False, wait: float = -1) -> State:
    """The state of a model as the calling thread sees it now.

    Args:
        network: a `Network` or `Model`.
        exact: read every byte, also of large models; otherwise the key of a model above `contents.READ_BYTES` is not
            certain, because the samples may miss an edit of few values that leaves no trace in PyTorch.
        wait: seconds to wait for a pass that is running in another thread; no limit by default.

    Raises:
        TimeoutError: the model still computes in another thread.
    """
    if not network.lock.acquire(timeout=wait):
        raise TimeoutError("the model computes in another thread")
    try:
        with torch.no_grad():
            look = network._watch.look(network.tl_model)
            content, read = network._watch.content(look.storages, exact=exact)
            declared = _declared(network, exact=exact)
    finally:
        network.lock.release()
    return State(look.structure(), content, declared, look.known_code, look.storages.readable and read)


def facts(network: Watched) -> dict[str, str | bool]:
    """What a model's numbers depend on, by the names in `FACTS`: equal for equal models in every process."""
    with network.lock:
        return _facts_with(network, _declared(network))


def _facts_with(network: Watched, declared: tuple[tuple[str, Any], ...]) -> dict[str, str | bool]:
    """The `facts` of a model of which this has just been read."""
    with network.lock:
        values: dict[str, Any] = {"weight_hash": network.weight_hash, **dict(declared)}
        changed = edits(network)
    if changed is not None:
        values["edited"] = changed.sentence
        if changed.key is not None:
            values["edit_key"] = changed.key
    return values


def facts_of(network: Watched, state: State, *, wait: float = -1) -> Mapping[str, str | bool] | None:
    """The `facts` of a model in a state that it has now or had when this was called before; None otherwise, or if the
    state does not determine what the model computes, or the model still computes after `wait` seconds."""
    if not state.known_code:
        return None
    held = _facts.get(state)
    if held is not None or not network.lock.acquire(timeout=wait):
        return held
    try:
        if state_key(network) != state:
            return None
        values = _facts_with(network, state.declared)
        if state_key(network, exact=True) != state:  # every byte of what was described
            return None
    finally:
        network.lock.release()
    while len(_facts) >= _REMEMBERED_FACTS:
        _facts.pop(next(iter(_facts)), None)
    _facts[state] = values
    return values


_facts: dict[State, Mapping[str, str | bool]] = {}


def _declared(network: Watched, *, exact: bool = True) -> tuple[tuple[str, Any], ...]:
    """See `State.declared`; a setting of the run that all numbers depend on belongs here."""
    return (
        ("dtype", str(getattr(network, "dtype", None)).removeprefix("torch.")),
        ("backend", getattr(network, "backend", None)),
        ("processed", getattr(network, "processed", None)),
        ("tokenizer", network._watch.reading.digest(network, exact=exact)),
        ("chat_template", template_digest(network)),
        ("adds_bos", getattr(network, "prepend_bos", None)),
    )


def remembered(network: Watched, name: str, find: Callable[[], T]) -> T:
    """The cached result of ``find``, which must not depend on weights and hooks; computed again when modules,
    functions, settings, or dtypes and shapes of tensors change.

    While the model is unchanged, this does not wait for a pass in another thread. A thread that draws, which must not
    wait, gets the last result of a changed model.
    """
    watch = network._watch
    held = watch.memory.get(name)
    if held is None or held[0] != watch.look(network.tl_model).architecture():
        if held is not None and not may_wait_for(Rank.MODEL):
            return held[1]
        with network.lock:
            architecture = watch.look(network.tl_model).architecture()
            held = watch.memory.get(name)
            if held is None or held[0] != architecture:
                held = watch.memory[name] = architecture, find()
    answer: T = held[1]
    return answer


def last_remembered(network: Watched, name: str) -> Any:
    """The last result of `remembered`, without inspecting the model again; None if there is none."""
    return network._watch.memory.get(name, (None, None))[1]


def weights_key(network: Watched) -> bytes:
    """A digest of every byte of the current parameters; it changes exactly when `weight_hash` does."""
    with network.lock, torch.no_grad():
        return _weights(network._watch.look(network.tl_model))


def edits(network: Watched) -> Edits | None:
    """How a model differs from the loaded one: modules, functions, settings, buffers, hooks; None if it is the same."""
    with network.lock, torch.no_grad():
        watch, look = network._watch, network._watch.look(network.tl_model)
        differences = [
            *_differences(watch.loaded, look),
            *_of_buffers(watch.loaded_buffers, contents.values(look.buffers)),
        ]
    if not differences:
        return None
    sentences = [sentence for sentence, _ in differences]
    more = f" and {len(sentences) - 3} more" if len(sentences) > 3 else ""
    lasting = [key for _, key in differences if key is not None]
    key = xxhash.xxh3_128_hexdigest("\n".join(lasting).encode()) if lasting else None
    return Edits(f"{'; '.join(sentences[:3])}{more}", key)


def note_loaded(network: Watched) -> None:
    """Note how a model that has just been loaded reads texts."""
    network._watch.declared = _declared(network)


def is_as_loaded(network: Watched) -> bool:
    """Whether a model is just what was loaded, hooks and tokenizer included."""
    watch = network._watch
    return (
        edits(network) is None
        and weights_key(network) == watch.loaded_weights
        and watch.declared in (None, _declared(network, exact=False))
    )


def check_as_loaded(network: Watched, purpose: str) -> None:
    """Raise a ValueError if a model was edited after it was loaded, for a purpose that reads its source again."""
    edit, moved = edits(network), weights_key(network) != network._watch.loaded_weights
    if moved or (edit is not None and edit.key is not None):
        what = "its weights hold other values" if moved or edit is None else edit.sentence
        raise ValueError(
            f"{network.name} was edited after it was loaded ({what}), and {purpose} reads it again from its source: "
            "undo the edit, or save the edited model and load that"
        )


# ---- one model's states


@dataclass(slots=True)
class _Read:
    """The contents of a storage when it was last read completely."""

    versions: list[int]
    sample: bytes
    digest: bytes


class Watch:
    """Cached information about one model, created by its `Network` when it is loaded."""

    def __init__(self, tl_model: nn.Module) -> None:
        self._survey: _Survey | None = None
        self._reads: dict[tuple[Any, ...], _Read] = {}
        self.memory: dict[str, tuple[Hashable, Any]] = {}
        """Cached results with the architecture at the time; see `remembered`."""
        look = self.look(tl_model)
        self.reading = Reading()
        self.declared: tuple[tuple[str, Any], ...] | None = None
        """`State.declared` at load; None for a network without a tokenizer."""
        self.loaded = look.settings()
        self.loaded_buffers = contents.values(look.buffers)
        self.loaded_weights = _weights(look)
        """The `weights_key` at load."""

    def look(self, root: nn.Module) -> _Look:
        """The current state of the model."""
        if self._survey is None or not self._survey.holds(root):
            self._survey = _Survey(root)
        return _Look(self._survey)

    def content(self, storages: contents.Storages, *, exact: bool) -> tuple[bytes, bool]:
        """A digest of all tensors, and whether all bytes were read for it just now."""
        storage_of = storages.held
        if storages.bytes <= contents.READ_BYTES:
            return _digest(contents.digests(list(storage_of.values()))), True
        samples = dict(zip(storage_of, contents.samples(list(storage_of.values())), strict=True))
        reads: dict[tuple[Any, ...], _Read] = {}
        for key in storage_of:
            before = self._reads.get(key)
            if before is None or exact:
                continue
            if (before.versions, before.sample) == (storages.versions[key], samples[key]):
                reads[key] = before
        due = [key for key in storage_of if key not in reads]
        for key, digest in zip(due, contents.digests([storage_of[key] for key in due]), strict=True):
            reads[key] = _Read(storages.versions[key], samples[key], digest)
        self._reads = reads
        return _digest(reads[key].digest for key in storage_of), len(due) == len(storage_of)


# ---- parts of a model


class _Held:
    """The attributes of one module or configuration at the time, by object identity."""

    __slots__ = ("attributes", "children", "keys", "kind", "owner", "pick", "values")

    def __init__(self, owner: Any, names: Sequence[str]) -> None:
        self.owner, self.kind = owner, type(owner)
        self.attributes: dict[str, Any] = vars(owner)
        self.keys = tuple(self.attributes)
        # one name twice, so that a single name gives a tuple too
        self.pick: Callable[[dict[str, Any]], Any] = operator.itemgetter(*names, names[0]) if names else tuple
        self.values = self.pick(self.attributes)
        self.children = tuple(self.attributes.get("_modules", {}).values())

    def holds(self) -> bool:
        """Whether all of them are the same objects."""
        attributes, children = self.attributes, self.children
        return (
            type(self.owner) is self.kind
            and tuple(attributes) == self.keys
            and all(map(operator.is_, self.pick(attributes), self.values))
            and (not children or _same_objects(attributes["_modules"].values(), children))
        )


def _same_objects(left: Collection[Any], right: Collection[Any]) -> bool:
    return len(left) == len(right) and all(map(operator.is_, left, right))


class _Survey:
    """The parts of a model: all reachable modules, their configurations, classes and functions. It is valid as long as
    these are the same objects (`holds`); a `_Look` reads the state that can change inside them."""

    def __init__(self, root: nn.Module) -> None:
        self.settings: dict[str, dict[str, str]] = {}
        """By path of a module, a configuration or a class: its class, under "", and its settings."""
        self.live: list[tuple[str, str, dict[str, Any]]] = []
        """(path, name, attributes) of settings that are read at every look."""
        self.free: set[tuple[str, str]] = set()
        """(path, name) of settings that users change through the model, which is another state but not an edit."""
        self.modules: list[tuple[str, dict[str, Any]]] = []
        """(path, attributes); the path is the shortest one."""
        self.tensors: list[tuple[str, Tensor]] = []
        """Those that are plain attributes."""
        self.known_code = True
        self._held: list[_Held] = []
        self._seen: set[int] = set()
        self._calls: dict[tuple[type, str], Any] = {}
        self._codes: dict[int, tuple[Any, Any]] = {}
        """Functions and their code, which may be exchanged inside a function, as IPython's autoreload does."""
        queue: deque[tuple[str, nn.Module]] = deque([("", root)])
        while queue:
            path, module = queue.popleft()
            if id(module) not in self._seen:
                children = self._add_module(path, module)
                queue += [(f"{path}.{name}" if path else name, child) for name, child in children if child is not None]
        self.digest = xxhash.xxh3_128_digest(repr(self.settings).encode())

    def holds(self, root: nn.Module) -> bool:
        """Whether all parts are still the same objects."""
        return (
            self._held[0].owner is root
            and all(held.holds() for held in self._held)
            and all(getattr(kind, name, None) is call for (kind, name), call in self._calls.items())
            and all(function.__code__ is code for function, code in self._codes.values())
        )

    def _add_module(self, path: str, module: nn.Module) -> list[tuple[str, nn.Module | None]]:
        """Read one module and return its submodules, also plain attributes, such as a bridge's transformers model."""
        attributes, kind = vars(module), type(module)
        self.modules.append((path, attributes))
        if attributes["training"] and _drops(attributes):
            self.known_code = False
        if (kind, "forward") not in self._calls:
            self.known_code = self.known_code and _is_known(kind)
            functions = self.settings.setdefault(f"class {kind.__module__}.{kind.__qualname__}", {"": ""})
            for name in ("forward", "__call__"):  # they may be replaced in the class itself
                call = self._calls[kind, name] = getattr(kind, name, None)
                if isinstance(call, types.FunctionType):
                    functions[name] = functions.get(name, "") + self._function(call)  # classes may share a name
        return [*attributes["_modules"].items(), *self._add(path, module, _names(module))]

    def _add(self, path: str, owner: Any, names: Sequence[str]) -> list[tuple[str, nn.Module | None]]:
        """Read the attributes of a module or a configuration and return the modules among them."""
        self._seen.add(id(owner))
        attributes = vars(owner)
        free: frozenset[str] = getattr(type(owner), "SETTINGS", frozenset())
        own, modules = self.settings.setdefault(path, {"": _described(type(owner))}), list[Any]()
        self._held.append(_Held(owner, [name for name in names if name not in free]))
        for name in names:
            value = attributes[name]
            if isinstance(value, nn.Module):
                modules.append((name, value))
            elif isinstance(value, Tensor):
                self.tensors.append((f"{path}.{name}", value))
            elif name in free:
                self.free.add((path, name))
                self.live.append((path, name, attributes))
            elif isinstance(value, _CONTAINERS):
                if _is_plain(value):  # others are registers of modules and hooks
                    self.live.append((path, name, attributes))
            elif isinstance(value, np.ndarray | partial):
                self.live.append((path, name, attributes))
            elif isinstance(value, _PLAIN) or callable(value):
                own[name] = self.described(value)
            elif not _is_config(value):  # other objects are not inspected
                own[name] = type(value).__qualname__
            elif id(value) not in self._seen:
                self._add(f"{path}.{name}", value, _fields(value))
        return modules

    def described(self, value: Any) -> str:
        """A text that is the same for two values exactly if they behave the same, as far as this can be determined."""
        if isinstance(value, _PLAIN):
            return f"{type(value).__name__} {value!r}"
        if isinstance(value, types.FunctionType | types.BuiltinFunctionType):
            return self._function(value)
        if isinstance(value, type):
            return _described(value)
        if isinstance(value, dict):
            return f"dict {self.described(list(value.items()))}"
        if isinstance(value, set | frozenset):
            return f"{type(value).__name__} {sorted(map(repr, value))}"
        if isinstance(value, list | tuple):
            return f"{type(value).__name__} [" + ", ".join(self.described(part) for part in value) + "]"
        if isinstance(value, np.ndarray):
            return f"array {value.dtype} {value.shape} {xxhash.xxh3_128_hexdigest(value.tobytes())}"
        if isinstance(value, partial):
            return f"partial {self.described((value.func, value.args, value.keywords))}"
        if isinstance(value, types.MethodType):
            return f"{self.described(value.__func__)} of {_described(type(value.__self__))}"
        self.known_code = self.known_code and _is_known(type(value))
        return _described(type(value))

    def _function(self, function: Any) -> str:
        self.known_code = self.known_code and _is_known(function)
        code = getattr(function, "__code__", None)
        if code is not None:
            self._codes[id(function)] = function, code
        return f"function {_token(function)} {_token(code)}"


class _Look:
    """A model at one moment, as the calling thread sees it."""

    def __init__(self, survey: _Survey) -> None:
        self.survey = survey
        self.live = [(path, name, survey.described(held.get(name))) for path, name, held in survey.live]
        everywhere = {table: getattr(nn.modules.module, f"_global{table}") for table in HOOK_TABLES}
        self.hooks = [
            (path, what, number, is_scoped(hook))
            for path, held in [*survey.modules, ("every module", everywhere)]
            for what, number, hook in acting_hooks(held)
        ]
        """(path, kind, number, whether it acts in this thread only)"""
        self.known_code = survey.known_code and not self.hooks
        self.buffers = [(name, tensor) for name, tensor in survey.tensors if not isinstance(tensor, nn.Parameter)]
        """Also tensors that are plain attributes."""
        self.parameters = [(name, tensor) for name, tensor in survey.tensors if isinstance(tensor, nn.Parameter)]
        kept = _kept_elsewhere(held for _, held in survey.modules)
        for path, held in survey.modules:
            for name, parameter in held["_parameters"].items():
                if parameter is not None:
                    self.parameters.append((f"{path}.{name}", kept.get(id(parameter), parameter)))
            for name, buffer in held["_buffers"].items():
                if buffer is not None and not (name == "inv_freq" and held.get("rope_type") in SELF_SCALING):
                    self.buffers.append((f"{path}.{name}", buffer))

    @cached_property
    def storages(self) -> contents.Storages:
        """The memory of all tensors."""
        return contents.Storages([*self.parameters, *self.buffers])

    def structure(self) -> bytes:
        """See `State.structure`."""
        description = f"{self.live} {self.hooks} {self.storages.places}"
        return xxhash.xxh3_128_digest(self.survey.digest + description.encode())

    def architecture(self) -> Hashable:
        """The part that does not depend on weights and hooks: modules, settings, dtypes and shapes of tensors."""
        tensors = [*self.parameters, *self.buffers]
        types = tuple((type(tensor), tensor.dtype, tensor.shape, tensor.device) for _, tensor in tensors)
        return self.survey.digest, str(self.live), types

    def settings(self) -> dict[str, dict[str, str]]:
        """By path: the class under "" and all settings under their names."""
        settings = dict(self.survey.settings)
        for path, name, text in self.live:
            settings[path] = {**settings[path], name: text}
        return settings


def _is_plain(value: Any) -> bool:
    """Whether a container holds only plain values and containers of them."""
    parts = itertools.chain(value, value.values()) if isinstance(value, dict) else value
    return all(isinstance(part, _PLAIN) or (isinstance(part, _CONTAINERS) and _is_plain(part)) for part in parts)


def _kept_elsewhere(modules: Iterable[Mapping[str, Any]]) -> dict[int, Tensor]:
    """The tensors of offloaded parameters of modules with these attributes, by ``id`` of the parameter."""
    return {
        id(parameter): attributes["_hf_hook"].weights_map[name]
        for attributes in modules
        if "_hf_hook" in attributes and getattr(attributes["_hf_hook"], "weights_map", None) is not None
        for name, parameter in attributes["_parameters"].items()
        if parameter is not None and parameter.is_meta
    }


def _names(module: nn.Module) -> list[str]:
    """The attributes of a module that its numbers may depend on."""
    attributes = vars(module)
    kinds = attributes.get("rope_type")  # one, or one for each kind of layer
    listed = kinds.values() if isinstance(kinds, dict) else [kinds]
    scales = {"max_seq_len_cached"} if SELF_SCALING.intersection(listed) else set()
    own = _MODULE_OWN | _NO_SETTINGS | scales
    return ["training", *(name for name in attributes if name not in own and name[0] != "_")]


def _fields(config: Any) -> list[str]:
    """The fields of a configuration that a model's numbers may depend on."""
    private = "_attn_implementation_internal"
    return [name for name in vars(config) if (name[0] != "_" or name == private) and name not in _NO_CONFIG]


def _drops(attributes: Mapping[str, Any]) -> bool:
    """Whether a module with these attributes applies dropout in training mode."""
    return any(
        (name == "p" or "dropout" in name) and isinstance(value, float) and value > 0
        for name, value in attributes.items()
    )


def _is_known(code: Any) -> bool:
    """Whether a class or function is from a package whose code depends only on what a state holds."""
    package = (getattr(code, "__module__", None) or "builtins").partition(".")[0]
    return package in _KNOWN_CODE or package in sys.stdlib_module_names


def _described(kind: type) -> str:
    """A description of a class; a class that adds nothing to its bases is described by its bases."""
    adds = any(name[:2] != "__" or callable(value) for name, value in vars(kind).items())
    identity = str(_token(kind)) if adds or kind is object else " ".join(map(_described, kind.__bases__))
    return f"{kind.__qualname__} ({identity})"


def _is_config(value: Any) -> bool:
    return dataclasses.is_dataclass(value) or (hasattr(value, "to_dict") and hasattr(value, "__dict__"))


_numbers = itertools.count(secrets.randbits(60))
_known: dict[int, tuple[Callable[[], Any], int]] = {}
_known_lock = threading.Lock()


def _token(value: Any) -> int:
    """A unique number for a function, a class or code, also across processes."""
    if value is None:  # built-in functions have no code
        return 0
    with _known_lock:
        entry = _known.get(id(value))
        if entry is None or entry[0]() is not value:
            entry = _known[id(value)] = weakref.ref(value), next(_numbers)
        return entry[1]


# ---- digests


def _digest(parts: Iterable[bytes]) -> bytes:
    return xxhash.xxh3_128_digest(b"\n".join(parts))


def _weights(look: _Look) -> bytes:
    """See `weights_key`."""
    storages = contents.Storages(look.parameters)
    if not storages.readable:  # unreadable content never equals earlier content
        return secrets.token_bytes(16)
    return _digest([*map(str.encode, storages.places), *contents.digests(list(storages.held.values()))])


# ---- differences from the loaded model


def _differences(before: Mapping[str, Mapping[str, str]], look: _Look) -> Iterator[tuple[str, str | None]]:
    """The differences in modules, settings and hooks: a sentence, and a key; None for the key where only this thread
    sees the difference.

    The contents of a module that was replaced or removed are not listed.
    """
    now, listed = look.settings(), list[str]()
    moved = [path for path in {*before, *now} if before.get(path) != now.get(path)]
    for path in sorted(moved):
        if any(path.startswith(f"{other}.") or not other for other in listed):
            continue
        old, new, name = before.get(path, {}), now.get(path, {}), path or "the model"
        if old.get("") != new.get(""):
            listed.append(path)
            was, label = (part[""].partition(" (")[0].rpartition(".")[2] if part else "" for part in (old, new))
            change = f"is a {label}" + (f", no {was}" if was else ", and was none") if label else "is gone"
            yield f"{name} {change}", f"{path} {new.get('')}"
            continue
        for key in sorted({*old, *new}):
            if old.get(key) != new.get(key) and (path, key) not in look.survey.free:
                yield f"{name} has another {key}", f"{path} {key} {new.get(key)}"
    for path, change, number, scoped in look.hooks:
        name = path or "the model"
        if scoped:
            yield f"an intervention acts at {name}", None
        else:
            yield f"a {change} acts on {name}", f"{path} {change} {number}"


def _of_buffers(before: Mapping[str, str], now: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for name in sorted({*before, *now}):
        if before.get(name) != now.get(name):
            yield f"{name} holds other values", f"{name} {now.get(name)}"
