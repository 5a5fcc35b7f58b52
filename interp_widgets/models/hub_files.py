"""Reads models and tokenizers from demo names, folders and hub names; errors explain why that fails."""

from __future__ import annotations

import contextlib
import json
import logging as python_logging
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

import torch

from ..data.files import short
from .memory import is_out_of_memory

DEMO = Path(__file__).resolve().parents[1] / "assets" / "demo"
DEMO_NAMES = {"demo-base": "base", "demo-tuned": "tuned"}
DEMO_MIXTURES = {f"{name}-mixture": DEMO / f"{name}-mixture" for name in DEMO_NAMES}
"""Names and folders of the shipped mixtures of depths, one for each demo model."""
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json", "vocab.txt")
PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
CONVERSION = (
    "python -c \"from transformers import AutoModelForCausalLM as A; A.from_pretrained('{folder}', "
    "use_safetensors=False).save_pretrained('{folder}', safe_serialization=True)\""
)


DeviceMap = str | dict[str, int | str | torch.device]
MaxMemory = dict[int | str, int | str]


class LoadError(ValueError):
    """A model cannot be loaded; the message says why and what to do."""


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


def open_source(
    source: str | Path | Any,
    tokenizer: Any,
    dtype: torch.dtype | None,
    device_map: DeviceMap | None = None,
    max_memory: MaxMemory | None = None,
) -> Source:
    """Read a demo name, folder or hub name in ``dtype``, or take a transformers model unchanged.

    Args:
        source: as for `load_model`, but not a TransformerLens model.
        tokenizer: the model's tokenizer; None for the one in its folder.
        dtype: of a model that is read, None for that of its file; a transformers model keeps its own.
        device_map: how accelerate spreads a model that is read.
        max_memory: the memory of each device that accelerate may use for a model that is read.
    """
    if isinstance(source, str | Path):
        spread = {"device_map": device_map, "max_memory": max_memory} if device_map is not None else {}
        opened = _read_source(source, tokenizer, dtype, spread)
    else:
        check_transformers_model(source)
        check_lora(source)
        own = tokenizer if tokenizer is not None else _tokenizer_beside(source)
        opened = Source(source, _name_of(source), own, owned=False)
    if opened.tokenizer is not None:
        check_tokenizer(opened.tokenizer, opened.hf_model.config.get_text_config().vocab_size, opened.name)
    return opened


def _read_source(source: str | Path, tokenizer: Any, dtype: torch.dtype | None, spread: dict[str, Any]) -> Source:
    text = str(source)
    demo = DEMO_NAMES.get(text)
    path = DEMO / demo if demo else Path(os.path.expanduser(text))
    if demo and not path.is_dir():
        raise LoadError(
            f"the shipped model {text} is not there ({path}): install the package again, or run `make demo`"
        )
    local = bool(demo) or os.path.exists(path) or isinstance(source, Path) or _looks_like_path(text)
    where: str | Path = path if local else text
    if local:
        check_folder(path)
    offline = not local and not hub_reachable()  # an earlier download may still be in the cache
    hf_model = read_model(where, dtype=dtype, local=local, offline=offline, **spread)
    own = read_tokenizer(where, local=local, offline=offline)
    if tokenizer is not None and own is not None:
        check_same_tokenizer(tokenizer, own, text)
    name = text if demo or not local else path.resolve().name
    return Source(hf_model, name, tokenizer if tokenizer is not None else own, address(source))


def address(source: str | Path) -> str:
    """The argument for loading a model again: its name, or the absolute path of its folder."""
    path = Path(os.path.expanduser(source))
    return str(path.resolve()) if str(source) not in DEMO_NAMES and os.path.exists(path) else str(source)


def _looks_like_path(text: str) -> bool:
    return text.startswith((".", "/", "~")) or "\\" in text or text.count("/") > 1 or not text


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
    """The last part of a folder's path; a hub name is not changed."""
    return Path(name).name if os.path.exists(name) else name


def _tokenizer_beside(hf_model: Any) -> Any:
    """The tokenizer in the local folder of a transformers model, if it still exists."""
    path = getattr(hf_model.config, "_name_or_path", "")
    return read_tokenizer(path, local=True) if path and os.path.isdir(path) else None


def check_folder(folder: Path) -> None:
    """Raise a LoadError unless the folder holds a causal language model in safetensors."""
    if os.path.isfile(folder):
        raise LoadError(
            f"{folder} is a file: give the folder that holds it, with config.json and the weights as .safetensors"
        )
    if not os.path.isdir(folder):
        raise LoadError(f"there is no folder {folder}: check the path, or give a hub name such as 'gpt2'")
    if (folder / "adapter_config.json").exists():
        raise LoadError(
            f"{folder} holds a LoRA adapter, not a whole model: load it with peft, call merge_and_unload() "
            "and give the merged model"
        )
    config = read_config(folder)
    architectures = config.get("architectures") or []
    if not isinstance(architectures, list) or not all(isinstance(name, str) for name in architectures):
        raise LoadError(
            f'the architectures in the config.json of {folder} must be a list such as ["LlamaForCausalLM"], '
            f"got {architectures!r}"
        )
    if config.get("is_encoder_decoder"):
        raise LoadError(
            f"{folder} holds an encoder-decoder model ({', '.join(architectures) or config.get('model_type')}): "
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
    _check_weights(folder)


def read_config(folder: Path) -> dict[str, Any]:
    """The folder's config.json as a dictionary."""
    path = folder / "config.json"
    if not path.is_file():
        raise LoadError(
            f"{folder} has no config.json: give a folder written by save_pretrained() of a transformers model"
        )
    try:
        config = json.loads(path.read_text(encoding="utf8"))
    except (ValueError, RecursionError) as error:
        raise LoadError(f"{path} is not valid JSON ({error}): save the model again with save_pretrained()") from error
    if not isinstance(config, dict):
        raise LoadError(f"{path} is not a JSON object: save the model again with save_pretrained()")
    return config


def _check_weights(folder: Path) -> None:
    """Raise a LoadError unless all weight files of a folder are there, as safetensors."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        shards = _shards(index)
        outside = next((shard for shard in shards if not _is_inside(folder, shard)), None)
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
        return
    if (folder / "model.safetensors").is_file():
        return
    pickles = sorted(path.name for path in folder.iterdir() if path.suffix in PICKLE_SUFFIXES)
    if pickles:
        raise LoadError(
            f"{folder} holds its weights as a pickle ({pickles[0]}), which can run code when read and is refused: "
            f"if you trust it, convert it once with {CONVERSION.format(folder=folder)}"
        )
    raise LoadError(
        f"{folder} has no model.safetensors: save the model with save_pretrained(), or copy the weight file too"
    )


def _is_inside(folder: Path, shard: str) -> bool:
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


def _shards(index: Path) -> list[str]:
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


@contextlib.contextmanager
def _transformers_quiet() -> Iterator[None]:
    """Context manager that hides transformers' progress bars and loading report; problems are raised as errors."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    spreading = python_logging.getLogger("accelerate.big_modeling")
    before = spreading.level
    spreading.setLevel(python_logging.ERROR)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        spreading.setLevel(before)
        if bars:
            logging.enable_progress_bar()


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
    source: str | Path, *, dtype: torch.dtype | None, local: bool, offline: bool = False, **spread: Any
) -> Any:
    """A transformers model in evaluation mode on the CPU, from safetensors, without remote code.

    ``dtype`` None means that of the config, else of the file. Weights of that dtype stay memory-mapped from the file.
    ``spread`` holds device_map and max_memory, by which accelerate puts parts on other devices than the CPU.
    """
    from transformers import AutoModelForCausalLM

    try:
        with _transformers_quiet():
            model, report = AutoModelForCausalLM.from_pretrained(
                str(source),
                dtype="auto" if dtype is None else dtype,
                use_safetensors=True,
                trust_remote_code=False,
                local_files_only=local or offline,
                # peft, if installed, looks for an adapter first and ignores the line above
                adapter_kwargs={"local_files_only": local or offline},
                output_loading_info=True,
                **spread,
            )
    except OSError as error:
        raise _hub_error(source, error, local) from error
    except Exception as error:  # transformers, safetensors and the hub's client raise errors of many types
        if is_out_of_memory(error):
            raise
        if type(error).__name__ == "SafetensorError":
            raise LoadError(
                f"the weights of {source} are damaged ({error}): copy or download the model again"
            ) from error
        raise LoadError(f"transformers cannot load {source}: {_first_line(error)}") from error
    _check_report(source, report)
    return model.eval()


def _check_report(source: str | Path, report: Any) -> None:
    """Raise a LoadError if weights are missing, have another shape than the config says, or are unmerged LoRA ones."""
    unexpected = sorted(report.get("unexpected_keys") or [])
    if any("lora_" in key for key in unexpected):
        raise LoadError(
            f"{source} holds unmerged LoRA weights ({next(k for k in unexpected if 'lora_' in k)}): "
            "call merge_and_unload() on the peft model and save it again"
        )
    missing = sorted(report.get("missing_keys") or [])
    if missing:
        raise LoadError(
            f"{source} lacks {len(missing)} weights that its config declares, first {missing[0]}: "
            "the weights belong to another config; copy both from the same model"
        )
    mismatched = sorted(str(key) for key in report.get("mismatched_keys") or [])
    if mismatched:
        raise LoadError(f"{source} has weights of another shape than its config says, first {mismatched[0]}")


def _hub_error(source: str | Path, error: OSError, local: bool) -> LoadError:
    """The error for a failed download or an unreadable file, with advice."""
    text = str(error)
    if local:
        return LoadError(f"transformers cannot load {source}: {_first_line(error)}")
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


def read_tokenizer(source: str | Path, *, local: bool, offline: bool = False) -> Any:
    """The tokenizer in a model's folder or repository; None where a local folder has no tokenizer files."""
    from transformers import AutoTokenizer

    if local and not any((Path(source) / name).exists() for name in TOKENIZER_FILES):
        return None
    try:
        with _transformers_quiet():
            cached = local or offline
            return AutoTokenizer.from_pretrained(str(source), trust_remote_code=False, local_files_only=cached)
    except OSError as error:
        if not local:
            raise _hub_error(source, error, local) from error
        raise LoadError(f"the tokenizer in {source} cannot be read: {_first_line(error)}") from error
    except Exception as error:  # the tokenizers library raises bare Exception for a damaged file
        raise LoadError(f"the tokenizer in {source} cannot be read: {_first_line(error)}") from error


def _first_line(error: BaseException) -> str:
    """The first line of an error's message, preceded by the error's type if the message is not a sentence."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    start = f"{lines[0]} {lines[1]}" if len(lines) > 1 and lines[0].endswith(":") else "".join(lines[:1])
    kind = "" if start and isinstance(error, ValueError | OSError | RuntimeError) else f"{type(error).__name__} "
    return (kind + start).strip()[:300]


def check_tokenizer(tokenizer: Any, d_vocab: int, name: str) -> None:
    """Raise a LoadError if a tokenizer cannot belong to a vocabulary of ``d_vocab`` entries.

    Vocabularies are often padded to a round number, so a tokenizer may be smaller by 5% (or 256 entries).
    """
    size = 1 + max(tokenizer.get_vocab().values(), default=-1)
    if size > d_vocab or d_vocab - size > max(256, d_vocab // 20):
        raise LoadError(
            f"the tokenizer has {size} entries but {name} has a vocabulary of {d_vocab}: "
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
