"""`last_states`: the residual stream at the last token of many short texts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from interp_widgets.analysis._core.arrays import Floats
from interp_widgets.analysis._core.checks import check_finite, stream_indices
from interp_widgets.analysis._core.chunks import Runner
from interp_widgets.analysis._core.cost import Cost, pass_flops, row_bytes
from interp_widgets.analysis._core.prompts import read_prompt
from interp_widgets.analysis._core.run import RunOptions
from interp_widgets.analysis._core.tensors import as_array
from interp_widgets.arguments import checked
from interp_widgets.models import Model
from interp_widgets.models.chat import PromptInput
from interp_widgets.models.engine import SharedPrefixes, can_pad, shared_prefixes, streams_at

_SHORTEST_PREFIX = 4
"""A common prefix of fewer tokens is not worth its own pass."""
_KEPT_SHARE = 0.2
"""Share of the free memory for the keys and values of common prefixes."""


@checked
def last_states(
    model: Model,
    prompts: Sequence[PromptInput],
    layers: int | Sequence[int],
    *,
    groups: Sequence[int] | None = None,
    positions: Sequence[int] | None = None,
    prepend_bos: bool | None = None,
    batch_size: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    check: Callable[[], None] | None = None,
) -> Floats:
    """(prompts, layers, d_model) the residual stream entering each layer at the last token of each prompt.

    The numbers equal those of ``model.run(ids, capture=...)`` prompt by prompt, up to rounding. Neither logits nor
    layers after the last one requested are computed; prompts run in batches of similar length; a common prefix of the
    prompts of a group runs once. While you have hooks on the model, every prompt runs in full, so the hooks see it.

    Args:
        model: what `load_model` returns.
        prompts: texts, or lists of token ids (to which nothing is added).
        layers: layer l is the stream entering block l, n_layers (or -1) the one entering the final norm.
        groups: (prompts,) a number per prompt; prompts with the same number share a prefix. By default all are one
            group. Groups change the speed, not the numbers.
        positions: (prompts,) the token to read instead of the last: from 0 without the BOS, or negative from the end.
        prepend_bos: overrides the model's BOS policy for texts.
        batch_size: most prompts in one pass; by default what work and memory allow. Halved when memory runs out.
        progress: called with (done, total) prompts.
        check: called before every pass; raises to cancel.

    Returns:
        float32, or float64 for a float64 model.

    Raises:
        ValueError: no prompt, an empty or too long one, a layer or position out of range, hidden states that are not
            finite.
        MemoryError: one prompt alone does not fit.

    Example:
        >>> last_states(model, ["The cat sat", "Paris is"], [2, 4]).shape
        (2, 2, 192)
    """
    model.capabilities.require("residual_stream", "last_states")
    requested = stream_indices(model, layers)
    ids = _token_ids(model, prompts, positions, prepend_bos)
    members = _members(len(ids), groups)
    RunOptions(check=check).stop_if_cancelled()
    runner = Runner(model, max(map(len, ids)), batch_size, check, progress, total=len(ids))
    kind = np.float64 if model.dtype == torch.float64 else np.float32
    hidden = np.empty((len(ids), len(set(requested)), model.d_model), dtype=kind)
    work = _Work(model, ids, tuple(sorted(set(requested))), runner, hidden)
    work.shared(members) if can_pad(model) else work.run_modules()
    check_finite(hidden, lambda prompt, layer, _: f"the hidden state of prompt {prompt} at layer {work.layers[layer]}")
    return hidden[:, [work.layers.index(layer) for layer in requested]] if requested != work.layers else hidden


@dataclass(frozen=True)
class _Work:
    """The prompts of one call, and their states."""

    model: Model
    ids: list[tuple[int, ...]]
    layers: tuple[int, ...]
    runner: Runner
    hidden: Floats
    """(prompts, layers, d_model) to be filled."""

    def shared(self, members: Sequence[Sequence[int]]) -> None:
        """Run all prompts, those with common prefixes of one length together."""
        by_length: dict[int, list[Sequence[int]]] = defaultdict(list)
        for group in members:
            by_length[_prefix_length([self.ids[i] for i in group])].append(group)
        for length, same_length in sorted(by_length.items()):
            size = len(same_length) if length == 0 else self._prefixes_at_once(length)
            for first in range(0, len(same_length), size):
                groups = same_length[first : first + size]
                starts = torch.tensor([self.ids[group[0]][:length] for group in groups], device=self.model.device)
                cached = shared_prefixes(self.model, starts.view(len(groups), length), self.layers[-1])
                rows = [(i, number) for number, group in enumerate(groups) for i in group]
                rows.sort(key=lambda row: (-len(self.ids[row[0]]), row[0]))  # so that a chunk starts with its longest
                self._padded(rows, cached)

    def _prefixes_at_once(self, length: int) -> int:
        """How many prefixes of this length fit at once: one pass and their keys and values."""
        model = self.model
        kept = 2 * model.n_kv_heads * model.d_head * self.layers[-1] * length * model.dtype.itemsize
        return max(1, min(self.runner.size(length), int(_KEPT_SHARE * model.free_memory() / max(kept, 1))))

    def _padded(self, prompts: Sequence[tuple[int, int]], cached: SharedPrefixes | None) -> None:
        """Run prompts, each with the number of its prefix, padded to the longest of a chunk, which comes first."""
        skip = 0 if cached is None else cached.length

        def tokens(start: int) -> int:
            return len(self.ids[prompts[start][0]]) - skip

        def work(start: int, stop: int) -> None:
            width, device = tokens(start), self.model.device
            suffixes = [self.ids[i][skip:] for i, _ in prompts[start:stop]]
            batch = torch.tensor([[*ids, *ids[-1:] * (width - len(ids))] for ids in suffixes], device=device)
            last = torch.tensor([len(ids) - 1 for ids in suffixes], device=device)
            prefixes = torch.tensor([number for _, number in prompts[start:stop]], device=device)
            states = streams_at(self.model, batch, last, self.layers, shared=cached, prefix_of=prefixes)
            self.hidden[[i for i, _ in prompts[start:stop]]] = as_array(states.to(torch.from_numpy(self.hidden).dtype))

        self.runner.run(len(prompts), tokens, work)

    def run_modules(self) -> None:
        """Run all prompts through the model's own modules, one length at a time."""
        by_length: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for i, ids in enumerate(self.ids):
            by_length[len(ids)].append((i, 0))
        for _, rows in sorted(by_length.items()):
            self._padded(rows, None)


def _token_ids(
    model: Model, prompts: Sequence[PromptInput], positions: Sequence[int] | None, prepend_bos: bool | None
) -> list[tuple[int, ...]]:
    """The ids to feed, up to the token that is read."""
    if isinstance(prompts, str) or len(prompts) == 0:
        raise ValueError("prompts must be a list of at least one text or list of token ids")
    if positions is not None and len(positions) != len(prompts):
        raise ValueError(f"positions must have one entry per prompt, {len(prompts)}, got {len(positions)}")
    ids = []
    for number, text in enumerate(prompts):
        try:
            prompt = read_prompt(model, text, prepend_bos=prepend_bos)
            last = prompt.position(-1 if positions is None else positions[number])
        except ValueError as error:
            raise ValueError(f"prompt {number} ({_brief(text)}): {error}") from error
        ids.append(prompt.ids[: prompt.offset + last + 1])
    return ids


def _brief(prompt: PromptInput) -> str:
    text = repr(prompt)
    return text if len(text) <= 50 else text[:47] + "..."


def _members(count: int, groups: Sequence[int] | None) -> list[list[int]]:
    """The prompts of each group."""
    if groups is None:
        return [list(range(count))]
    if len(groups) != count:
        raise ValueError(f"groups must have one entry per prompt, {count}, got {len(groups)}")
    members: dict[int, list[int]] = defaultdict(list)
    for i, group in enumerate(groups):
        members[int(group)].append(i)
    return list(members.values())


def _prefix_length(ids: Sequence[tuple[int, ...]]) -> int:
    """Length of the common prefix of several sequences, without their last token; 0 where it saves nothing."""
    if len(ids) < 2:
        return 0
    low, high = min(ids), max(ids)  # the common prefix of these two is that of all
    most = min(map(len, ids)) - 1
    length = next((i for i in range(most) if low[i] != high[i]), most)
    return length if length >= _SHORTEST_PREFIX else 0


def last_states_cost(model: Model, lengths: Sequence[int], layer: int) -> Cost:
    """Operations and peak bytes of `last_states` up to ``layer`` for prompts of so many tokens.

    The padding of shorter prompts counts; prefixes that groups share are not subtracted.
    """
    share = max(layer, 1) / model.n_layers
    total, longest = float(sum(lengths)), max(lengths, default=0)
    if can_pad(model):
        ordered, runner, fed = sorted(lengths, reverse=True), Runner(model, longest), list[int]()
        while len(fed) < len(ordered):
            width = ordered[len(fed)]
            fed += [width] * min(runner.size(width), len(ordered) - len(fed))
        total = float(sum(fed))
    mean = sum(n * n for n in lengths) / max(total, 1)  # mean length over tokens
    rows = min(len(lengths), max(1, 1024 // max(longest, 1)))
    kept = 4.0 * len(lengths) * model.d_model
    return Cost(
        flops=share * pass_flops(model, total, mean),
        bytes=kept + rows * row_bytes(model, longest, longest),
    )
