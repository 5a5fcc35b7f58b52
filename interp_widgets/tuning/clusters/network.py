"""The GPT-2-shaped model of the synthetic task, its tokenizer, and instances as tensors."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from torch import nn

from interp_widgets.data.instruction_task import InstructionInstance, InstructionTask
from interp_widgets.models.library_messages import quiet

with quiet("transformers"):
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

END = "<|end|>"
"""The one token that is no symbol: padding, end of text and unknown symbols."""


def task_tokenizer(task: InstructionTask) -> PreTrainedTokenizerFast:
    """A tokenizer with one token per symbol; nothing is added to a text."""
    vocabulary = {symbol: index for index, symbol in enumerate([*task.symbols, END])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=END))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token=END, pad_token=END, eos_token=END)


def new_network(
    task: InstructionTask, *, width: int, layers: int, heads: int, mlp_width: int, dropout: float, seed: int
) -> GPT2LMHeadModel:
    """A model with random weights; the global seed stays as it is."""
    end = len(task.symbols)
    config = GPT2Config(
        vocab_size=end + 1,
        n_positions=task.longest,
        n_embd=width,
        n_layer=layers,
        n_head=heads,
        n_inner=mlp_width,
        resid_pdrop=dropout,
        embd_pdrop=dropout,
        attn_pdrop=dropout,
        bos_token_id=end,
        eos_token_id=end,
        pad_token_id=end,
        architectures=["GPT2LMHeadModel"],
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return GPT2LMHeadModel(config)


class Instances:
    """Instances as token ids, padded on the right to the longest."""

    def __init__(self, task: InstructionTask, instances: Sequence[InstructionInstance]) -> None:
        ids = {symbol: index for index, symbol in enumerate(task.symbols)}
        self.end = len(ids)
        longest = max(len(instance.prompt) for instance in instances) + 1
        self.tokens = torch.full((len(instances), longest), self.end)
        self.lengths = torch.tensor([len(instance.prompt) for instance in instances])
        for row, instance in enumerate(instances):
            text = instance.prompt + instance.output
            self.tokens[row, : len(text)] = torch.tensor([ids[symbol] for symbol in text])

    def loss(self, model: GPT2LMHeadModel, rows: torch.Tensor, output_weight: float = 1.0) -> torch.Tensor:
        """Mean cross-entropy of the next tokens of these instances, in nats; the output counts more often."""
        lengths = self.lengths[rows].to(model.device)
        tokens = self.tokens[rows, : int(lengths.max()) + 1].to(model.device)
        logits = model(input_ids=tokens[:, :-1], use_cache=False).logits
        wanted = tokens[:, 1:]
        losses = nn.functional.cross_entropy(logits.flatten(0, 1).float(), wanted.flatten(), reduction="none")
        weights = (wanted != self.end).float()
        weights[torch.arange(len(rows), device=model.device), lengths - 1] = output_weight
        return (losses.view(wanted.shape) * weights).sum() / weights.sum()

    @torch.no_grad()
    def accuracy(self, model: GPT2LMHeadModel, *, batch_size: int = 512) -> float:
        """Share of instances whose output has the highest logit of all tokens."""
        right = 0
        for first in range(0, len(self.tokens), batch_size):
            rows = slice(first, first + batch_size)
            lengths = self.lengths[rows].to(model.device)
            tokens = self.tokens[rows, : int(lengths.max()) + 1].to(model.device)
            places = torch.arange(len(tokens), device=model.device)
            hidden = model.transformer(input_ids=tokens[:, :-1], use_cache=False).last_hidden_state
            logits = model.lm_head(hidden[places, lengths - 1])
            right += int((logits.argmax(-1) == tokens[places, lengths]).sum())
        return right / len(self.tokens)
