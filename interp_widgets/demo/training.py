"""Train the demo models: LLaMA-shaped, Muon for the matrices and AdamW for the rest, resumable at any checkpoint."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from transformers import LlamaConfig, LlamaForCausalLM

from interp_widgets.atomic import whole_file
from interp_widgets.demo.batches import Batch, Stage, batches_from, special_ids
from interp_widgets.demo.tokenizer import CONTEXT

Log = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class TrainConfig:
    """Everything that decides what a training run does."""

    stage: Stage
    steps: int
    seed: int = 0
    tokens_per_batch: int = 4096
    lr_matrices: float = 5e-3
    lr_rest: float = 5e-3
    weight_decay: float = 0.01
    warmup: int = 100
    decay_steps: int | None = None
    """Steps over which the learning rate would fall to zero on its own; None takes `steps`."""
    cooldown: int | None = None
    """Steps before the end over which it falls linearly to zero, where that is lower; None leaves this out."""
    d_model: int = 192
    d_mlp: int = 512
    n_layers: int = 6
    n_heads: int = 6
    n_key_value_heads: int = 3
    bfloat16: bool = True
    compile: bool = True
    checkpoint_every: int = 250
    max_documents: int | None = None
    """At most this many documents per epoch; None takes all. For tests."""


def new_model(config: TrainConfig, tokenizer: Tokenizer) -> LlamaForCausalLM:
    """Build the untrained model of a configuration; the seed decides its weights."""
    torch.manual_seed(config.seed)
    bos, eos, pad = special_ids(tokenizer)
    llama = LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=config.d_model,
        intermediate_size=config.d_mlp,
        num_hidden_layers=config.n_layers,
        num_attention_heads=config.n_heads,
        num_key_value_heads=config.n_key_value_heads,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=bos,
        eos_token_id=eos,
        pad_token_id=pad,
        attn_implementation="sdpa",
    )
    return LlamaForCausalLM(llama)


def make_optimizers(model: LlamaForCausalLM, config: TrainConfig) -> list[torch.optim.Optimizer]:
    """Give Muon the hidden matrices and AdamW the embedding and the norms."""
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    rest = [p for name, p in model.named_parameters() if p.ndim != 2 or "embed" in name]
    return [
        torch.optim.Muon(
            matrices, lr=config.lr_matrices, weight_decay=config.weight_decay, adjust_lr_fn="match_rms_adamw"
        ),
        torch.optim.AdamW(rest, lr=config.lr_rest, betas=(0.9, 0.95), weight_decay=0.0, fused=True),
    ]


def learning_rate(step: int, config: TrainConfig) -> float:
    """Share of the peak learning rate at a step: a linear rise, then the lower of two linear falls."""
    if step < config.warmup:
        return (step + 1) / config.warmup
    decay_steps = config.decay_steps or config.steps
    share = (decay_steps - step) / max(1, decay_steps - config.warmup)
    if config.cooldown is not None:
        share = min(share, (config.steps - step) / config.cooldown)
    return max(0.0, share)


def batch_tensors(batch: Batch) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Turn a batch into token indices, next-token labels (-100 where none counts) and the attention mask."""
    tokens = torch.from_numpy(batch.tokens)
    labels = np.where(batch.target, batch.tokens, -100)
    document = torch.from_numpy(batch.document)
    same = document[:, :, None] == document[:, None, :]
    causal = torch.ones(tokens.shape[1], tokens.shape[1], dtype=torch.bool).tril()
    return tokens, torch.from_numpy(labels), (same & causal)[:, None]


def batch_loss(model: LlamaForCausalLM, tokens: torch.Tensor, labels: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy, in nats, of the tokens that count."""
    hidden = model.model(input_ids=tokens, attention_mask=mask, use_cache=False).last_hidden_state
    logits = model.lm_head(hidden[:, :-1])
    return F.cross_entropy(logits.float().reshape(-1, logits.shape[-1]), labels[:, 1:].reshape(-1), ignore_index=-100)


def save_checkpoint(
    path: Path,
    model: LlamaForCausalLM,
    optimizers: list[torch.optim.Optimizer],
    step: int,
    seconds: float,
    config: TrainConfig,
) -> None:
    """Write weights, optimizer state and step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    state = {
        "model": model.state_dict(),
        "optimizers": [optimizer.state_dict() for optimizer in optimizers],
        "step": step,
        "seconds": seconds,
        "config": asdict(config),
    }
    with whole_file(path) as draft:
        torch.save(state, draft)


def _what_matters(config: dict[str, Any]) -> dict[str, Any]:
    """A configuration without the options that may change when training resumes."""
    return {key: value for key, value in config.items() if key not in ("compile", "checkpoint_every")}


def train(
    config: TrainConfig,
    tokenizer: Tokenizer,
    *,
    folder: Path,
    start: LlamaForCausalLM | None = None,
    log: Log | None = None,
    evaluate: Callable[[LlamaForCausalLM], dict[str, Any]] | None = None,
    eval_every: int = 250,
    stop_at: int | None = None,
) -> LlamaForCausalLM:
    """Train one model, from its last checkpoint in `folder` if there is one; resuming keeps the data order."""
    checkpoint = folder / f"{config.stage}.pt"
    model = start if start is not None else new_model(config, tokenizer)
    model.train()
    optimizers = make_optimizers(model, config)
    step, seconds = 0, 0.0
    if checkpoint.exists():
        state = torch.load(checkpoint, weights_only=True)
        if _what_matters(state["config"]) != _what_matters(asdict(config)):
            raise ValueError(f"{checkpoint} was made with another configuration; move it away to start anew")
        model.load_state_dict(state["model"])
        for optimizer, saved in zip(optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        step, seconds = state["step"], state["seconds"]
    loss_of = torch.compile(batch_loss, dynamic=False) if config.compile else batch_loss
    stream = batches_from(
        config.stage,
        tokenizer,
        seed=config.seed,
        tokens_per_batch=config.tokens_per_batch,
        step=step,
        max_documents=config.max_documents,
    )
    last = config.steps if stop_at is None else min(stop_at, config.steps)
    losses: list[float] = []
    while step < last:
        began = time.perf_counter()
        for optimizer, peak in zip(optimizers, (config.lr_matrices, config.lr_rest), strict=True):
            for group in optimizer.param_groups:
                group["lr"] = peak * learning_rate(step, config)
        tokens, labels, mask = batch_tensors(next(stream))
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=config.bfloat16):
            loss = loss_of(model, tokens, labels, mask)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        losses.append(float(loss.detach()))
        step += 1
        seconds += time.perf_counter() - began
        if log is not None and (step % 50 == 0 or step == last):
            log({"stage": config.stage, "step": step, "loss": sum(losses) / len(losses), "seconds": round(seconds)})
            losses = []
        if step % config.checkpoint_every == 0 or step == last:
            save_checkpoint(checkpoint, model, optimizers, step, seconds, config)
        if evaluate is not None and log is not None and step % eval_every == 0:
            model.eval()
            log({"stage": config.stage, "step": step, **evaluate(model)})
            model.train()
    model.eval()
    return model


def json_log(path: Path) -> Log:
    """Make a log that appends one JSON line per record."""
    path.parent.mkdir(parents=True, exist_ok=True)

    def write(record: dict[str, Any]) -> None:
        with path.open("a") as file:
            file.write(json.dumps(record) + "\n")
        print(json.dumps(record), flush=True)

    return write
