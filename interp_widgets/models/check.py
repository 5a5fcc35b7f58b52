"""The check that every model passes when it is loaded: right logits, right gradients, hooks that do what they say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .devices import widest
from .hooks import EMBED, run_hooked

PROMPTS = 3
LENGTH = 48

# Largest difference of log-probabilities to Hugging Face. Right conversions of float models differ by 1e-6 to 1e-4
# (order of summation, rotary tables in float32); wrong ones by more than 1. Half precision rounds logits themselves.
LOGIT_TOLERANCE = {torch.float64: 1e-3, torch.float32: 2e-3, torch.float16: 0.1, torch.bfloat16: 0.5}
GRADIENT_TOLERANCE = {torch.float64: 1e-3, torch.float32: 1e-2}
STEPS = {torch.float64: (1e-3, 1e-4, 1e-5), torch.float32: (1e-2, 3e-3, 1e-3, 3e-4, 1e-4, 3e-5, 1e-5)}


class SelfCheckError(ValueError):
    """A loaded model does not compute what it should; the message says which part and by how much."""


@dataclass(frozen=True)
class SelfCheck:
    """What the check at load measured; `summary` is the one line that widgets show."""

    logits: float | None
    """Largest difference of log-probabilities (nats) to Hugging Face on three prompts; None: not compared."""
    logits_tolerance: float
    """Largest difference allowed."""
    gradient: float | None
    """Relative difference between one gradient and finite differences; None in half precision, too coarse for it."""
    gradient_tolerance: float | None
    """Largest relative difference allowed."""
    edit_effect: float
    """Change of a log-probability (nats) by an edit that must change it; must be above 0."""
    edit_leak: float
    """Largest change (nats) where an edit must change nothing: earlier positions, and everywhere for an empty edit."""
    leak_tolerance: float
    """Largest leak allowed (rounding of batched sums)."""
    note: str = ""
    """Why this backend runs, where another was refused."""

    @property
    def faults(self) -> tuple[str, ...]:
        """One sentence per failed part; empty when all passed."""
        found = []
        # `not (a <= b)` instead of `a > b`: a NaN must count as a fault
        if self.logits is not None and not self.logits <= self.logits_tolerance:
            found.append(
                f"log-probabilities differ from Hugging Face by {self.logits:.3g} nats "
                f"(allowed {self.logits_tolerance:.0e})"
            )
        slack = self.gradient_tolerance
        if self.gradient is not None and slack is not None and not self.gradient <= slack:
            found.append(
                f"the gradient differs from finite differences by {self.gradient:.3g} relative (allowed {slack:.0e})"
            )
        if not self.edit_effect > 0:
            found.append(f"an edit of a hook that must change the output changed it by {self.edit_effect:.3g}")
        if not self.edit_leak <= self.leak_tolerance:
            found.append(
                f"an edit changed the output where it must not, by {self.edit_leak:.3g} nats "
                f"(allowed {self.leak_tolerance:.0e})"
            )
        return tuple(found)

    @property
    def passed(self) -> bool:
        """Whether every part is within its tolerance."""
        return not self.faults

    def summary(self) -> str:
        """One line for people: what was compared and the largest differences."""
        if not self.passed:
            return f"self-check failed: {'; '.join(self.faults)}"
        logits = "Hugging Face not compared" if self.logits is None else f"Hugging Face ±{self.logits:.0e} nats"
        gradient = (
            "gradient not compared (half precision)" if self.gradient is None else f"gradient ±{self.gradient:.0e}"
        )
        line = f"self-check passed: {logits}, {gradient}, hook edits act where they should"
        return f"{line}; {self.note}" if self.note else line


def check_ids(d_vocab: int, n_ctx: int) -> Tensor:
    """The fixed prompts of the check: (3, up to 48) token ids, the same for every model of this vocabulary."""
    generator = torch.Generator().manual_seed(20240607)
    return torch.randint(0, d_vocab, (PROMPTS, min(LENGTH, n_ctx)), generator=generator)


@torch.no_grad()
def log_probabilities(model: Callable[[Tensor], Any], ids: Tensor) -> Tensor:
    """(batch, positions, d_vocab) natural log-probabilities on the CPU, in float32 or wider."""
    output = model(ids)
    logits = output if isinstance(output, Tensor) else output.logits
    wide = logits.double() if logits.dtype == torch.float64 else logits.float()
    return wide.log_softmax(-1).cpu()


def self_check(
    tl_model: Any,
    backend: str,
    reference: Tensor | None,
    *,
    ids: Tensor | None = None,
    note: str = "",
    slack: float = 1.0,
) -> SelfCheck:
    """Measure a TransformerLens model; the caller decides what a fault means.

    Args:
        tl_model: the model as it will be used.
        backend: ``"hooked"`` or ``"bridge"``.
        reference: Hugging Face's `log_probabilities` of ``ids``, or None if there is no such model.
        ids: the prompts, (batch, positions); `check_ids` of this model if left out.
        note: kept on the result.
        slack: by which the tolerance of log-probabilities is multiplied.
    """
    cfg = tl_model.cfg
    parameter = next(tl_model.parameters())
    dtype, device = parameter.dtype, parameter.device
    ids = (check_ids(cfg.d_vocab, cfg.n_ctx) if ids is None else ids).to(device)
    own = log_probabilities(tl_model, ids)
    difference = None if reference is None else float((own - reference).abs().max())
    effect, leak = _check_edit(tl_model, backend, ids)
    return SelfCheck(
        logits=difference,
        logits_tolerance=slack * LOGIT_TOLERANCE.get(dtype, 0.5),
        gradient=_check_gradient(tl_model, backend, ids[:1, :16]) if dtype in STEPS else None,
        gradient_tolerance=GRADIENT_TOLERANCE.get(dtype),
        edit_effect=effect,
        edit_leak=leak,
        # half precision: other rows of a batch may round differently by a unit in the last place of a logit
        leak_tolerance=1e-3 if dtype in STEPS else 0.5,
        note=note,
    )


def _check_edit(tl_model: Any, backend: str, ids: Tensor) -> tuple[float, float]:
    """Effect of an edit at the last position, and the largest change where there must be none."""
    rows = ids[:1, :16].repeat(2, 1)
    name = f"blocks.{tl_model.cfg.n_layers // 2}.hook_resid_pre"

    def edit(value: Tensor) -> Tensor:
        changed = value.clone()
        changed[0, -1] = changed[0, -1].flip(-1) + changed.std()  # row 0 changes, row 1 is handed back as it was
        return changed

    plain = log_probabilities(tl_model, rows)
    edited = log_probabilities(lambda x: run_hooked(tl_model, x, backend=backend, edit={name: edit}).logits, rows)
    change = (edited - plain).abs()
    leak = change[1].max() if rows.shape[1] == 1 else torch.maximum(change[0, :-1].max(), change[1].max())
    return float(change[0, -1].max()), float(leak)


def _check_gradient(tl_model: Any, backend: str, ids: Tensor) -> float:
    """Relative difference between the gradient's length and central differences along it, at the best of some steps."""
    target = int(ids[0, -1])

    def objective(logits: Tensor) -> Tensor:
        return logits[:, -1].log_softmax(-1)[:, target]

    run = run_hooked(tl_model, ids, backend=backend, capture=[EMBED], grad=lambda x: objective(x).sum())
    embeddings, gradient = run.activations[EMBED], run.gradients[EMBED]
    slope = float(torch.linalg.vector_norm(gradient, dtype=widest(gradient.device)))
    if slope == 0.0:  # a model whose output does not depend on its input: the edit check reports it
        return 0.0
    direction = gradient / gradient.norm() * embeddings.norm()
    steps = torch.tensor(STEPS[embeddings.dtype], dtype=embeddings.dtype, device=embeddings.device)
    signed = torch.cat([steps, -steps])[:, None, None]
    moved = embeddings + signed * direction
    logits = run_hooked(tl_model, ids.repeat(len(moved), 1), backend=backend, embeddings=moved).logits
    up, down = objective(logits.cpu().double()).chunk(2)
    slopes = (up - down) / (2 * steps.cpu().double() * float(embeddings.norm()))
    return float(((slopes - slope) / slope).abs().min())
