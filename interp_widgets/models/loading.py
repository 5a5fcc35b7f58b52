"""`load_model` and `load_pair`: from a name, a folder or a loaded model to a checked `Model`."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from ..arguments import checked
from . import convert, folder
from .check import SelfCheck, SelfCheckError, check_ids, log_probabilities, self_check
from .folder import LoadError
from .mod.checkpoint import MixtureState, is_mixture_folder
from .mod.graft import graft, grafted, late_parts
from .mod.mixture import Mixture
from .mod.model import ModModel
from .model import Model
from .network import Backend
from .threads import few_threads
from .weights import first_bad_tensor

DEMO = Path(__file__).resolve().parents[1] / "assets" / "demo"
DEMO_NAMES = {"demo-base": "base", "demo-tuned": "tuned"}


def load_model(
    source: str | Path | Any,
    *,
    tokenizer: Any = None,
    device: str | torch.device | None = None,
    dtype: torch.dtype | str | None = None,
    backend: Literal["auto", "hooked", "bridge"] = "auto",
    processed: bool = False,
    base: str | Path | Any = None,
) -> Model:
    """Load a decoder-only language model and check that it computes what Hugging Face computes.

    Args:
        source: ``"demo-base"`` or ``"demo-tuned"`` (shipped), the path of a local Hugging Face folder, a hub name, a
            transformers model (it is copied and stays as it was), a HookedTransformer or TransformerBridge (used as
            it is, not copied), or a folder that `ModModel.save` wrote (gives a `ModModel`).
        tokenizer: the tokenizer of a transformers model or of a folder without one; else the one beside the model.
        device: ``"cuda"`` where there is one, else ``"cpu"``; a transformers model stays on its own device.
        dtype: ``torch.float32`` on every device unless asked otherwise, whatever type the file holds; a transformers
            model keeps its own type. A name such as ``"bfloat16"`` will do.
        backend: ``"hooked"`` (HookedTransformer), ``"bridge"`` (TransformerBridge), or ``"auto"``: HookedTransformer
            unless its conversion refuses the architecture or fails the self-check. `Model.backend` says which one runs,
            `SelfCheck.note` why. HookedTransformer keeps rotary contexts to 8,192 positions; the bridge has the whole.
        processed: fold norm scales into the weights and centre them (as TransformerLens does by default); changes
            activations, not predictions.
        base: only for a `ModModel`'s folder: its base model, where that is no longer at the place it was tuned from.

    Raises:
        LoadError: nothing to load there, and what to do about it (a ValueError).
        SelfCheckError: the loaded model disagrees with Hugging Face, in which part and by how much (a ValueError).

    Source: TransformerLens, "Loading models"; the check at load is this package's own.

    Example:
        >>> model = load_model("demo-base")
        >>> model.name, model.n_layers, model.d_model
        ('demo-base', 6, 192)
        >>> model.generate("The Eiffel Tower is located in the city of", max_new_tokens=1)
        ' Paris'
    """
    if not isinstance(backend, str) or backend not in ("auto", "hooked", "bridge"):
        raise ValueError(f"backend must be 'auto', 'hooked' or 'bridge', got {backend!r}")
    if isinstance(dtype, str):
        dtype = getattr(torch, dtype.removeprefix("torch."), dtype)
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise TypeError(f"dtype must be a floating-point torch.dtype such as torch.float32, got {dtype!r}")
    if is_mixture_folder(source):
        from .mod.opening import open_mixture

        return open_mixture(Path(source), base, tokenizer, device, dtype, backend, processed)
    if base is not None:
        raise ValueError(f"base= belongs to the folder of a mixture of depths, and {source} is none: leave it out")
    if convert.is_hooked(source) or convert.is_bridge(source):
        return _adopt(source, tokenizer, device, dtype, backend, processed)
    if not isinstance(source, str | Path):
        check_transformers_model(source)
        device = source.device if device is None else device
        dtype = source.dtype if dtype is None else dtype
    place = device_of(device)
    kind = torch.float32 if dtype is None else dtype
    import transformer_lens  # noqa: F401  (3 to 5 s on first use, so here and not at import of the package)

    if isinstance(source, str | Path):
        hf_model, name, tokenizer = read_source(source, tokenizer, kind)
    else:
        hf_model, name = source, _name_of(source)
        tokenizer = tokenizer if tokenizer is not None else tokenizer_beside(source)
    with few_threads(hf_model.num_parameters()):
        return build(
            hf_model,
            owned=isinstance(source, str | Path),
            name=name,
            source=address(source) if isinstance(source, str | Path) else None,
            tokenizer=tokenizer,
            device=place,
            dtype=kind,
            backend=backend,
            processed=processed,
        )


def device_of(device: str | torch.device | None) -> torch.device:
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"device must be 'cpu', 'cuda' or 'cuda:N', got {device!r}") from error
    if found.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device {device!r} was asked for, but torch sees no CUDA device: use device='cpu'")
    return found


def read_source(source: str | Path, tokenizer: Any, dtype: torch.dtype) -> tuple[Any, str, Any]:
    """The transformers model, a name for it and its tokenizer, from a demo name, folder or hub name."""
    text = str(source)
    demo = DEMO_NAMES.get(text)
    path = DEMO / demo if demo else Path(text).expanduser()
    if demo and not path.is_dir():
        raise LoadError(
            f"the shipped model {text} is not there ({path}): install the package again, or run `make demo`"
        )
    local = bool(demo) or path.exists() or isinstance(source, Path) or _looks_like_path(text)
    where: str | Path = path if local else text
    if local:
        folder.check_folder(path)
    offline = not local and not folder.hub_reachable()  # then what was downloaded before may still be in the cache
    hf_model = folder.read_model(where, dtype=dtype, local=local, offline=offline)
    own = folder.read_tokenizer(where, local=local, offline=offline)
    if tokenizer is not None and own is not None:
        folder.check_same_tokenizer(tokenizer, own, text)
    return hf_model, text if demo or not local else path.resolve().name, tokenizer if tokenizer is not None else own


def address(source: str | Path) -> str:
    """What loads a model again from anywhere: its name, or the whole path of its folder."""
    path = Path(source).expanduser()
    return str(path.resolve()) if str(source) not in DEMO_NAMES and path.exists() else str(source)


def _looks_like_path(text: str) -> bool:
    return text.startswith((".", "/", "~")) or "\\" in text or text.count("/") > 1 or not text


def check_transformers_model(source: Any) -> None:
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
    lora = next((name for name, _ in hf_model.named_parameters() if "lora_" in name), None)
    if lora is not None:
        raise LoadError(
            f"the model has unmerged LoRA weights ({lora}), which a conversion would drop: "
            "call merge_and_unload() on the peft model first"
        )


def _check_weights(module: Any, name: str) -> None:
    bad = first_bad_tensor(module)
    if bad is not None:
        raise LoadError(f"the weights of {name} hold NaN or infinity, first in {bad}: load an intact checkpoint")


def _name_of(hf_model: Any) -> str:
    path = getattr(hf_model.config, "_name_or_path", "") or getattr(hf_model, "name_or_path", "")
    return _short_name(path) if path else type(hf_model).__name__


def _short_name(name: str) -> str:
    """The last part of a folder's path; a hub name as it is."""
    return Path(name).name if Path(name).exists() else name


def tokenizer_beside(hf_model: Any) -> Any:
    """The tokenizer in the local folder that a transformers model came from, if it is still there."""
    path = getattr(hf_model.config, "_name_or_path", "")
    return folder.read_tokenizer(path, local=True) if path and Path(path).is_dir() else None


def build(
    hf_model: Any,
    *,
    owned: bool,
    name: str,
    source: str | None,
    tokenizer: Any,
    device: torch.device,
    dtype: torch.dtype,
    backend: Literal["auto", "hooked", "bridge"],
    processed: bool,
    mixture: tuple[MixtureState, Mixture] | None = None,
) -> Model:
    """Convert and check; ``owned`` says that nobody else holds the transformers model, so that it may be used up."""
    check_lora(hf_model)
    _check_weights(hf_model, name)
    if tokenizer is not None:
        folder.check_tokenizer(tokenizer, hf_model.config.get_text_config().vocab_size, name)
    if not owned:  # training mode, type and device of the user's model stay as they are
        hf_model = copy.deepcopy(hf_model)
    hf_model = hf_model.to(device=device, dtype=dtype).eval()
    parameters = hf_model.num_parameters()  # before the conversion, which unties and splits weights
    text_config = hf_model.config.get_text_config()
    longest = getattr(text_config, "max_position_embeddings", None) or check_ids(2, 1 << 30).shape[1]
    prompts = check_ids(text_config.vocab_size, longest)
    routes = None if mixture is None else mixture[1].to(device=device, dtype=dtype)
    references = [log_probabilities(hf_model, prompts.to(device))]
    if routes is not None:
        with grafted(late_parts(hf_model), routes):
            references.append(log_probabilities(hf_model, prompts.to(device)))
    if not all(bool(torch.isfinite(reference).all()) for reference in references):
        raise LoadError(f"{name} computes NaN or infinity in {dtype}: try dtype=torch.float32, or look at its weights")
    tl_model, chosen, check = _convert(hf_model, prompts, references, device, dtype, backend, processed, routes)
    policy = _puts_bos(tokenizer)
    tokenizer = _attach_tokenizer(tl_model, tokenizer, policy)
    make = Model if mixture is None else partial(ModModel, state=mixture[0])
    return make(
        tl_model,
        name=name,
        source=source,
        backend=chosen,
        self_check=check,
        tokenizer=tokenizer,
        processed=processed,
        prepend_bos=policy,
        stop_ids=_stop_ids(hf_model),
        parameters=parameters,
    )


def _convert(
    hf_model: Any,
    prompts: Tensor,
    references: Sequence[Tensor],
    device: torch.device,
    dtype: torch.dtype,
    backend: Literal["auto", "hooked", "bridge"],
    processed: bool,
    mixture: Mixture | None = None,
) -> tuple[Any, Backend, SelfCheck]:
    note = ""
    if backend == "hooked" and not convert.has_hooked_transformer():
        raise LoadError(
            "this TransformerLens has no HookedTransformer: use backend='bridge', or install transformer-lens<4"
        )
    if backend == "hooked" or (backend == "auto" and convert.has_hooked_transformer()):
        try:
            tl_model = convert.to_hooked(hf_model, processed=processed, device=device, dtype=dtype)
            check = _checked(tl_model, "hooked", prompts, references, copy.deepcopy(mixture))
            if check.passed:
                return tl_model, "hooked", check
            fault = check.faults[0]
        # TransformerLens refuses an architecture with many kinds of error; an out-of-memory must not look like one
        except (NotImplementedError, ValueError, KeyError, AttributeError, AssertionError, TypeError) as error:
            fault = f"TransformerLens cannot convert it: {str(error).splitlines()[0] if str(error) else type(error)}"
        if backend == "hooked":
            raise SelfCheckError(
                f"{type(hf_model).__name__} as HookedTransformer failed: {fault}; use backend='bridge' or 'auto'"
            )
        note = f"bridge, because as HookedTransformer {fault}"
    tl_model = convert.to_bridge(hf_model, processed=processed, device=device, dtype=dtype)
    check = _checked(tl_model, "bridge", prompts, references, mixture, note)
    if not check.passed:
        raise SelfCheckError(
            f"{type(hf_model).__name__} as TransformerBridge failed the self-check: {'; '.join(check.faults)}"
            + (f" ({note})" if note else "")
        )
    return tl_model, "bridge", check


def _checked(
    tl_model: Any,
    backend: Backend,
    prompts: Tensor,
    references: Sequence[Tensor],
    mixture: Mixture | None,
    note: str = "",
) -> SelfCheck:
    """Check the converted model against the first reference, and with a mixture in it, which stays, against the second.

    In half precision the router turns the rounding of its stream into other weights: up to 0.9 nats were seen where the
    same model without the mixture differs by 0.2.
    """
    check = self_check(tl_model, backend, references[0], ids=prompts, note=note)
    if mixture is None or not check.passed:
        return check
    graft(tl_model, mixture)
    coarse = mixture.router.dtype in (torch.float16, torch.bfloat16)
    return self_check(tl_model, backend, references[1], ids=prompts, note=note, slack=4.0 if coarse else 1.0)


def _puts_bos(tokenizer: Any) -> bool:
    """Whether a tokenizer itself puts its BOS in front of text."""
    if tokenizer is None or tokenizer.bos_token_id is None:
        return False
    plain, full = (tokenizer("a", add_special_tokens=flag)["input_ids"] for flag in (False, True))
    return len(full) > len(plain) and full[0] == tokenizer.bos_token_id


def _attach_tokenizer(tl_model: Any, tokenizer: Any, prepend_bos: bool) -> Any:
    """Give the TransformerLens model the tokenizer too, as it is: its own set-up may reload it or add tokens."""
    if tokenizer is None:
        return None
    own = copy.copy(tokenizer)
    own.padding_side = "right"  # on the left, TransformerLens takes leading padding-like tokens out of the attention
    tl_model.cfg.default_prepend_bos = prepend_bos
    tl_model.cfg.tokenizer_prepends_bos = prepend_bos
    tl_model.tokenizer = own
    return own


def _stop_ids(hf_model: Any) -> list[int]:
    found: list[int] = []
    for config in (hf_model.config.get_text_config(), getattr(hf_model, "generation_config", None)):
        value = getattr(config, "eos_token_id", None)
        found += [value] if isinstance(value, int) else list(value or [])
    return found


def _adopt(
    tl_model: Any,
    tokenizer: Any,
    device: str | torch.device | None,
    dtype: torch.dtype | None,
    backend: str,
    processed: bool,
) -> Model:
    """Wrap a TransformerLens model that the user already has, without copying or moving it."""
    actual: Backend = "hooked" if convert.is_hooked(tl_model) else "bridge"
    convert.silence_bridge()
    parameter = next(tl_model.parameters())
    if backend not in ("auto", actual):
        raise ValueError(f"this model is a {type(tl_model).__name__}, used as it is: leave backend={backend!r} out")
    if device is not None and torch.device(device).type != parameter.device.type:
        raise ValueError(
            f"this model is on {parameter.device} and used as it is: move it with .to({str(device)!r}) first"
        )
    if dtype is not None and dtype != parameter.dtype:
        raise ValueError(f"this model is in {parameter.dtype} and used as it is: convert it with .to({dtype}) first")
    name = _short_name(str(getattr(tl_model.cfg, "model_name", "") or type(tl_model).__name__))
    check_lora(tl_model)
    _check_weights(tl_model, name)
    tokenizer = tokenizer if tokenizer is not None else tl_model.tokenizer
    if tokenizer is not None:
        folder.check_tokenizer(tokenizer, tl_model.cfg.d_vocab, name)
    if actual == "bridge" and tl_model.training:  # a HookedTransformer has no dropout, and begins in training mode
        raise ValueError("this model is in training mode, where dropout changes every pass: call .eval() on it first")
    is_folded = str(tl_model.cfg.normalization_type).endswith("Pre") or getattr(tl_model, "_weights_processed", False)
    if processed and not is_folded:
        raise ValueError("this model's weights are not processed and it is used as it is: leave processed out")
    check = self_check(tl_model, actual, None)
    if not check.passed:
        raise SelfCheckError(f"{name} failed the self-check: {'; '.join(check.faults)}")
    return Model(
        tl_model,
        name=name,
        backend=actual,
        self_check=check,
        tokenizer=tokenizer,
        processed=bool(is_folded),
        prepend_bos=bool(getattr(tl_model.cfg, "default_prepend_bos", True)),
        stop_ids=_stop_ids(tl_model.original_model) if actual == "bridge" else (),
    )


@checked
@dataclass(frozen=True)
class ModelPair:
    """Two models over one vocabulary, such as a language model before and after instruction tuning.

    Example:
        >>> pair.base.name, pair.tuned.name
        ('demo-base', 'demo-tuned')
        >>> prompt = "Instruction: Name the capital of France.\\nResponse:"
        >>> pair.base.generate(prompt, max_new_tokens=3), pair.tuned.generate(prompt, max_new_tokens=3)
        (' Helsinki\\nVietnam', ' Paris')
    """

    base: Model
    """The model before."""
    tuned: Model
    """The model after."""

    def __post_init__(self) -> None:
        start = "the two models must share one vocabulary"
        tokenizers = self.base.tokenizer, self.tuned.tokenizer
        different = None if None in tokenizers else folder.first_difference(*tokenizers)
        if different is not None:
            index, *tokens = different
            one, other = ("nothing" if token is None else repr(token) for token in tokens)
            raise ValueError(f"{start}: id {index} is {one} in {self.base.name} and {other} in {self.tuned.name}")
        if self.base.d_vocab != self.tuned.d_vocab:
            raise ValueError(
                f"{start}: {self.base.name} has {self.base.d_vocab} entries, {self.tuned.name} has {self.tuned.d_vocab}"
            )

    def __iter__(self) -> Iterator[Model]:
        return iter((self.base, self.tuned))


def load_pair(base: str | Path | Any, tuned: str | Path | Any, **options: Any) -> ModelPair:
    """Load two models of one vocabulary with the same options; see `load_model`.

    Args:
        base: the model before, as for `load_model`.
        tuned: the model after.
        options: of `load_model`, for both.

    Raises:
        ValueError: what `load_model` refuses, or two different vocabularies.

    Example:
        >>> pair = load_pair("demo-base", "demo-tuned")
        >>> pair.base.d_vocab == pair.tuned.d_vocab, pair.base.weight_hash == pair.tuned.weight_hash
        (True, False)
    """
    return ModelPair(load_model(base, **options), load_model(tuned, **options))


def load_demo_pair(**options: Any) -> ModelPair:
    """The two shipped models: ``demo-base`` and, instruction-tuned from it, ``demo-tuned``; options as `load_model`.

    Example:
        >>> pair = load_demo_pair()
        >>> [(each.name, each.n_layers, each.d_model) for each in pair]
        [('demo-base', 6, 192), ('demo-tuned', 6, 192)]
        >>> pair.tuned.generate("Instruction: Name the capital of France.\\nResponse:", max_new_tokens=3)
        ' Paris'
    """
    return load_pair("demo-base", "demo-tuned", **options)
