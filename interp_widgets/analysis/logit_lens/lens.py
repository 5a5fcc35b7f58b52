"""`logit_lens`: the next token predicted from every layer at every position."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from interp_widgets.analysis._core.checks import check_finite, check_top
from interp_widgets.analysis._core.cost import Cost, pass_flops, row_bytes
from interp_widgets.analysis._core.prompts import Prompt, read_prompt, single_token
from interp_widgets.analysis._core.result import Scalar, provenance
from interp_widgets.analysis._core.run import RunOptions, in_threads
from interp_widgets.analysis._core.tensors import as_array
from interp_widgets.analysis.logit_lens.lens_result import ABSENT, LogitLensResult
from interp_widgets.analysis.logit_lens.online_softmax import LOWEST, Readings
from interp_widgets.arguments import checked
from interp_widgets.models import Model
from interp_widgets.models.chat import PromptInput
from interp_widgets.models.devices import device_kind
from interp_widgets.models.engine import ReadOut, read_out, residual_streams
from interp_widgets.models.top_k import ranked
from interp_widgets.models.translators import Translators, load_translators

_DELIVERIES = 6
"""Partial results of a prompt, besides the first few, which come as soon as they can."""


@checked
def logit_lens(
    model: Model,
    prompt: PromptInput,
    *,
    target: str | int | None = None,
    top: int = 10,
    translators: str | os.PathLike[str] | Translators | None = None,
    prepend_bos: bool | None = None,
    progress: Callable[[int, int], None] | None = None,
    check: Callable[[], None] | None = None,
    on_partial: Callable[[LogitLensResult], None] | None = None,
) -> LogitLensResult:
    """The next token predicted from every layer at every position of a prompt, in one pass over the vocabulary.

    With translators (`load_translators`) it is the tuned lens.

    Row l decodes the residual stream entering block l with the model's final norm and unembedding (and logit soft cap
    if it has one); the last row is the model's output. Only a block of logits is in memory at a time. For a mixture of
    depths every row is decoded as its last route does, and the last row is that route's output alone.

    The numbers equal TransformerLens's ``cache.accumulated_resid(apply_ln=True)`` followed by ``model.unembed`` and
    ``softmax``, with these differences. No tensor of size (layers, positions, vocabulary) is allocated. The soft cap of
    models such as Gemma 2 is applied to every row; ``unembed`` alone omits it. Norm, unembedding and softmax are in
    float32 (float64 for a float64 model) also for models in bfloat16 or float16, because a half-precision unembedding
    changes ranks; the last row of such a model therefore differs from its output by rounding. While you have hooks on
    the model, every row goes through the model's own final norm and unembedding, with their hooks and in the model's
    dtype. A model loaded with ``processed=True`` gives the same numbers.

    Args:
        model: what `load_model` returns.
        prompt: text, token ids (then nothing is added) or the messages of a chat (`chat_prompt`).
        target: a token to track through the layers, as an id or the text of one token.
        top: number of likeliest tokens stored per cell.
        translators: for the tuned lens: a safetensors file with one affine map per layer, or the return value of
            `load_translators`; every row but the last is translated before it is decoded.
        prepend_bos: overrides the model's BOS policy for a text. No axis of the result has the BOS.
        progress: called with (done, total) steps: blocks of the vocabulary, for each part of the prompt.
        check: called before every block; raises to cancel.
        on_partial: receives a partial result after the last tokens of a long prompt, then ever earlier ones: the others
            are not `LogitLensResult.computed` yet. Never while you have hooks on the model.

    Raises:
        ValueError: an empty or too long prompt, a target that is not one token, ``top`` out of range, translators of
            another size, or numbers that are not finite.
        FileNotFoundError: no translators at that path.

    Source: Interpreting GPT: the Logit Lens (nostalgebraist 2020); tuned: Eliciting Latent Predictions from
    Transformers with the Tuned Lens (Belrose et al. 2023), section 2.

    Example:
        >>> result = logit_lens(model, "The Eiffel Tower is in the city of", target=" Paris")
        >>> result.target_rank[1:, -1]
        array([0, 0, 0, 0, 0, 0])
        >>> [result.token_text(token) for token in result.top_token[:2, -1]]
        [' of', ' Paris']
    """
    model.capabilities.require("residual_stream", "logit_lens")
    tokens = read_prompt(model, prompt, prepend_bos=prepend_bos)
    token = None if target is None else single_token(model, target)
    check_top(top, model)
    maps = _translators(model, translators)
    run = RunOptions(progress, check)
    run.stop_if_cancelled()
    origin = model.provenance()
    streams = residual_streams(model, tokens.fed_ids()[0])
    if maps is not None:
        for layer in range(model.n_layers):
            streams[layer] = maps(layer, streams[layer])
    readings = Readings(
        tokens.n_shown, model.n_layers + 1, top=top, target=token, dtype=streams.dtype, device=streams.device
    )
    read = read_out(model)
    read_all = _in_blocks if read.in_blocks else _by_modules
    due, apart = 1, max(1, tokens.n_shown // _DELIVERIES)
    for done, total in read_all(read, streams, readings, tokens.offset):
        run.report(done, total)
        if done == total:
            break
        run.stop_if_cancelled()
        complete = int(readings.complete.sum())
        if on_partial is not None and readings.complete[-1] and due <= complete < tokens.n_shown:
            due = complete + min(complete, apart)
            on_partial(_result(tokens, readings, token, maps, read.in_blocks, origin, partial=True))
    return _result(tokens, readings, token, maps, read.in_blocks, origin)


def _translators(model: Model, source: str | os.PathLike[str] | Translators | None) -> Translators | None:
    if source is None:
        return None
    translators = source if isinstance(source, Translators) else load_translators(source)
    translators.check(model)
    return translators


def _block_size(cells: int, vocab: int, device: torch.device) -> tuple[int, int]:
    """Cells and token ids of one block of logits."""
    if device_kind(device) == "cpu":
        return 512, 1024  # 2 MB of logits and 3 MB of a 768-wide unembedding: both fit in the processor's cache
    # few large steps, while a block and its exponentials stay under 4% of all logits
    return max(256, min(cells * vocab // 64, 2**26) // 4096), 4096


def _in_blocks(read: ReadOut, streams: Tensor, readings: Readings, offset: int) -> Iterator[tuple[int, int]]:
    """Add the logits of all cells, block by block of the vocabulary; ``streams`` is overwritten."""
    cells, vocab = streams.transpose(0, 1)[offset:], read.network.d_vocab  # in memory order
    positions, rows, width = cells.shape
    size, columns = _block_size(positions * rows, vocab, streams.device)
    step = max(1, size // rows)
    chunks = [slice(start, min(start + step, positions)) for start in range(0, positions, step)]
    # The last row is what the model itself predicts, rounded as it rounds: its ties are the model's. Its blocks are
    # computed by themselves, so that it has the same logits wherever they are needed.
    last = read.normed(cells[:, -1].to(read.network.dtype))
    for chunk in chunks:  # before any thread is used: which norm is in force is known in this one
        cells[chunk] = read.normed(cells[chunk])
    firsts, unembedding = range(0, vocab, columns), read.unembedding()

    @torch.no_grad()
    def block_of_last(chunk: slice, first: int) -> Tensor:
        return unembedding(last[chunk], slice(first, first + columns)).to(cells.dtype)

    @torch.no_grad()
    def block(chunk: slice, first: int) -> Tensor:
        logits = unembedding(cells[chunk].reshape(-1, width), slice(first, first + columns))
        logits = logits.view(-1, rows, logits.shape[-1])
        logits[:, -1] = block_of_last(chunk, first)
        return logits

    def read_chunk(chunk: slice) -> Iterator[None]:
        best = last.new_full((len(last[chunk]),), -torch.inf, dtype=cells.dtype)
        for first in firsts:
            values, ids = (found[:, 0] for found in ranked(block_of_last(chunk, first), 1))
            better = values > best
            best = torch.where(better, values, best)
            readings.followed[chunk, 0] = torch.where(better, ids + first, readings.followed[chunk, 0])
        # computed first, so that every block can be compared with them
        for first in sorted({token // columns * columns for token in readings.followed[chunk].flatten().tolist()}):
            readings.note_followed(chunk, slice(0, rows), first, block(chunk, first))
        yield
        for first in firsts:
            logits = block(chunk, first)
            readings.add(chunk, slice(0, rows), first, logits, logits[:, -1])
            if first == firsts[-1]:
                readings.complete[chunk] = True
            yield

    steps = len(chunks) * (1 + len(firsts))
    works = [read_chunk(chunk) for chunk in reversed(chunks)]  # what follows the prompt is looked at first
    side_by_side = in_threads if device_kind(streams.device) == "cpu" else chain.from_iterable
    for done, _ in enumerate(side_by_side(works), start=1):
        yield done, steps


def _by_modules(read: ReadOut, streams: Tensor, readings: Readings, offset: int) -> Iterator[tuple[int, int]]:
    """Read the streams by the model's own modules, one layer at a time and together with the last one."""
    rows, positions = len(streams), slice(0, streams.shape[1] - offset)
    # hooks may set logits to minus infinity to forbid tokens; times their probability 0 that would be NaN
    final = read.whole(streams[-1:])[0, offset:].clamp_min_(LOWEST)
    readings.followed[:, 0] = ranked(final, 1)[1][:, 0]
    for row in range(rows):
        logits = final.clone() if row == rows - 1 else read.whole(streams[[row]])[0, offset:].clamp_min_(LOWEST)
        readings.add(positions, slice(row, row + 1), 0, logits[:, None], final)
        yield row + 1, rows


def _result(
    prompt: Prompt,
    readings: Readings,
    target: int | None,
    maps: Translators | None,
    in_blocks: bool,
    origin: Mapping[str, Scalar],
    *,
    partial: bool = False,
) -> LogitLensResult:
    model, tokens = prompt.model, prompt.tokens()
    # taken before the numbers: other threads go on
    absent = np.flatnonzero(~readings.complete) if partial else np.array([], dtype=int)
    probability, ids = readings.ordered()
    dtype = readings.best.dtype

    def array(x: Tensor) -> NDArray[Any]:
        """(positions, rows, ...) as a result's (rows, positions, ...)."""
        x = x.to(dtype) if x.is_floating_point() else x
        values = np.array(as_array(x.transpose(0, 1)), order="C")
        values[:, absent] = np.nan if x.is_floating_point() else ABSENT
        return values

    def followed(index: int) -> NDArray[Any]:
        return array((readings.followed_logit[..., index] - readings.log_mass()).exp())

    entropy = array(readings.entropy())
    check_finite(
        np.delete(entropy, absent, axis=1),
        lambda layer, position: f"the reading at layer {layer} and position {position} ({tokens[position]!r})",
        also="translators that blow up, ",
    )
    top_ids = array(ids)
    named = set(np.unique(top_ids).tolist()) - {ABSENT} | ({target} if target is not None else set())
    options: dict[str, Any] = {"top": readings.top, "target": target, "bos": prompt.offset == 1, "in_blocks": in_blocks}
    options |= {"translators": maps.name, "form": maps.form} if maps is not None else {}
    chosen: dict[str, Any] = {}
    if target is not None:
        chosen = {"target": target, "target_rank": array(readings.above[..., 1]), "target_probability": followed(1)}
    return LogitLensResult(
        **prompt.fields(),
        top_ids=top_ids,
        top_probability=array(probability),
        entropy=entropy,
        kl=array(readings.kl()),
        final_rank=array(readings.above[..., 0]),
        final_probability=followed(0),
        names=dict(zip(sorted(named), model.single_token_strings(sorted(named)), strict=True)),
        lens="logit" if maps is None else "tuned",
        partial=partial,
        provenance=provenance(origin, **options),
        **chosen,
    )


def logit_lens_cost(model: Model, n_tokens: int) -> Cost:
    """Operations and peak bytes of `logit_lens` on a prompt of so many tokens.

    Example:
        >>> round(logit_lens_cost(model, 12).flops / 1e9, 2)
        0.39
    """
    rows = model.n_layers + 1
    # maximum, exponential and sums of a logit take as long as about 80 operations of the product
    item = max(model.dtype.itemsize, 4)
    cells, columns = _block_size(rows * n_tokens, model.d_vocab, model.device)
    # the output's logits once more, and at most the blocks that hold the likeliest tokens of a chunk's positions
    blocks = -(-model.d_vocab // columns)
    again = min(max(1, cells // rows), n_tokens, blocks) / blocks
    reading = model.d_vocab * (rows * (2.0 * model.d_model + 80) + 2.0 * model.d_model * (2 + rows * again))
    at_once = torch.get_num_threads() if device_kind(model.device) == "cpu" else 1
    block = 3.0 * min(at_once * cells, rows * n_tokens) * min(columns, model.d_vocab)
    stored = rows * n_tokens * (model.d_model + 16)
    return Cost(
        flops=pass_flops(model, n_tokens, n_tokens) + n_tokens * reading,
        bytes=float(item * (stored + block) + row_bytes(model, n_tokens, n_tokens) / model.n_layers),
    )
