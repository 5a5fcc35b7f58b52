"""Builds a checked `Model` from a transformers model, and chooses its backend."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

import torch

from . import convert, transformerlens
from .errors import LoadError
from .hub_files import Source
from .library_messages import quiet
from .loading_note import loading_step
from .memory import is_out_of_memory, load_must_fit
from .model import Model
from .network import Backend
from .self_check import (
    Reference,
    SelfCheck,
    SelfCheckError,
    agrees,
    check_long_context,
    first_line,
    long_context_faults,
    prompts_for,
    reference_of,
    self_check,
)
from .threads import few_threads
from .weights import first_bad_tensor

BackendChoice = Literal["auto", "hooked", "bridge"]


class Addition(Protocol):
    """An extension that is put into a converted model before use, such as a mixture of depths."""

    slack: float
    """Factor on the tolerance of log-probabilities, for an addition that amplifies rounding."""

    def within(self, hf_model: Any) -> AbstractContextManager[None]:
        """Context manager in which the transformers model computes what the converted model must compute with the
        addition."""

    def put_into(self, tl_model: Any) -> None:
        """Change a TransformerLens model permanently."""

    def make_model(self, tl_model: Any, **options: Any) -> Model:
        """The `Model` of a changed TransformerLens model; options as in `Model`."""


def build(
    source: Source,
    *,
    device: torch.device,
    dtype: torch.dtype,
    backend: BackendChoice,
    processed: bool,
    addition: Addition | None = None,
) -> Model:
    """Convert a transformers model, apply the addition, and check both steps."""
    loading_step("comparing it with transformers")
    with quiet(source.name):
        transformerlens.load()  # 3 to 5 s on first use, so here and not at import of the package

    hf_model, name, tokenizer = source.hf_model, source.name, source.tokenizer
    parameters = hf_model.num_parameters()  # before the conversion, which unties and splits weights
    with few_threads(parameters), load_must_fit(name, device, hf_model, dtype):
        check_weights(hf_model, name)
        if not source.owned:  # training mode, type and device of the user's model stay as they are
            hf_model = convert.sharing_copy(hf_model)
        with _run_by_transformers(name, type(hf_model).__name__, device, dtype):
            hf_model = convert.prepare(hf_model, device=device, dtype=dtype)
            prompts = prompts_for(hf_model)
            references = [reference_of(hf_model, prompts)]
            if addition is not None:
                with addition.within(hf_model):
                    references.append(reference_of(hf_model, prompts))
        if not all(bool(torch.isfinite(reference.log_probabilities).all()) for reference in references):
            other = "" if dtype in (torch.float32, torch.float64) else "try dtype=torch.float32, or "
            raise LoadError(f"{name} computes NaN or infinity in {dtype}: {other}look at its configuration and weights")
        tl_model, chosen, check = _Conversion(hf_model, references, device, dtype, processed, addition).run(backend)
        policy = _puts_bos(tokenizer)
        tokenizer = _attach_tokenizer(tl_model, tokenizer, policy)
        make: Callable[..., Model] = Model if addition is None else addition.make_model
        model = make(
            tl_model,
            name=name,
            source=source.address,
            backend=chosen,
            self_check=check,
            tokenizer=tokenizer,
            processed=processed,
            prepend_bos=policy,
            stop_ids=stop_ids(hf_model),
            parameters=parameters,
            allow_mismatch=source.allow_mismatch,
            shares_weights=not source.owned and convert.share_weights(tl_model, source.hf_model),
        )
        _ = model.capabilities  # found while the weights are those that were checked, and nothing else runs
        return model


@dataclass(frozen=True)
class _Conversion:
    """Converts a transformers model to the first backend that computes the same."""

    hf_model: Any
    references: Sequence[Reference]
    """Reference outputs of transformers, without and then with the addition."""
    device: torch.device
    dtype: torch.dtype
    processed: bool
    addition: Addition | None

    def run(self, choice: BackendChoice) -> tuple[Any, Backend, SelfCheck]:
        """The converted model, its backend and its check."""
        kind, note = type(self.hf_model).__name__, ""
        if choice == "hooked" and not transformerlens.has_hooked_transformer():
            raise LoadError(
                "this TransformerLens has no HookedTransformer: use backend='bridge', or install transformer-lens<4"
            )
        if choice != "bridge" and transformerlens.has_hooked_transformer():
            tl_model, check, fault = self._attempt("hooked", note)
            if check is not None and not fault:
                return tl_model, "hooked", check
            if choice == "hooked":
                raise SelfCheckError(f"{kind} as HookedTransformer failed: {fault}; use backend='bridge' or 'auto'")
            note = f"bridge, because as HookedTransformer {fault}"
        tl_model, check, fault = self._attempt("bridge", note)
        if check is not None and not fault:
            return tl_model, "bridge", check
        because = f" ({note})" if note else ""
        if check is None:
            raise LoadError(f"{kind} as TransformerBridge failed: {fault}{because}")
        raise SelfCheckError(f"{kind} as TransformerBridge failed the self-check: {fault}{because}")

    def _attempt(self, backend: Backend, note: str) -> tuple[Any, SelfCheck | None, str]:
        """The converted model and its check (None if it cannot be converted), and the fault, or "" for none.

        Only a bridge, which runs transformers' own modules, may remain unchecked past the lengths that its
        configuration declares.
        """
        # TransformerLens refuses an architecture with many kinds of error; an out-of-memory must not look like one
        try:
            past = check_long_context(self.hf_model, self.references[0].ids.shape[1], backend, self.processed)
            if isinstance(past, str) and backend == "hooked":
                return None, None, f"could not be compared past the lengths that its configuration declares: {past}"
            if isinstance(past, SelfCheck) and not past.passed and backend == "hooked":  # before the slow conversion
                return None, None, long_context_faults(past)[0]
            to_backend = convert.to_hooked if backend == "hooked" else convert.to_bridge
            tl_model = to_backend(self.hf_model, processed=self.processed, device=self.device, dtype=self.dtype)
            # with the addition everything is checked; the model's own check reports what is wrong without it
            if self.addition is not None and agrees(tl_model, self.references[0]):
                self.addition.put_into(tl_model)
                check = self_check(tl_model, backend, self.references[1], note=note, slack=self.addition.slack)
            else:
                check = self_check(tl_model, backend, self.references[0], note=note)
        except LoadError as error:
            return None, None, str(error)
        except ImportError as error:
            return None, None, f"it needs a package that is not installed: {first_line(error)}"
        except Exception as error:
            if is_out_of_memory(error):
                raise
            return None, None, "TransformerLens does not support this architecture or configuration"
        if isinstance(past, SelfCheck):
            check = replace(check, past=past)
        elif past is not None:
            check = replace(check, past_fault=past)
        # a model with a fault is let go before the next one is made
        return tl_model if check.passed else None, check, "; ".join(check.faults)


@contextlib.contextmanager
def _run_by_transformers(name: str, kind: str, device: torch.device, dtype: torch.dtype) -> Iterator[None]:
    """Turn errors into a LoadError: transformers cannot run the model at all in this dtype or on this device."""
    try:
        yield
    except Exception as error:  # kernels and packages that are missing, sizes that do not fit together
        if is_out_of_memory(error):
            raise
        other = "dtype=torch.float32" if dtype != torch.float32 else "device='cpu'" if device.type != "cpu" else ""
        raise LoadError(
            f"transformers itself cannot run {name} ({kind}) in {dtype} on {device}: {first_line(error)}; "
            f"{f'try {other}, or ' if other else ''}look at its configuration and at the packages that it needs"
        ) from error


def _puts_bos(tokenizer: Any) -> bool:
    """Whether a tokenizer itself puts its BOS in front of text."""
    if tokenizer is None or tokenizer.bos_token_id is None:
        return False
    plain, full = (tokenizer("a", add_special_tokens=flag)["input_ids"] for flag in (False, True))
    return len(full) > len(plain) and full[0] == tokenizer.bos_token_id


def _attach_tokenizer(tl_model: Any, tokenizer: Any, prepend_bos: bool) -> Any:
    """Attach the tokenizer unchanged; TransformerLens's own set-up may reload it or add tokens."""
    if tokenizer is None:
        return None
    own = copy.copy(tokenizer)
    own.padding_side = "right"  # on the left, TransformerLens takes leading padding-like tokens out of the attention
    tl_model.cfg.default_prepend_bos = prepend_bos
    tl_model.cfg.tokenizer_prepends_bos = prepend_bos
    tl_model.tokenizer = own
    return own


def stop_ids(hf_model: Any) -> list[int]:
    """The end-of-text tokens that a transformers model declares."""
    ids: list[int] = []
    for config in (hf_model.config.get_text_config(), getattr(hf_model, "generation_config", None)):
        value = getattr(config, "eos_token_id", None)
        several = value if isinstance(value, list | tuple) else [] if value is None else [value]
        odd = next((each for each in several if not isinstance(each, int) or isinstance(each, bool)), None)
        if odd is not None:
            raise LoadError(f"eos_token_id of {type(hf_model).__name__} must be an int or a list of int, got {odd!r}")
        ids += several
    return ids


def check_weights(module: Any, name: str) -> None:
    """Raise a LoadError where a weight is NaN or infinite."""
    bad = first_bad_tensor(module)
    if bad is not None:
        raise LoadError(f"the weights of {name} hold NaN or infinity, first in {bad}: load an intact checkpoint")
