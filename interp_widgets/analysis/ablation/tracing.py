"""`causal_trace`: which states carry a fact from the subject to the answer."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import scipy  # scipy.stats takes a second to import: scipy itself loads it on first use
import torch
from numpy.typing import NDArray
from torch import Tensor

from interp_widgets.analysis._core.arrays import Floats
from interp_widgets.analysis._core.checks import check_choices, check_finite, check_range, layer_indices
from interp_widgets.analysis._core.chunks import Runner, chunk_size, run_chunks
from interp_widgets.analysis._core.cost import Cost, chunk_bytes, pass_flops, row_bytes, unembedding_flops
from interp_widgets.analysis._core.prompts import Prompt, PromptResult, read_prompt
from interp_widgets.analysis._core.result import provenance, record, with_axes
from interp_widgets.analysis._core.statistics import largest_sign_flip_p
from interp_widgets.analysis._core.tensors import to_numpy, wide_type
from interp_widgets.analysis.ablation.cells import MANY_CHUNKS, STRONGEST, run_cells, strongest_first
from interp_widgets.analysis.ablation.estimates import can_estimate, estimate, gradients_of
from interp_widgets.analysis.ablation.map_results import largest_effect
from interp_widgets.analysis.ablation.metric import NextTokenMetric, next_token_metric
from interp_widgets.arguments import checked
from interp_widgets.models import Model
from interp_widgets.models.capabilities import Capability
from interp_widgets.models.chat import PromptInput
from interp_widgets.models.devices import accumulation_dtype
from interp_widgets.models.engine import Trace, expects_runs, trace
from interp_widgets.models.patching import Patch

if TYPE_CHECKING:
    import pandas as pd

TracedKind = Literal["state", "mlp", "attn"]
"""What is restored: the residual stream after one block, or the MLP or attention outputs of a window of layers."""


@record
class CausalTraceResult(PromptResult):
    """How far restoring one clean value in a corrupted run restores the answer, per layer and position.

    Every axis leaves out the beginning-of-sequence token, which the model still reads.
    Source: Locating and Editing Factual Associations in GPT (Meng et al. 2022), section 2.

    Example:
        >>> prompt = "The Eiffel Tower is in the city of"
        >>> result = causal_trace(model, prompt, "Eiffel Tower", kinds="mlp", samples=2)
        >>> [result.tokens[i] for i in range(*result.subject)], result.layers_of("mlp", 3)
        ([' Eiffel', ' Tower'], (3, 4))
        >>> round(result.total_effect, 1), round(float(result.effect[0, 0, -1]), 1)  # at layer 0, last position
        (1.0, 1.0)
    """

    restored: Floats = with_axes("kinds", "layers", "places", "samples")
    """Probability of the target in the corrupted run with one clean value restored;
    NaN where a partial result has no number yet."""

    embedding: Floats = with_axes("positions", "samples")
    """Probability of the target with the clean token embedding restored, the state that enters the first block. Shows
    subject tokens whose information the first attention layer moves on at once, so that no later state holds it."""

    corrupted: Floats = with_axes("samples")
    """Probability of the target in the corrupted runs."""

    clean: float
    """Probability of the target in the clean run."""

    kinds: Sequence[str] = with_axes("kinds")
    """What was restored, each a :data:`TracedKind`: ``state`` at layer l is the residual stream after block
    l, ``mlp`` and ``attn`` are outputs in the window of layers around l, see `layers_of`."""

    window: int
    """Number of layers whose MLP or attention outputs are restored together."""

    subject: Sequence[int] = with_axes(2)
    """First and past-last position of the subject, whose embeddings got the noise."""

    target: int
    """Id of the token whose probability is traced."""

    target_token: str
    """The target, readable."""

    noise: float
    """Standard deviation of the noise in units of that of the token embeddings."""

    noise_std: float
    """Standard deviation of the noise itself, as it was added to the embeddings."""

    seed: int = 0
    """Seed of the noise."""

    sink: bool = False
    """Whether the subject begins with the token that carries the model's attention sink: noise there takes the sink
    away too, which restoring a state of the fact does not bring back."""

    layers: Sequence[int] = ()
    """(layers,) the layers of the map; all where none are given."""

    positions: Sequence[int] = ()
    """(places,) its positions in the prompt; all where none are given."""

    n_layers: int = 0
    """Number of layers of the model."""

    strongest_first: bool = False
    """Of a partial result: whether the cells that are estimated to be strongest run first; else layer by layer."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _, layers, places, _ = self.restored.shape
        for name, size in (("layers", layers), ("positions", places)):
            numbers = tuple(getattr(self, name)) or tuple(range(size))
            if len(numbers) != size:
                raise ValueError(f"CausalTraceResult.{name} must have {size} numbers, got {len(numbers)}")
            object.__setattr__(self, name, numbers)
        object.__setattr__(self, "n_layers", self.n_layers or layers)

    @property
    def traced_tokens(self) -> tuple[str, ...]:
        """(places,) readable tokens at the positions of the map."""
        return tuple(self.tokens[position] for position in self.positions)

    @property
    def effect(self) -> NDArray[np.floating[Any]]:
        """(kinds, layers, places) indirect effect: mean over the noise samples of restored minus corrupted."""
        return np.asarray((self.restored - self.corrupted).mean(-1))

    @property
    def interval(self) -> NDArray[np.floating[Any]]:
        """(kinds, layers, places, 2) 95% interval of the effect over the noise samples, by Student's t; NaN for a
        single sample."""
        return _interval(self.restored - self.corrupted)

    @property
    def p(self) -> NDArray[np.float64]:
        """(kinds, layers, places) two-sided p of each effect being 0 on average over the noise, by flipping the signs
        of whole samples, corrected over all cells of the result (`largest_sign_flip_p`); NaN for a single sample, where
        nothing is computed yet, and before the subject, where every effect is 0."""
        gain = self.restored - self.corrupted
        tested = np.isfinite(gain).all(-1) & (np.asarray(self.positions) >= self.subject[0])
        values = np.full(tested.shape, np.nan)
        values[tested] = largest_sign_flip_p(gain[tested].T)
        return values

    @property
    def embedding_effect(self) -> NDArray[np.floating[Any]]:
        """(positions,) the effect of restoring a token's clean embedding; 0 outside of the subject."""
        return np.asarray((self.embedding - self.corrupted).mean(-1))

    @property
    def total_effect(self) -> float:
        """Total effect of the corruption: clean minus mean corrupted probability."""
        return float(self.clean - self.corrupted.mean())

    def layers_of(self, kind: str, layer: int) -> tuple[int, int]:
        """First and past-last layer whose values are restored for the cell of ``kind`` at ``layer``."""
        return (layer, layer + 1) if kind == "state" else window_layers(layer, self.window, self.n_layers)

    def measures(self) -> dict[str, float | int | str | bool | None]:
        """The total effect of the noise, and for each kind the largest effect with its layer and token (NaN and ""
        where a partial result has no number)."""
        row: dict[str, float | int | str | bool | None] = {
            "target_token": self.target_token, "total_effect": self.total_effect, "clean": self.clean,
        }  # fmt: skip
        for kind, effects in zip(self.kinds, self.effect, strict=True):
            row |= largest_effect(kind, effects, self.layers, self.traced_tokens)
        return row

    def to_frame(self) -> pd.DataFrame:
        """One row per kind, layer and position: token, whether it is of the subject, effect, its interval and p,
        restored.

        Layer -1 of the kind ``state`` is the token embedding.
        """
        import pandas as pd

        kind, row, column = (axis.ravel() for axis in np.indices(self.restored.shape[:-1]))
        layer, position = np.asarray(self.layers)[row], np.asarray(self.positions)[column]
        embedded = np.arange(len(self.tokens))
        position = np.concatenate([embedded, position])
        restored = np.concatenate([self.embedding, self.restored.reshape(-1, len(self.corrupted))])
        interval = _interval(restored - self.corrupted)
        return pd.DataFrame(
            {
                "kind": np.concatenate([np.full(len(embedded), "state"), np.asarray(self.kinds)[kind]]).astype(object),
                "layer": np.concatenate([np.full(len(embedded), -1), layer]),
                "position": position,
                "token": np.asarray(self.tokens, dtype=object)[position],
                "subject": (position >= self.subject[0]) & (position < self.subject[1]),
                "effect": (restored - self.corrupted).mean(-1),
                "low": interval[:, 0],
                "high": interval[:, 1],
                "p": np.concatenate([np.full(len(embedded), np.nan), self.p.ravel()]),
                "restored": restored.mean(-1),
            }
        )


def _interval(gain: NDArray[np.floating[Any]]) -> NDArray[np.floating[Any]]:
    """(..., 2) 95% interval of the mean over the last axis."""
    samples = gain.shape[-1]
    if samples < 2:
        return np.full((*gain.shape[:-1], 2), np.nan)
    half = scipy.stats.t.ppf(0.975, samples - 1) * gain.std(-1, ddof=1) / np.sqrt(samples)
    return np.stack([gain.mean(-1) - half, gain.mean(-1) + half], axis=-1)


def window_layers(layer: int, window: int, n_layers: int) -> tuple[int, int]:
    """First and past-last layer of a window around a layer, cut off at both ends of the model.

    >>> window_layers(5, 3, 12), window_layers(5, 4, 12), window_layers(0, 4, 12)
    ((4, 7), (3, 7), (0, 2))
    """
    return max(0, layer - window // 2), min(n_layers, layer + (window + 1) // 2)


@checked
def causal_trace(
    model: Model,
    prompt: PromptInput,
    subject: str | Sequence[int],
    target: str | int | None = None,
    *,
    kinds: Sequence[TracedKind] | TracedKind = ("state", "mlp", "attn"),
    window: int | None = None,
    noise: float = 3.0,
    samples: int = 10,
    seed: int = 0,
    layers: Sequence[int] | None = None,
    positions: Sequence[int] | str | None = None,
    prepend_bos: bool | None = None,
    batch_size: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    check: Callable[[], None] | None = None,
    on_partial: Callable[[CausalTraceResult], None] | None = None,
) -> CausalTraceResult:
    """How much of an answer is restored by each single clean value in a run with a corrupted subject.

    Also called causal tracing, or activation patching from a clean into a noised run (denoising).

    Three kinds of runs: clean; corrupted, with Gaussian noise on the token embeddings of the subject, several times;
    and corrupted with the clean value of one (layer, position) restored. The effect of a cell is the probability of the
    target restored minus corrupted, paired by noise sample. Positions before the subject have effect 0: they never
    see it.

    ``"state"`` restores the residual stream after block l, as in the paper's figures; the clean embeddings of single
    subject tokens are restored too (`CausalTraceResult.embedding`). ``"mlp"`` and ``"attn"`` restore the outputs of the
    MLPs or attentions at that position in ``window`` layers around l, from l - window // 2 on, cut off at both ends.

    The paper's unit of noise is the standard deviation of the subjects' embeddings; here it is that of all numbers in
    the token embeddings, which needs no data set. The result holds the noise in this unit and as it was added.

    Args:
        model: what `load_model` returns.
        prompt: text, token ids (then nothing is added) or the messages of a chat (`chat_prompt`).
        subject: text whose last occurrence in the prompt is meant (every token that shares a character with it), or
            (start, end) token positions, without the BOS.
        target: text or id of one token; by default the model's most likely next token.
        kinds: what to restore.
        window: layers restored together for ``"mlp"`` and ``"attn"``; by default a fifth of the model's, at least 1 (10
            of 48 in the paper).
        noise: standard deviation of the noise over that of the token embeddings.
        samples: how many times noise is drawn.
        seed: of the noise; the first samples are the same for any number of them.
        layers: where to restore, all by default; negative ones count from the end.
        positions: where to restore, all by default: ``"last"``, ``"subject"``, words of the prompt, or numbers, such as
            ``range(3, 9)`` for a span; negative ones count from the end.
        prepend_bos: overrides the model's BOS policy for a text.
        batch_size: runs per chunk, and noise samples at once; by default what 60% of the free memory holds and a
            cancel can wait for.
        progress: called with (done, total) runs after every chunk.
        check: called before every chunk and layer; raises to cancel.
        on_partial: receives a partial result a few times, NaN where nothing is computed yet; where not all noise
            samples fit at once, of the samples that are finished. In a long run the cells that are estimated to first
            order to be strongest run first (`strongest_first`).

    Raises:
        ValueError: a subject that is not in the prompt, an empty or too long prompt, a target of several tokens, an
            unknown kind or one that the model lacks, an option out of range, or numbers that are not finite.
        MemoryError: a single run does not fit.

    Source: Locating and Editing Factual Associations in GPT (Meng et al. 2022), section 2; Explainability in Large
    Language Models (Luo 2024), section 3.1.2.

    Example:
        >>> result = causal_trace(model, "The Eiffel Tower is located in the city of", "Eiffel Tower", samples=2)
        >>> result.effect.shape, result.target_token
        ((3, 6, 9), ' Paris')
        >>> bool(result.effect[0, 0, -1] > 0.9)  # the clean state at the last position brings Paris back
        True
    """
    model.capabilities.require("residual_stream", "causal_trace")
    chosen = check_choices("kinds", kinds, TracedKind)
    size = default_window(model.n_layers) if window is None else window
    check_range("window", size, most=model.n_layers, owner=f"this {model.n_layers}-layer model")
    if not 0 <= noise < math.inf:
        raise ValueError(f"noise must be 0 or above, in standard deviations of the embeddings, got {noise}")
    check_range("samples", samples)
    check_range("seed", seed, 0)
    read = read_prompt(model, prompt, prepend_bos=prepend_bos)
    span = read.find(subject)
    at_layers = layer_indices(model, layers)
    at_positions = tuple(range(*span)) if positions == "subject" else read.positions(positions)
    _check_kinds(model, chosen)
    clean = trace(model, read.embeddings())
    if check is not None:
        check()
    metric = next_token_metric(model, clean.hidden, target, metric="probability")
    tracing = _TracingRun(
        read, span, chosen, at_layers, at_positions, size, noise, noise * embedding_std(model), samples, seed, clean,
        metric, Runner(model, len(read.ids), batch_size, check, progress),
    )  # fmt: skip
    if on_partial is not None:
        tracing.runner.deliver = lambda: on_partial(tracing.result(partial=True))
    tracing.run()
    return tracing.result(partial=False)


def _check_kinds(model: Model, kinds: Sequence[str]) -> None:
    """ValueError if a model lacks what is to be restored."""
    if "mlp" in kinds and model.capabilities.attention_only:
        raise ValueError(f"{model.name} has no MLPs: leave 'mlp' out of kinds")
    for kind in ("attn", "mlp"):
        if kind in kinds:
            needed: Capability = "attention" if kind == "attn" else "mlp"
            model.capabilities.require(needed, f"causal_trace(kinds=({kind!r},))", "use kinds=('state',)")


def default_window(n_layers: int) -> int:
    """Layers restored together by default: a fifth of them, at least one.

    >>> default_window(48), default_window(12), default_window(4)
    (10, 2, 1)
    """
    return max(1, round(n_layers / 5))


@torch.no_grad()
def embedding_std(model: Model) -> float:
    """Standard deviation of all numbers in the model's token embeddings, as they are fed in."""
    kind = accumulation_dtype(model.device)
    total = square = torch.zeros((), dtype=kind, device=model.device)
    for start in range(0, model.d_vocab, model.n_ctx):
        rows = model.token_embeddings(range(start, min(start + model.n_ctx, model.d_vocab))).to(kind)
        total, square = total + rows.sum(), square + (rows * rows).sum()
    mean = total / (model.d_vocab * model.d_model)
    return float((square / (model.d_vocab * model.d_model) - mean * mean).clamp(min=0).sqrt())


def _kept_bytes(model: Model, tokens: int) -> float:
    """Bytes of one sequence's trace: residual streams, module outputs, head outputs, queries, keys and values."""
    numbers = tokens * model.n_layers * (3 * model.d_model + 4 * model.n_heads * model.d_head)
    return float(numbers * model.dtype.itemsize)


# ---- the runs


@dataclass
class _TracingRun:
    """One prompt and its subject, the clean run, and the probabilities of the target computed so far."""

    prompt: Prompt
    subject: tuple[int, int]
    """Its first and past-last position; nothing before it is corrupted."""
    kinds: tuple[str, ...]
    layers: tuple[int, ...]
    positions: tuple[int, ...]
    window: int
    noise: float
    noise_std: float
    samples: int
    seed: int
    clean: Trace
    metric: NextTokenMetric
    runner: Runner
    restored: Tensor = field(init=False)
    """(kinds, layers, places, samples), NaN where not computed yet, like the next two."""
    embedding: Tensor = field(init=False)
    """(tokens, samples)"""
    corrupted: Tensor = field(init=False)
    """(samples,)"""
    strongest_first: bool = field(default=False, init=False)
    """Whether cells run in the order of their estimates."""
    finished: int = field(default=0, init=False)
    """Samples whose cells are all computed."""
    running: int = field(default=0, init=False)
    """Samples that are being computed."""

    def __post_init__(self) -> None:
        options: Any = {"dtype": wide_type(self.clean.embeddings.dtype), "device": self.runner.model.device}
        shape = (len(self.kinds), len(self.layers), len(self.positions), self.samples)
        self.restored = torch.full(shape, math.nan, **options)
        self.embedding = torch.full((self.prompt.n_shown, self.samples), math.nan, **options)
        self.corrupted = torch.full((self.samples,), math.nan, **options)
        start, end = self.subject
        self.runner.total = (end - start + len(self.cells)) * self.samples

    @property
    def cells(self) -> list[tuple[int, int, int]]:
        """Kind, row and column of each cell that sees the subject, a layer's positions in ascending order."""
        columns = [column for column in np.argsort(self.positions) if self.positions[column] >= self.subject[0]]
        return [
            (kind, row, int(column))
            for kind in range(len(self.kinds))
            for row in range(len(self.layers))
            for column in columns
        ]

    def run(self) -> None:
        """Corrupt and restore, as many noise samples at once as fit; ValueError where a probability is not finite."""
        model, length = self.runner.model, len(self.prompt.ids)
        noisy = _noisy(
            self.prompt.embeddings(), self.prompt.offset, self.subject, self.noise_std, self.samples, self.seed
        )
        runs: list[_CorruptedRuns] = []

        def corrupt(first: int, stop: int) -> None:
            corrupted = trace(model, noisy[first:stop])
            runs[:] = [_CorruptedRuns(self, corrupted, self.metric.read(corrupted.hidden))]
            self.running = stop - first

        def restore(done: int) -> None:
            samples = slice(self.finished, done)
            self.corrupted[samples] = runs[0].base
            runs[0].restore(self.restored[..., samples], self.embedding[:, samples])
            self.finished = done
            runs.clear()  # frees the trace before the next one is made

        at_once = chunk_size(
            _kept_bytes(model, length) + row_bytes(model, length, length), model.free_memory(),
            most=self.samples, batch_size=self.runner.batch_size,
        )  # fmt: skip
        run_chunks(
            self.samples, at_once, corrupt, what=f"sequence of {length} tokens", check=self.runner.check, after=restore
        )
        for values in (self.restored, self.embedding, self.corrupted):
            check_finite(values, "a probability under noise", also="too much noise, ")

    def result(self, partial: bool) -> CausalTraceResult:
        """The result so far; a partial one has the finished samples, or the running ones before any is finished."""
        count = (self.finished or self.running) if partial else self.samples
        model, target = self.runner.model, self.metric.target
        options = {"noise": self.noise, "noise_std": self.noise_std, "samples": self.samples, "seed": self.seed}
        return CausalTraceResult(
            **self.prompt.fields(),
            restored=to_numpy(self.restored[..., :count].clone()),
            embedding=to_numpy(self.embedding[:, :count].clone()),
            corrupted=to_numpy(self.corrupted[:count].clone()),
            clean=self.metric.clean,
            kinds=self.kinds,
            layers=self.layers,
            positions=self.positions,
            n_layers=model.n_layers,
            strongest_first=partial and self.strongest_first,
            window=self.window,
            subject=self.subject,
            target=target,
            target_token=model.token_strings([target])[0],
            noise=float(self.noise),
            noise_std=self.noise_std,
            seed=self.seed,
            sink=self.subject[0] == 0 and self.prompt.first_is_sink,
            partial=partial,
            provenance=provenance(
                self.runner.origin, **options, window=self.window, bos=self.prompt.offset == 1,
                layers=str(self.layers), positions=str(self.positions), **self.runner.log.facts(),
            ),
        )  # fmt: skip


@dataclass(frozen=True)
class _CorruptedRuns:
    """The corrupted runs of some noise samples, which cells continue with clean values restored."""

    tracing: _TracingRun
    corrupted: Trace
    base: Tensor
    """(samples,) probability of the target."""

    @torch.no_grad()
    def restore(self, restored: Tensor, embedding: Tensor) -> None:
        """Fill ``restored`` (kinds, layers, places, samples) and ``embedding`` (tokens, samples)."""
        tracing, (start, end) = self.tracing, self.tracing.subject
        embedding[:] = self.base  # outside of the subject the embedding is clean already
        embedding[start:end] = math.nan
        for column, position in enumerate(tracing.positions):
            if position < start:
                restored[:, :, column] = self.base
        self._run([("state", -1, position) for position in range(start, end)], embedding[start:end])
        cells = tracing.cells
        if not cells:
            return
        named = [(tracing.kinds[kind], tracing.layers[row], tracing.positions[column]) for kind, row, column in cells]
        count = len(cells) // (len(tracing.kinds) * len(tracing.layers))
        places = torch.tensor(cells).unbind(-1)
        ordered = self._estimate(cells, named)
        groups = torch.split(torch.arange(len(cells)), count) if ordered is None else strongest_first(ordered, count)
        for number, group in enumerate(groups):
            values = torch.full(
                (len(group), restored.shape[-1]), math.nan, dtype=restored.dtype, device=restored.device
            )
            at = tuple(index[group] for index in places)

            def put(at: tuple[Tensor, ...] = at, values: Tensor = values) -> None:
                restored[at] = values

            self._run([named[cell] for cell in group.tolist()], values, put)
            early = ordered is not None and number < STRONGEST and tracing.runner.early
            if early and tracing.runner.deliver is not None:
                tracing.runner.deliver()

    def _estimate(self, cells: list[tuple[int, int, int]], named: list[tuple[str, int, int]]) -> Tensor | None:
        """(cells,) by which they are ordered; None where all are quick, or cannot be estimated."""
        tracing, runner, samples = self.tracing, self.tracing.runner, len(self.base)
        long = (
            runner.deliver is not None
            and not tracing.finished
            and runner.total > MANY_CHUNKS * runner.size(self.corrupted.computed(0))
        )
        if not long or not can_estimate(runner.model, tracing.metric, self.corrupted.tokens, samples):
            return None
        runs = torch.arange(len(named) * samples)
        patches = self._patches_of(named, runs)
        places = list(dict.fromkeys((patch.site, patch.layer) for patch in patches))
        ids = tracing.prompt.ids
        at = gradients_of(runner.model, ids, tracing.metric, places, self.corrupted)
        guess = estimate(self.corrupted, at, patches, len(runs), runs % samples)
        tracing.strongest_first = True
        if runner.deliver is not None:
            runner.deliver()
        return guess.score.reshape(-1, samples).mean(-1)

    def _run(self, cells: list[tuple[str, int, int]], values: Tensor, put: Callable[[], None] = lambda: None) -> None:
        """Fill ``values`` (cells, samples) of cells (kind, layer, position); ``put`` follows every chunk."""
        tracing, samples, offset = self.tracing, len(self.base), self.tracing.prompt.offset

        def write(hidden: Tensor, runs: Tensor) -> None:
            sample = runs % samples
            # rounding differs between batches: an unchanged hidden state has exactly the corrupted run's probability
            same = (hidden == self.corrupted.hidden[sample]).all(-1)
            values[runs // samples, sample] = torch.where(same, self.base[sample], tracing.metric.read(hidden))
            put()

        run_cells(
            values.numel(), self.corrupted, tracing.runner, lambda runs: self._patches_of(cells, runs),
            lambda run: cells[run // samples][2] + offset, write, sequence=lambda runs: runs % samples,
        )  # fmt: skip

    def _patches_of(self, cells: list[tuple[str, int, int]], runs: Tensor) -> list[Patch]:
        """The patches of some runs (n,), each one cell and one sample."""
        groups: dict[tuple[str, int], list[int]] = {}
        numbers = (runs // len(self.base)).tolist()
        for row, number in enumerate(numbers):
            groups.setdefault(cells[number][:2], []).append(row)
        patches = []
        for (kind, layer), rows in groups.items():
            at = torch.tensor([cells[numbers[row]][2] + self.tracing.prompt.offset for row in rows])
            patches += self._patches(kind, layer, torch.tensor(rows), at)
        return patches

    def _patches(self, kind: str, layer: int, cell: Tensor, at: Tensor) -> list[Patch]:
        """Clean values at positions ``at`` (n,) of the cells (n,); layer -1 is what enters the first block."""
        clean = self.tracing.clean
        if kind == "state":
            return [Patch("resid", layer + 1, clean.resid[layer + 1][0, at], at, cell)]
        site: Literal["mlp", "attn"] = "mlp" if kind == "mlp" else "attn"
        inside = range(*window_layers(layer, self.tracing.window, clean.n_layers))
        return [Patch(site, index, clean.value(site, index)[0, at], at, cell) for index in inside]


def _noisy(embeddings: Tensor, offset: int, subject: tuple[int, int], std: float, samples: int, seed: int) -> Tensor:
    """(samples, tokens, d_model) embeddings (1, tokens, d_model) with noise on the subject."""
    start, end = subject
    drawn = np.random.default_rng(seed).standard_normal((samples, end - start, embeddings.shape[-1]))
    noisy = embeddings.repeat(samples, 1, 1)
    fed = slice(offset + start, offset + end)
    noisy[:, fed] += torch.from_numpy(std * drawn).to(device=noisy.device, dtype=noisy.dtype)
    return noisy


def causal_trace_cost(
    model: Model,
    n_prompt: int,
    *,
    kinds: Sequence[TracedKind] = ("state", "mlp", "attn"),
    window: int | None = None,
    samples: int = 10,
    first: int = 0,
    layers: Sequence[int] | None = None,
    positions: Sequence[int] | None = None,
) -> Cost:
    """Operations and peak bytes of `causal_trace`.

    Args:
        model: a `Model`.
        n_prompt: tokens of the prompt.
        kinds, window, samples: as in `causal_trace`.
        first: first position of the subject, if it is known.
        layers: all by default.
        positions: of the fed tokens, all by default.

    Example:
        >>> round(causal_trace_cost(model, 12).flops / 1e9, 1)
        37.7
    """
    depth = model.n_layers
    chosen = range(depth) if layers is None else [layer % depth for layer in layers]
    at = range(first, max(n_prompt, first + 1)) if positions is None else [place % n_prompt for place in positions]
    later = [place for place in at if place >= first]
    size = default_window(depth) if window is None else window
    runs, passed, expected = samples * len(later), 0.0, expects_runs(model)
    # a chunk is computed from its first position on; with all positions on average half of them
    tokens = sum(max(1.0, (n_prompt - place) if positions is not None else (n_prompt - first) / 2) for place in later)
    for kind in kinds:
        for index in chosen:
            begin = index + 1 if kind == "state" else window_layers(index, size, depth)[0]
            layers_run = depth - begin if expected.from_layer else depth
            passed += samples * layers_run * (tokens if expected.from_position else n_prompt * len(later))
    passes = pass_flops(model, (1 + samples) * n_prompt + passed / depth, n_prompt)
    flops = passes + (1 + len(chosen) * len(kinds)) * runs * unembedding_flops(model)
    kept = (1 + samples) * _kept_bytes(model, n_prompt)
    table = max(model.dtype.itemsize, 4) * len(kinds) * len(chosen) * n_prompt * samples
    return Cost(flops=float(flops), bytes=float(kept + chunk_bytes(model, runs, n_prompt) + table))
