"""Ethos: subtract from the MLPs what fine-tuning on biased texts adds, except for general knowledge."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from interp_widgets.analysis._core.checks import check_range
from interp_widgets.analysis._core.prompts import read_prompt
from interp_widgets.analysis._core.run import RunOptions
from interp_widgets.analysis._core.tensors import wide
from interp_widgets.analysis.ffn_concepts.neurons import norms_output, value_vectors
from interp_widgets.arguments import checked
from interp_widgets.models import LayerEdit, Model, ModelEdit
from interp_widgets.models.edits import Setting

_TOKENS = 512
"""Tokens per training step."""


@checked
def ethos_edit(
    model: Model,
    biased: Sequence[str],
    auxiliary: Sequence[str],
    *,
    strength: float = 1.0,
    threshold: float = 0.03,
    steps: int = 100,
    learning_rate: float = 1e-3,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
    check: Callable[[], None] | None = None,
) -> ModelEdit:
    """An Ethos edit of the output matrices W of the MLPs.

    W is fine-tuned on the biased and on the auxiliary texts, which gives two task vectors, Δ and Δ_aux. Let U and V be
    the singular vectors of W + Δ_aux, and S = Uᵀ Δ V. Entries of S above ``threshold`` times the largest entry count as
    general knowledge and are set to 0. W becomes W - strength · U S Vᵀ.

    Args:
        model: what `load_model` returns; its weights are not changed.
        biased: texts that show the bias.
        auxiliary: texts of the same kind without the bias.
        strength: factor of the subtracted matrix.
        threshold: between 0 and 1; 1 subtracts all of Δ, which is task vector negation.
        steps: steps of Adam for each of the two fine-tunings.
        learning_rate: of Adam.
        seed: of the order of the texts.
        progress: called with (done, total) steps.
        check: called before every step; raises to cancel.

    Raises:
        ValueError: no texts, texts of one token, options out of range, or a model whose MLPs have no single output
            matrix or normalise their output.

    Source: Ethos: Rectifying Language Models in Orthogonal Parameter Space (Gao et al. 2024), section 3; the paper
    tunes all matrices by LoRA; this function edits the matrices that `lope_edit` edits.

    Example:
        >>> pairs = demo_stereoset("train")[:20]
        >>> texts = [one.stereotype for one in pairs], [one.anti_stereotype for one in pairs]
        >>> edit = ethos_edit(base, *texts, steps=3)
        >>> len(edit.layers)
        6
    """
    model.capabilities.require("mlp_neurons", "ethos_edit", using="mlp")
    if not np.isfinite(strength):
        raise ValueError(f"strength must be a finite number, got {strength}")
    check_range("threshold", threshold, 0.0, 1.0)
    check_range("steps", steps, 1, 100_000)
    check_range("learning_rate", learning_rate, 1e-9, 1.0)
    if any(norms_output(model, layer) for layer in range(model.n_layers)):
        raise ValueError(f"ethos_edit needs MLPs whose output is not normalised; {model.name} normalises it")
    run = RunOptions(progress, check)
    deltas = []
    for number, (what, texts) in enumerate((("biased", biased), ("auxiliary", auxiliary))):
        ids = [read_prompt(model, text, what=f"{what} text").ids for text in texts]
        if not ids or min(map(len, ids)) < 2:
            raise ValueError(f"{what} must hold at least one text, each of at least two tokens, counting the BOS")
        deltas.append(_task_vectors(model, ids, steps, learning_rate, seed, run.part(number, 2)))
    layers = {}
    for layer, (own, other) in enumerate(zip(*deltas, strict=True)):
        before = value_vectors(model, layer).detach().cpu().float()
        removed = bias_part(before.double(), own.cpu().double(), other.cpu().double(), threshold)
        after = (before.double() - strength * removed).float()
        layers[layer] = LayerEdit(torch.arange(len(before)), before, after, torch.zeros(model.d_model))
    settings: dict[str, Setting] = {
        "method": "ethos",
        "strength": strength,
        "threshold": threshold,
        "steps": steps,
        "learning_rate": learning_rate,
        "seed": seed,
    }
    return ModelEdit.of(model, "Ethos", layers=layers, settings=settings)


def bias_part(weights: Tensor, task: Tensor, auxiliary: Tensor, threshold: float) -> Tensor:
    """(m, n) the part of a task vector (m, n) that is not general knowledge; see `ethos_edit`."""
    left, _, right = torch.linalg.svd(weights + auxiliary, full_matrices=False)
    along = left.T @ task @ right.T
    kept = torch.where(along.abs() <= threshold * along.abs().max(), along, torch.zeros_like(along))
    part: Tensor = left @ kept @ right
    return part


def _task_vectors(
    model: Model, texts: Sequence[Sequence[int]], steps: int, learning_rate: float, seed: int, run: RunOptions
) -> list[Tensor]:
    """(d_mlp, d_model) per layer: the change Δ of its output matrix by fine-tuning on texts.

    The matrices themselves are not changed: Δ acts at the hook of the MLP's output, and its gradient is the sum over
    tokens of the activations times the gradient at that hook.
    """
    draw = np.random.default_rng(seed)
    shapes = [model.weight("W_out", layer).shape for layer in range(model.n_layers)]
    added = [torch.zeros(shape, device=model.device, dtype=torch.float32) for shape in shapes]
    optimiser = torch.optim.Adam(added, lr=learning_rate)
    post, out = "blocks.{}.mlp.hook_post", "blocks.{}.hook_mlp_out"
    names = [name.format(layer) for layer in range(model.n_layers) for name in (post, out)]
    by_length: dict[int, list[int]] = {}
    for number, ids in enumerate(texts):
        by_length.setdefault(len(ids), []).append(number)
    lengths = sorted(by_length)
    share = np.array([len(by_length[length]) for length in lengths]) / len(texts)
    for step in range(steps):
        run.stop_if_cancelled()
        length = lengths[draw.choice(len(lengths), p=share)]
        group = by_length[length]
        chosen = draw.permutation(group)[: max(1, _TOKENS // length)]
        batch = torch.tensor([list(texts[i]) for i in chosen], device=model.device)
        found = model.run(batch, capture=names, edit=_adding_edits(added), grad=partial(_loss, batch))
        for layer, own in enumerate(added):
            activation = wide(found.activations[post.format(layer)]).flatten(0, 1)
            gradient = wide(found.gradients[out.format(layer)]).flatten(0, 1)
            own.grad = (activation.T @ gradient).to(own.dtype)
        optimiser.step()
        run.report(step + 1, steps)
    return added


def _adding_edits(added: Sequence[Tensor]) -> dict[str, Callable[[Tensor], Tensor]]:
    """Hook edits that add activation @ Δ to the output of each MLP."""
    edits: dict[str, Callable[[Tensor], Tensor]] = {}
    for layer, own in enumerate(added):
        seen: list[Tensor] = []

        def keep(value: Tensor, seen: list[Tensor] = seen) -> Tensor:
            seen[:] = [value]
            return value

        def write(value: Tensor, seen: list[Tensor] = seen, own: Tensor = own) -> Tensor:
            return value + seen.pop() @ own.to(value.dtype)

        edits[f"blocks.{layer}.mlp.hook_post"] = keep
        edits[f"blocks.{layer}.hook_mlp_out"] = write
    return edits


def _loss(ids: Tensor, logits: Tensor) -> Tensor:
    """Mean cross-entropy of the next tokens."""
    return torch.nn.functional.cross_entropy(wide(logits[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
