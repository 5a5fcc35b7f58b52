"""`routing_speed`: measured generation speed of a mixture of depths by number of routes per token."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np
import scipy  # scipy.special takes a while to import: scipy itself loads it on first use

from interp_widgets.analysis._core.arrays import Floats
from interp_widgets.analysis._core.checks import check_range
from interp_widgets.analysis._core.prompts import read_prompt
from interp_widgets.analysis._core.result import Result, provenance, record, with_axes
from interp_widgets.analysis._core.run import RunOptions
from interp_widgets.analysis._core.tables import DataFrame, table
from interp_widgets.arguments import checked
from interp_widgets.models import Model, ModModel
from interp_widgets.models.chat import PromptInput
from interp_widgets.models.devices import finish
from interp_widgets.models.generation import generate_ids, stepper
from interp_widgets.models.mixture_of_depths.early_exit import EarlyExit
from interp_widgets.renamed import renamed


@renamed(told_apart="significant")
@record
class RoutingSpeed(Result):
    """Seconds per text for every number of routes per token, on this machine at this time."""

    top_k: Sequence[int] = with_axes("n")
    """Routes per token, rising; the last is dense: all k."""

    seconds: Floats = with_axes("n", "repeats", nan=False)
    """Seconds for the whole text, prompt included."""

    n_tokens: int
    """Number of tokens written."""

    computed: Floats = with_axes("n")
    """Share of all layers at all positions that were computed, 0..1."""

    runs: Floats = with_axes("n")
    """Layer runs over layers times passes, 0..1. Positions that were skipped run together when a layer is needed, so
    that a rarely needed layer rarely reads its weights."""

    texts: Sequence[str] = with_axes("n")
    """The generated texts."""

    skips_layers: bool
    """Whether layers were skipped at all; False where generation runs through the model's own modules."""

    @property
    def tokens_per_second(self) -> Floats:
        """(n,) written tokens over the geometric mean of the seconds."""
        return np.asarray(self.n_tokens / np.exp(np.log(self.seconds).mean(axis=1)))

    @property
    def speed_up(self) -> Floats:
        """(n,) tokens per second relative to the dense model; 1 in the last row."""
        return np.asarray(self.tokens_per_second / self.tokens_per_second[-1])

    @property
    def speed_up_interval(self) -> Floats:
        """(2, n) ends of the 95% interval of `speed_up` over the repeats, by Student's t on the log ratios of each
        repeat; 1 in the last row, and NaN in the others for fewer than two repeats."""
        logs = np.log(self.seconds[-1] / self.seconds)
        n = logs.shape[1]
        spread = logs.std(axis=1, ddof=1) if n > 1 else np.where(np.arange(len(logs)) < len(logs) - 1, np.nan, 0.0)
        half = (scipy.special.stdtrit(n - 1, 0.975) if n > 1 else 1.0) * spread / np.sqrt(n)
        ends: Floats = np.exp(np.stack([logs.mean(axis=1) - half, logs.mean(axis=1) + half]))
        return ends

    @property
    def significant(self) -> Sequence[bool]:
        """(n,) whether the interval of the speed-up excludes 1."""
        low, high = self.speed_up_interval
        return tuple(bool(lower > 1 or upper < 1) for lower, upper in zip(low, high, strict=True))

    def to_frame(self) -> DataFrame:
        """One row per number of routes."""
        low, high = self.speed_up_interval
        columns = {"tokens_per_second": self.tokens_per_second, "speed_up": self.speed_up, "low": low, "high": high}
        return table(
            {"top_k": self.top_k}, {**columns, "computed": self.computed, "runs": self.runs, "text": self.texts}
        )


@checked
def routing_speed(
    model: Model,
    prompt: PromptInput,
    *,
    max_new_tokens: int = 48,
    repeats: int = 5,
    prepend_bos: bool | None = None,
    clock: Callable[[], float] = time.perf_counter,
    progress: Callable[[int, int], None] | None = None,
    check: Callable[[], None] | None = None,
) -> RoutingSpeed:
    """Measure the time to generate one text with 1, 2, … k routes per token; greedy, to the full length.

    The numbers of routes alternate in both directions, so that other work on the machine affects all of them.

    Args:
        model: a `ModModel`.
        prompt: text, token ids (then nothing is added) or the messages of a chat (`chat_prompt`).
        max_new_tokens: tokens to write; an end token does not stop it.
        repeats: texts per number of routes, after one that is not counted.
        prepend_bos: overrides the model's BOS policy for text.
        clock: returns seconds; use ``time.process_time`` where other programs use the processor.
        progress: called with (done, total) texts.
        check: called before every token; raises to cancel.

    Raises:
        TypeError: a model without a mixture.
        ValueError: a bad prompt, no room for the tokens, ``repeats`` below 1.

    Source: Explainability in Large Language Models: Pathways to Refinement and Alignment (Luo 2024), section 5.1.3,
    Table 5.3.

    Example:
        >>> result = routing_speed(untrained_mod(model, 2), "The Eiffel Tower is in", max_new_tokens=4, repeats=1)
        >>> result.top_k, result.texts[0], result.speed_up.shape
        ((1, 2), ' Paris.<|eos|> the', (2,))
    """
    if not isinstance(model, ModModel):
        raise TypeError(f"routing_speed needs a mixture of depths, as tune_mod makes it, got {type(model).__name__}")
    tokens = read_prompt(model, prompt, prepend_bos=prepend_bos)
    room = model.n_ctx - len(tokens.ids)
    check_range("max_new_tokens", max_new_tokens, most=room, owner="what this prompt leaves of the context")
    check_range("repeats", repeats)
    counts = list(range(1, model.k + 1))
    seconds = np.zeros((len(counts), repeats + 1))
    computed, runs, texts = np.ones(len(counts)), np.ones(len(counts)), [""] * len(counts)
    skips, run = model.skips_layers, RunOptions(progress, check)
    for turn in range(repeats + 1):
        # every other repeat in reverse order: a drift over time then affects all of them equally
        for done, (row, count) in enumerate(list(enumerate(counts))[:: -1 if turn % 2 else 1]):
            with model.lock, model.with_top_k(count):
                write = EarlyExit(model, model.mixture, count) if skips else None
                started = clock()
                new = generate_ids(
                    stepper(model) if write is None else write.feed, tokens.ids, device=model.device,
                    max_new_tokens=max_new_tokens, temperature=0, seed=0, stop=(), check=check, on_token=None,
                )  # fmt: skip
                finish(model.device)
                seconds[row, turn] = clock() - started
            if write is not None:
                computed[row] = sum(write.computed) / (len(write.computed) * write.length)
                runs[row] = write.runs / (len(write.computed) * len(write.exits))
            texts[row] = model.decode(new) if model.tokenizer is not None else " ".join(map(str, new))
            run.report(turn * len(counts) + done + 1, (repeats + 1) * len(counts))
    return RoutingSpeed(
        top_k=counts,
        seconds=seconds[:, 1:],
        n_tokens=max_new_tokens,
        computed=computed,
        runs=runs,
        texts=texts,
        skips_layers=skips,
        provenance=provenance(
            model.provenance(), max_new_tokens=max_new_tokens, repeats=repeats, bos=tokens.offset == 1
        ),
    )
