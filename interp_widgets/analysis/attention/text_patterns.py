"""The attention patterns of many texts, read one text and layer at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from interp_widgets.analysis._core.chunks import BUDGET_SHARE, ChunkLog, Runner
from interp_widgets.analysis._core.cost import Cost, chunk_bytes, pass_flops
from interp_widgets.analysis._core.prompts import Prompt, read_prompt
from interp_widgets.analysis._core.run import RunOptions
from interp_widgets.models import Model
from interp_widgets.models.chat import PromptInput
from interp_widgets.models.engine import can_pad, read_values
from interp_widgets.models.memory import free_bytes


def read_texts(model: Model, texts: Sequence[PromptInput], prepend_bos: bool | None) -> list[Prompt]:
    """The texts as the model reads them; ValueError for no text, an empty or a too long one, counted from 0."""
    if len(texts) == 0:
        raise ValueError("texts must be a list of at least one text or list of token ids")
    several = len(texts) > 1
    return [
        read_prompt(model, text, prepend_bos=prepend_bos, what=f"text number {number}" if several else "text")
        for number, text in enumerate(texts)
    ]


def patterns_of_texts(
    model: Model,
    read: Sequence[Prompt],
    layers: Sequence[int],
    take: Callable[[int, int, Tensor], None],
    run: RunOptions,
) -> ChunkLog:
    """Call ``take(text, row of the layer, pattern)`` with the patterns (heads, tokens, tokens) of every text and layer.

    Texts of similar length run together. The patterns hold every token that the model reads, a BOS included. Layers
    after the last of these do not run.
    """
    ids = [item.ids for item in read]

    def work(batch: list[int], rows: Tensor) -> None:
        def reader(row: int) -> Callable[[Tensor], None]:
            def hand_on(pattern: Tensor) -> None:
                for text, of_text in zip(batch, pattern, strict=True):
                    n = len(ids[text])
                    take(text, row, of_text[:, :n, :n])

            return hand_on

        hooks = [(f"blocks.{layer}.attn.hook_pattern", reader(row)) for row, layer in enumerate(layers)]
        read_values(model, rows, hooks)

    runner = Runner(model, max(map(len, ids)), check=run.check, progress=run.progress, total=len(ids))
    runner.run_texts(ids, work, padded=can_pad(model))
    return runner.log


def texts_cost(model: Model, lengths: Sequence[int], last: int) -> Cost:
    """Forecast of reading patterns up to a last layer in texts of these lengths, in tokens with the BOS."""
    flops = sum(pass_flops(model, length, length) for length in lengths) * (last + 1) / model.n_layers
    return Cost(flops=float(flops), bytes=chunk_bytes(model, len(lengths), max(lengths)))


def check_room(size: int, what: str, advice: str) -> None:
    """MemoryError unless so many bytes fit in the free memory of the CPU."""
    free = free_bytes(torch.device("cpu"))
    if size > BUDGET_SHARE * free:
        raise MemoryError(f"{what} takes {size / 1e9:.1f} GB, of {free / 1e9:.1f} GB free: {advice}")
