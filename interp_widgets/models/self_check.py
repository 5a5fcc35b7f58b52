"""The check that every model must pass when it is loaded, with one part for each way a model is used.

A pass from token ids and a pass from token embeddings are compared with transformers, and generation with a key/value
cache is compared with the model's own full pass. A gradient is compared with finite differences, and an edit at a hook
must change the output where it should and nowhere else. If the configuration declares a length past which a model
computes differently, and the model is too large to run that far, a small random model of the same configuration
(`small_copy`) is converted and checked in the same way.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from . import convert, small_copy
from .devices import accumulation_dtype
from .engine.modules import cached_steps
from .hooks import embedding_hook, run_hooked
from .memory import is_out_of_memory
from .network import Backend, Network
from .threads import few_threads
from .weights import token_embeddings

N_PROMPTS = 3
LENGTH = 48
GRADIENT_LENGTH = 16
PAST = "past the lengths that its configuration declares"
MAX_WORK = 3e8
"""Parameters times tokens up to which the model itself runs past its boundaries: tenths of a second on a CPU."""
MAX_LENGTH = 512
"""Tokens up to which it does so, at any size: the cost of attention grows with their square."""

# Largest difference of log-probabilities from Hugging Face. Correct conversions of float models differ by 1e-6 to 1e-4
# (order of summation, rotary tables in float32), wrong ones by more than 1. In half precision the logits are rounded.
LOGIT_TOLERANCE = {torch.float64: 1e-3, torch.float32: 2e-3, torch.float16: 0.1, torch.bfloat16: 0.5}
GRADIENT_TOLERANCE = {torch.float64: 1e-3, torch.float32: 1e-2}
_UNSUPPORTED = (RuntimeError, AttributeError, TypeError, ValueError, LookupError, AssertionError)
"""What an architecture may raise for a way of running it that it does not support."""
STEPS = {
    torch.float64: ((1e-4,), (1e-3, 1e-5)),
    torch.float32: ((1e-3, 3e-4), (1e-2, 3e-3, 1e-4, 3e-5, 1e-5)),
}
"""Steps of the finite differences, in sizes of the embeddings: those that nearly always do, and the rest."""


class SelfCheckError(ValueError):
    """Raised if a loaded model does not compute what it should; the message says which part and by how much."""


@dataclass(frozen=True)
class SelfCheck:
    """Results of the check at load; `summary` is the line that widgets show."""

    logits: float | None
    """Largest difference of log-probabilities from Hugging Face on three prompts, in nats; None if not compared."""
    logits_tolerance: float
    """Largest difference allowed."""
    gradient: float | None
    """Relative difference of a gradient from `gradient_of`; None in half precision, which is too coarse."""
    gradient_tolerance: float | None
    """Largest relative difference allowed."""
    edit_effect: float
    """Change of a log-probability by an edit that must change it, in nats; must be above 0."""
    edit_leak: float
    """Largest change where an edit must change nothing, in nats: earlier positions, and the other row of the batch."""
    leak_tolerance: float
    """Largest leak allowed (rounding of batched sums)."""
    note: str = ""
    """Why this backend is used, if another was rejected."""
    embeddings: float | None = None
    """Largest difference between a pass from the rows of Hugging Face's embedding table and one from their ids, in
    nats; None if not compared."""
    embedding_fault: str = ""
    """Why a pass from these rows is not possible, as a sentence; empty if it is."""
    cached_steps: float | None = None
    """Largest difference of passes with a key/value cache from one pass over the whole prompt, in nats; None: see
    ``cache_fault``, or not compared."""
    cache_fault: str = ""
    """Why keys and values cannot be reused, as a clause; generation then runs the whole sequence for every token."""
    gradient_of: str = "finite differences"
    """What the gradient is compared with: finite differences, or Hugging Face."""
    length: int = 0
    """Tokens per prompt of the check."""
    past: SelfCheck | None = None
    """The check of the small copy, past every length that the configuration declares; None if this check reaches past
    all of them, or if ``past_fault`` says why there is none."""
    past_fault: str = ""
    """Why lengths past the declared ones were not compared, as a clause."""

    @property
    def caches(self) -> bool:
        """Whether keys and values of earlier positions can be reused, at every length."""
        own = self.cached_steps is not None and self.cached_steps <= self.logits_tolerance
        return own and (self.past is None or self.past.caches)

    @property
    def faults(self) -> tuple[str, ...]:
        """One sentence per failed part; empty when all passed."""
        faults = []
        # `not (a <= b)` instead of `a > b`: a NaN must count as a fault
        if self.logits is not None and not self.logits <= self.logits_tolerance:
            faults.append(
                f"log-probabilities differ from Hugging Face by {self.logits:.3g} nats "
                f"(allowed {self.logits_tolerance:.0e})"
            )
        if self.embedding_fault:
            faults.append(self.embedding_fault)
        elif self.embeddings is not None and not self.embeddings <= self.logits_tolerance:
            faults.append(
                f"a pass from its token embeddings differs from the pass from their ids by {self.embeddings:.3g} nats "
                f"(allowed {self.logits_tolerance:.0e})"
            )
        slack = self.gradient_tolerance
        if self.gradient is not None and slack is not None and not self.gradient <= slack:
            faults.append(
                f"the gradient differs from {self.gradient_of} by {self.gradient:.3g} relative (allowed {slack:.0e})"
            )
        if not self.edit_effect > 0:
            faults.append(f"an edit of a hook that must change the output changed it by {self.edit_effect:.3g}")
        if not self.edit_leak <= self.leak_tolerance:
            faults.append(
                f"an edit changed the output where it must not, by {self.edit_leak:.3g} nats "
                f"(allowed {self.leak_tolerance:.0e})"
            )
        return (*faults, *(() if self.past is None else long_context_faults(self.past)))

    @property
    def passed(self) -> bool:
        """Whether every part is within its tolerance."""
        return not self.faults

    def summary(self) -> str:
        """One line that says what was compared and the largest differences."""
        if not self.passed:
            return f"self-check failed: {'; '.join(self.faults)}"
        logits = "Hugging Face not compared" if self.logits is None else f"Hugging Face ±{self.logits:.0e} nats"
        gradient = (
            "gradient not compared (half precision)" if self.gradient is None else f"gradient ±{self.gradient:.0e}"
        )
        line = f"self-check passed: {logits}, {gradient}, hook edits act where they should"
        if not self.caches:
            line += f", generation without a key/value cache ({self._cache_reason()})"
        if self.past_fault:
            line += f", not compared past {self.length} tokens ({self.past_fault})"
        return f"{line}; {self.note}" if self.note else line

    def _cache_reason(self) -> str:
        if self.cache_fault:
            return self.cache_fault
        if self.cached_steps is None:
            return "not compared"
        if self.past is None or not self.cached_steps <= self.logits_tolerance:
            return f"its steps are {self.cached_steps:.3g} nats off"
        return f"{PAST} {self.past._cache_reason()}"


def long_context_faults(copy_check: SelfCheck) -> tuple[str, ...]:
    """The faults in the check of a small copy, worded for the model that it stands for."""
    where = f"{PAST} (seen on {copy_check.length} tokens of a small random copy)"
    return tuple(f"{where} {fault}" for fault in copy_check.faults)


@dataclass(frozen=True)
class Reference:
    """What transformers computes on the prompts of the check."""

    ids: Tensor
    """(batch, positions) token ids."""
    log_probabilities: Tensor
    """(batch, positions, d_vocab) on the CPU, in nats."""
    embeddings: Tensor
    """(positions, width) rows of ``get_input_embeddings()`` for the first prompt, on the model's device."""
    gradient: Tensor | None = None
    """(positions, width) gradient of the first prompt's `_objective` with respect to these rows."""


def check_ids(d_vocab: int, n_ctx: int, length: int = LENGTH) -> Tensor:
    """The fixed prompts of the check: (3, up to 48) token ids, the same for every model with this vocabulary size."""
    generator = torch.Generator().manual_seed(20240607)
    return torch.randint(0, d_vocab, (N_PROMPTS, min(length, n_ctx)), generator=generator)


def prompts_for(hf_model: Any) -> Tensor:
    """The prompts of the check of a transformers model: past every declared length if that is cheap, else 48 tokens."""
    config = hf_model.config.get_text_config()
    limit, past = small_copy.position_limit(config), small_copy.length_past_bounds(config)
    affordable = past <= MAX_LENGTH and past * hf_model.num_parameters() <= MAX_WORK
    length = max(LENGTH, past) if affordable else LENGTH
    return check_ids(config.vocab_size, length if limit is None else limit, length)


def reference_of(hf_model: Any, ids: Tensor, *, gradient: bool = False) -> Reference:
    """What a transformers model computes on the prompts, with the gradient if requested."""
    ids = ids.to(hf_model.device)
    with torch.no_grad():
        rows = hf_model.get_input_embeddings()(ids[0]).clone()
    reference = Reference(ids, log_probabilities(hf_model, ids), rows)
    if not gradient:
        return reference
    with torch.enable_grad():
        leaf = rows.requires_grad_(True)
        (grad,) = torch.autograd.grad(_objective(hf_model(inputs_embeds=leaf[None]).logits, ids), leaf)
    return replace(reference, embeddings=rows.detach(), gradient=grad)


@torch.no_grad()
def log_probabilities(model: Callable[[Tensor], Any], ids: Tensor) -> Tensor:
    """(batch, positions, d_vocab) natural log-probabilities on the CPU, in float32 or wider."""
    output = model(ids)
    logits = output if isinstance(output, Tensor) else output.logits
    wide = logits.double() if logits.dtype == torch.float64 else logits.float()
    return wide.log_softmax(-1).cpu()


def agrees(tl_model: Any, reference: Reference) -> bool:
    """Whether a model's log-probabilities are within the tolerance of those of transformers."""
    difference = (log_probabilities(tl_model, reference.ids) - reference.log_probabilities).abs().max()
    return bool(difference <= LOGIT_TOLERANCE.get(next(tl_model.parameters()).dtype, 0.5))  # False for NaN


def self_check(
    tl_model: Any, backend: Backend, reference: Reference | None, *, note: str = "", slack: float = 1.0
) -> SelfCheck:
    """Run the check on a TransformerLens model; the caller decides what to do about faults.

    Args:
        tl_model: the model as it will be used.
        backend: ``"hooked"`` or ``"bridge"``.
        reference: what transformers computes, or None if there is no such model.
        note: stored in the result.
        slack: factor of the tolerance of log-probabilities.
    """
    cfg = tl_model.cfg
    parameter = next(tl_model.parameters())
    dtype, device = parameter.dtype, parameter.device
    ids = (check_ids(cfg.d_vocab, cfg.n_ctx) if reference is None else reference.ids).to(device)
    own = log_probabilities(tl_model, ids)
    effect, leak = _check_edit(tl_model, backend, ids)
    embeddings, embedding_fault = _check_embeddings(tl_model, backend, ids[:1], own[:1], reference)
    steps, cache_fault = _check_cached_steps(tl_model, backend, ids[:1], own[:1])
    return SelfCheck(
        logits=None if reference is None else float((own - reference.log_probabilities).abs().max()),
        logits_tolerance=slack * LOGIT_TOLERANCE.get(dtype, 0.5),
        gradient=_gradient_difference(tl_model, backend, ids, reference) if dtype in STEPS else None,
        gradient_tolerance=GRADIENT_TOLERANCE.get(dtype),
        gradient_of="finite differences" if reference is None or reference.gradient is None else "Hugging Face",
        edit_effect=effect,
        edit_leak=leak,
        # in half precision the rows of a batch may differ by one unit in the last place of a logit
        leak_tolerance=1e-3 if dtype in STEPS else 0.5,
        note=note,
        embeddings=embeddings,
        embedding_fault=embedding_fault,
        cached_steps=steps,
        cache_fault=cache_fault,
        length=ids.shape[1],
    )


def _check_embeddings(
    tl_model: Any, backend: Backend, ids: Tensor, own: Tensor, reference: Reference | None
) -> tuple[float | None, str]:
    """Largest difference of a pass from token embeddings from one from ids, in nats, or why there is no such pass."""
    rows = token_embeddings(tl_model, ids)[0] if reference is None else reference.embeddings
    width, d_model = rows.shape[-1], tl_model.cfg.d_model
    if width != d_model:
        return None, f"its token embeddings have {width} numbers and its residual stream {d_model}"

    def run(tokens: Tensor) -> Tensor:
        return run_hooked(tl_model, tokens, backend=backend, embeddings=rows[None]).logits

    worst = float((log_probabilities(run, ids) - own).abs().max())
    if worst <= LOGIT_TOLERANCE.get(rows.dtype, 0.5) and not _hooks_rows(tl_model, backend, ids):
        return worst, "its hook of token embeddings holds other numbers than the rows of its embedding table"
    return (worst, "") if backend == "hooked" else _check_embeddings_without_ids(tl_model, ids, rows, worst)


def _check_embeddings_without_ids(tl_model: Any, ids: Tensor, rows: Tensor, worst: float) -> tuple[float | None, str]:
    """Compare a pass from embeddings of no token (one row is zero) through a bridge; ``worst``: the largest so far."""
    rows = rows[:GRADIENT_LENGTH].clone()
    rows[0] = 0
    ids = ids[:, : len(rows)]
    without = log_probabilities(
        lambda tokens: run_hooked(tl_model, tokens, backend="bridge", embeddings=rows[None]).logits, ids
    )
    try:
        own = log_probabilities(lambda tokens: tl_model.original_model(inputs_embeds=rows[None]), ids)
    except _UNSUPPORTED as error:  # the architecture needs more than embeddings
        if is_out_of_memory(error):
            raise
        return None, "it does not run from token embeddings alone, which attributions and ablations change"
    return max(worst, float((own - without).abs().max())), ""


def _hooks_rows(tl_model: Any, backend: Backend, ids: Tensor) -> bool:
    """Whether the hook of token embeddings holds the rows of the embedding table: a norm between them may be too weak
    to show in logits of half precision, but derivatives are taken on its other side."""
    name = embedding_hook(tl_model, backend)
    ids = ids[:, :GRADIENT_LENGTH]
    seen = run_hooked(tl_model, ids, backend=backend, capture=[name]).activations[name]
    return torch.equal(seen, token_embeddings(tl_model, ids).to(seen))


@torch.no_grad()
def _check_cached_steps(tl_model: Any, backend: Backend, ids: Tensor, own: Tensor) -> tuple[float | None, str]:
    """Largest difference of passes with a key/value cache from one full pass, in nats, or why there is none.

    The prompt is fed in five pieces: a prefix, one token, many tokens, and two single tokens.
    """
    count = ids.shape[1]
    half = count // 2
    sizes = [half - 1, 1, count - half - 2, 1, 1] if count >= 6 else [1] * count
    try:
        step = cached_steps(Network(tl_model, name="", backend=backend))
        logits = torch.cat([step(piece) for piece in ids.split(sizes, dim=1)], dim=1)
    except _UNSUPPORTED as error:  # the architecture has no cache of this kind
        if is_out_of_memory(error):
            raise
        return None, f"its passes cannot reuse keys and values: {first_line(error)}"
    if logits.shape[1] != count:
        return None, f"its passes give logits for {logits.shape[1]} of {count} tokens"
    return float((log_probabilities(lambda _: logits, ids) - own).abs().max()), ""


def first_line(error: BaseException) -> str:
    """The first line of an error's message, and the next if the first ends in a colon; or the type of the error."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    return " ".join(lines[: 2 if lines[0].endswith(":") else 1])[:240]


# ---- past the lengths that a configuration declares


def check_long_context(hf_model: Any, length: int, backend: Backend, processed: bool) -> SelfCheck | str | None:
    """The check of a model's small copy; or a clause why there is none; or None if ``length`` tokens reach past all
    bounds.

    The small copy of a configuration is checked once per process. Errors of TransformerLens for an architecture that it
    cannot convert are passed on.
    """
    config = hf_model.config
    if length >= small_copy.length_past_bounds(config.get_text_config()):
        return None
    if config.get_text_config() is not config:
        return "its configuration has several parts"
    return _check_copy((type(hf_model), type(config)), small_copy.config_key(config), backend, processed)


@functools.lru_cache(maxsize=64)
def _check_copy(classes: tuple[Any, Any], key: str, backend: Backend, processed: bool) -> SelfCheck | str:
    model_class, config_class = classes
    device, dtype = torch.device("cpu"), torch.float32
    # configuration classes may raise any error
    try:
        config = small_copy.small_config(config_class.from_dict(json.loads(key)))
        hf_model, length = small_copy.small_random_copy(model_class, config), small_copy.length_past_bounds(config)
        convert.feed_rows(hf_model)
        with few_threads(hf_model.num_parameters(), trial=True):
            reference = reference_of(hf_model, check_ids(small_copy.D_VOCAB, length, length), gradient=True)
    except Exception as error:
        if is_out_of_memory(error):
            raise
        return f"no small copy of it could be made: {first_line(error)}"
    if not bool(torch.isfinite(reference.log_probabilities).all()):
        return "a small random copy of it computes NaN or infinity"
    with few_threads(hf_model.num_parameters(), trial=True):
        to_backend = convert.to_hooked if backend == "hooked" else convert.to_bridge
        tl_model = to_backend(hf_model, processed=processed, device=device, dtype=dtype)
        return self_check(tl_model, backend, reference)


# ---- the parts of the check


def _check_edit(tl_model: Any, backend: Backend, ids: Tensor) -> tuple[float, float]:
    """Effect of an edit at the last position, and the largest change where nothing may change, in nats."""
    rows = ids[:1, :16].repeat(2, 1)
    name = f"blocks.{tl_model.cfg.n_layers // 2}.hook_resid_pre"

    def edit(value: Tensor) -> Tensor:
        changed = value.clone()
        changed[0, -1] = changed[0, -1].flip(-1) + changed.std()  # row 0 changes, row 1 does not
        return changed

    unedited = log_probabilities(tl_model, rows)
    edited = log_probabilities(lambda x: run_hooked(tl_model, x, backend=backend, edit={name: edit}).logits, rows)
    change = (edited - unedited).abs()
    leak = change[1].max() if rows.shape[1] == 1 else torch.maximum(change[0, :-1].max(), change[1].max())
    return float(change[0, -1].max()), float(leak)


def _objective(logits: Tensor, ids: Tensor) -> Tensor:
    """(batch,) logit of the first prompt's last token at the last position, minus the mean logit.

    A log-probability is not used: if a model is certain of the token, as one with tied embeddings may be of its input,
    its gradient is lost in rounding.
    """
    last = logits[:, -1]
    return last[:, int(ids[0, -1])] - last.mean(-1)


def _gradient_difference(tl_model: Any, backend: Backend, ids: Tensor, reference: Reference | None) -> float:
    """Relative difference of a gradient from that of Hugging Face if it is known, else from finite differences."""
    if reference is None or reference.gradient is None:
        return _finite_difference(tl_model, backend, ids[:1, :GRADIENT_LENGTH])
    name = embedding_hook(tl_model, backend)
    run = run_hooked(tl_model, ids[:1], backend=backend, capture=[name], grad=lambda x: _objective(x, ids).sum())
    wanted = reference.gradient.cpu().double()
    return float((run.gradients[name][0].cpu().double() - wanted).norm() / wanted.norm())


def _finite_difference(tl_model: Any, backend: Backend, ids: Tensor) -> float:
    """Relative difference of the gradient's norm from central differences along it, at the best of several steps; the
    steps behind the first ones are tried where these are not within the tolerance."""
    name = embedding_hook(tl_model, backend)
    run = run_hooked(tl_model, ids, backend=backend, capture=[name], grad=lambda x: _objective(x, ids).sum())
    embeddings, gradient = run.activations[name], run.gradients[name]
    norm = float(torch.linalg.vector_norm(gradient, dtype=accumulation_dtype(gradient.device)))
    if norm == 0.0:  # the output does not depend on the input: the edit check reports it
        return 0.0
    direction = gradient / gradient.norm() * embeddings.norm()
    best = float("inf")
    for sizes in STEPS[embeddings.dtype]:
        steps = torch.tensor(sizes, dtype=embeddings.dtype, device=embeddings.device)
        moved = embeddings + torch.cat([steps, -steps])[:, None, None] * direction
        logits = run_hooked(tl_model, ids.repeat(len(moved), 1), backend=backend, embeddings=moved).logits
        up, down = _objective(logits[:, -1:].cpu().double(), ids).chunk(2)
        differences = (up - down) / (2 * steps.cpu().double() * float(embeddings.norm()))
        best = min(best, float(((differences - norm) / norm).abs().min()))
        if best <= GRADIENT_TOLERANCE[embeddings.dtype]:
            break
    return best
