"""Head word pairs against the head-by-head loop: time, memory and equality, on random models.

    python benchmarks/head_words.py                      # GPT-2-small shape, 13,000 words
    python benchmarks/head_words.py --quick              # 2,000 words, a minute
    python benchmarks/head_words.py --cpu-time           # on a machine that does other things too

All rivals run interleaved in one process on one thread, on the same embeddings, weights and word vectors (random, 300
wide, in groups so that words have neighbours); a cell is the median of their ratios:

- *published loop*: the steps of the program published with the method. Head by head; all words of a dimension sorted by
  activation; vectors of its top words looked up; a threshold per word computed when first met and kept; every
  candidate pair composed as text, all sorted by cosine, those that fail a condition thrown away.
- *plain loop*: what one writes first, as the description reads: head by head, best words selected, the threshold of
  each of a dimension's words computed there and then, every pair of words tested in Python.
- *tight loop*: head by head with all that this package does otherwise: best words selected, thresholds kept, masks.

The loops run on a few heads spread over the layers and are scaled up; what is done once (embeddings of words,
thresholds that are kept) is not.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import platform
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
from threadpoolctl import threadpool_limits
from torch import Tensor

warnings.simplefilter("ignore")

TOP, FREQUENT, WIDTH = 100, 1000, 300
SHAPES = {
    "mini": {"n_layer": 6, "n_embd": 256, "n_head": 4},
    "small": {"n_layer": 12, "n_embd": 768, "n_head": 12},
}
clock = time.perf_counter

Pair = tuple[str, str, float]


@dataclass
class Problem:
    """One model, its words and their vectors."""

    name: str
    model: Any
    words: list[str]
    vectors: np.ndarray[Any, Any]
    heads: list[tuple[int, int]]
    """Heads that the loops run on."""

    @property
    def scale(self) -> float:
        return self.model.n_layers * self.model.n_heads / len(self.heads)


def problem(name: str, words: int, heads: int) -> Problem:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    from interp_widgets.models import load_model

    torch.manual_seed(0)
    last_id = {"bos_token_id": words, "eos_token_id": words}
    config = GPT2Config(vocab_size=words + 1, n_positions=128, **last_id, initializer_range=0.06, **SHAPES[name])  # type: ignore[arg-type]
    core = Tokenizer(models.WordLevel({f"▁w{i}": i for i in range(words + 1)}, unk_token=f"▁w{words}"))
    core.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    last = f"▁w{words}"
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, bos_token=last, eos_token=last)
    model = load_model(GPT2LMHeadModel(config).eval(), tokenizer=tokenizer)
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(words // 40, WIDTH))
    vectors = centres[rng.integers(len(centres), size=words)] + 1.5 * rng.normal(size=(words, WIDTH))
    every = [(layer, head) for layer in range(model.n_layers) for head in range(model.n_heads)]
    places = np.linspace(0, len(every) - 1, min(heads, len(every))).round().astype(int)
    return Problem(name, model, [f"w{i}" for i in range(words)], vectors.astype(np.float32), [every[i] for i in places])


# ---- rivals: seconds for the whole model, and the pairs of the sampled heads' dimensions


class Lookup:
    """Unit vectors by word and thresholds computed when first met, as a user keeps them."""

    def __init__(self, p: Problem) -> None:
        units = p.vectors / np.linalg.norm(p.vectors, axis=1, keepdims=True)
        self.units = dict(zip(p.words, units, strict=True))
        self.often = units[:FREQUENT]
        self.known: dict[str, float] = {}

    def of(self, words: Sequence[str]) -> np.ndarray[Any, Any]:
        return np.stack([self.units[word] for word in words])

    def new_threshold(self, word: str) -> float:
        near = self.often @ self.units[word]
        return float(near.mean() + 1.96 * near.std())

    def threshold(self, word: str) -> float:
        if word not in self.known:
            self.known[word] = self.new_threshold(word)
        return self.known[word]


Found = dict[tuple[int, int], list[list[Pair]]]


def word_embeddings(p: Problem) -> Tensor:
    """Mean of each word's token embeddings, word by word."""
    table = p.model.weight("W_E")
    return torch.stack([table[p.model.tokens(f" {word}", prepend_bos=False)].mean(0) for word in p.words])


def activations(p: Problem, embeddings: Tensor, layer: int, head: int) -> tuple[Tensor, Tensor]:
    scale = p.model.weight("ln1_w", layer)[:, None]
    query, key = (p.model.weight(name, layer)[head] * scale for name in ("W_Q", "W_K"))
    return (embeddings @ query).T, (embeddings @ key).T


def published_loop(p: Problem) -> tuple[float, Found]:
    start = clock()
    embeddings = word_embeddings(p)
    words, lookup, found = np.char.array(p.words), Lookup(p), {}
    between = np.char.array(["="] * TOP**2)
    once = clock() - start
    for layer, head in p.heads:
        query, key = activations(p, embeddings, layer, head)
        sides = []
        for side in (query, key):
            order = side.abs().argsort(descending=True)
            best = words[order.numpy()][:, :TOP].tolist()
            sides.append((best, side.gather(1, side.abs().topk(TOP).indices)))
        rows: list[list[Pair]] = []
        for first, query_row, second, key_row in zip(*sides[0], *sides[1], strict=True):
            cosine = lookup.of(first) @ lookup.of(second).T
            before = clock()
            limits = [np.array([lookup.threshold(word) for word in side]) for side in (first, second)]
            once += clock() - before
            keep = (cosine > limits[0][:, None]) & (cosine > limits[1][None, :])
            score = np.where(keep & ((query_row[:, None] * key_row[None, :]).numpy() > 0), cosine, -100.0).ravel()
            rank = np.argsort(-score)
            texts = np.char.array(first)[rank // TOP] + between + np.char.array(second)[rank % TOP]
            pairs = sorted(zip(texts.tolist(), score[rank].tolist(), strict=True), key=lambda pair: -pair[1])
            named = [(*text.split("="), value) for text, value in pairs if value > 0]
            rows.append([(a, b, value) for a, b, value in named if a != b])
        found[layer, head] = rows
    return (clock() - start - once) * p.scale + once, found


def plain_loop(p: Problem) -> tuple[float, Found]:
    start = clock()
    embeddings = word_embeddings(p)
    lookup, found = Lookup(p), {}
    units = np.stack(list(lookup.units.values()))
    once = clock() - start
    for layer, head in p.heads:
        query, key = activations(p, embeddings, layer, head)
        rows: list[list[Pair]] = []
        for query_row, key_row in zip(query, key, strict=True):
            first, second = (side.abs().topk(TOP).indices.tolist() for side in (query_row, key_row))
            limits = [[lookup.new_threshold(p.words[i]) for i in side] for side in (first, second)]
            cosine = (units[first] @ units[second].T).tolist()
            active, other = query_row[first].tolist(), key_row[second].tolist()
            pairs = [
                (p.words[a], p.words[b], cosine[i][j])
                for i, a in enumerate(first)
                for j, b in enumerate(second)
                if a != b and active[i] * other[j] > 0 and cosine[i][j] > max(limits[0][i], limits[1][j], 0)
            ]
            rows.append(sorted(pairs, key=lambda pair: -pair[2]))
        found[layer, head] = rows
    return (clock() - start - once) * p.scale + once, found


def tight_loop(p: Problem) -> tuple[float, Found]:
    start = clock()
    embeddings = word_embeddings(p)
    lookup, found = Lookup(p), {}
    units = np.stack(list(lookup.units.values()))
    once = clock() - start
    for layer, head in p.heads:
        query, key = activations(p, embeddings, layer, head)
        rows: list[list[Pair]] = []
        for query_row, key_row in zip(query, key, strict=True):
            best = [side.abs().topk(TOP).indices.numpy() for side in (query_row, key_row)]
            first, second = ([p.words[i] for i in side] for side in best)
            cosine = units[best[0]] @ units[best[1]].T
            before = clock()
            limits = [np.array([lookup.threshold(word) for word in side]) for side in (first, second)]
            once += clock() - before
            keep = (cosine > limits[0][:, None]) & (cosine > limits[1]) & (cosine > 0)
            keep &= (query_row[best[0]][:, None] * key_row[best[1]][None, :]).numpy() > 0
            keep &= best[0][:, None] != best[1]
            pairs = [(first[i], second[j], float(cosine[i, j])) for i, j in np.argwhere(keep)]
            rows.append(sorted(pairs, key=lambda pair: -pair[2]))
        found[layer, head] = rows
    return (clock() - start - once) * p.scale + once, found


def ours(p: Problem) -> tuple[float, Found]:
    from interp_widgets.analysis.head_words import head_word_pairs

    start = clock()
    result = head_word_pairs(p.model, words=p.words, vectors=p.vectors, top=TOP, frequent=FREQUENT)
    seconds = clock() - start
    rows = {
        cell: [
            [(pair.query, pair.key, pair.score) for pair in result.dimension_pairs(*cell, d)]
            for d in range(p.model.d_head)
        ]
        for cell in p.heads
    }
    return seconds, rows


RIVALS: dict[str, Callable[[Problem], tuple[float, Found]]] = {
    "plain loop": plain_loop,
    "published loop": published_loop,
    "tight loop": tight_loop,
    "this package": ours,
}


# ---- measuring


def resident() -> tuple[float, float]:
    """Resident and peak megabytes of this process."""
    found = {}
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(("VmRSS", "VmHWM")):
            found[line[:5]] = int(line.split()[1]) / 1024
    return found["VmRSS"], found["VmHWM"]


def measure(rival: Callable[[Problem], tuple[float, Found]], p: Problem) -> tuple[float, float, Found]:
    """Seconds, megabytes beyond what was held before, and the pairs."""
    linux = sys.platform == "linux"
    gc.collect()
    if linux:
        ctypes.CDLL("libc.so.6").malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    before = resident()[0] if linux else float("nan")
    seconds, found = rival(p)
    return seconds, resident()[1] - before if linux else float("nan"), found


def differing(own: Found, other: Found, keep: int = 100) -> float:
    """Share of the pairs of the loop that ours has not, of the dimensions that were not cut."""
    rows = [pair for cell in other for pair in zip(own[cell], other[cell], strict=True) if len(pair[1]) < keep]
    lists = [({pair[:2] for pair in a}, {pair[:2] for pair in b}) for a, b in rows]
    return sum(len(a ^ b) for a, b in lists) / max(1, sum(len(b) for _, b in lists))


def run(name: str, words: int, heads: int, repeats: int) -> None:
    p = problem(name, words, heads)
    ours(p)  # hashes the weights, which later runs do not do again
    timings: dict[str, list[float]] = {rival: [] for rival in RIVALS}
    memory: dict[str, float] = dict.fromkeys(RIVALS, 0.0)
    found: dict[str, Found] = {}
    for _ in range(repeats):
        for rival, function in RIVALS.items():
            seconds, megabytes, found[rival] = measure(function, p)
            timings[rival].append(seconds)
            memory[rival] = max(memory[rival], megabytes)
    own = timings["this package"]
    for rival, seconds in timings.items():
        ratio = statistics.median(a / b for a, b in zip(seconds, own, strict=True))
        print(
            f"{name} | {words} words | {rival} | {statistics.median(seconds):.2f} s | {ratio:.1f} x ours | "
            f"{memory[rival]:.0f} MB | pairs that differ: {differing(found['this package'], found[rival]):.1e}",
            flush=True,
        )
    sizes = [len(row) for rows in found["tight loop"].values() for row in rows]
    print(f"{name} | pairs per dimension: mean {np.mean(sizes):.0f}, most {max(sizes)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Head word pairs against the head-by-head loop.")
    parser.add_argument("--quick", action="store_true", help="the mini shape with 2,000 words, to see that it runs")
    parser.add_argument("--models", nargs="+", default=list(SHAPES), choices=list(SHAPES))
    parser.add_argument("--words", type=int, default=13_000)
    parser.add_argument("--heads", type=int, default=6, help="heads that the loops run on")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--cpu-time", action="store_true", help="processor time instead of wall time")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    limits = threadpool_limits(options.threads)  # NumPy's products too
    if options.cpu_time:
        global clock
        clock = time.process_time
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("torch", "numpy", "transformer-lens"))
    timed = "processor time" if clock is time.process_time else "wall time"
    print(f"{time.strftime('%Y-%m-%d')}; {options.threads} thread(s), {platform.machine()}; {timed}; {versions}")
    with limits:
        if options.quick:
            return run("mini", 2000, 2, 1)
        for name in options.models:
            run(name, options.words, options.heads, options.repeats)


if __name__ == "__main__":
    main()
