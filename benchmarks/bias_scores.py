"""StereoSet's gender triplets on a model of GPT-2-small shape: in batches against sentence by sentence.

    python benchmarks/bias_scores.py DEV.json                   # StereoSet's official file, two threads
    python benchmarks/bias_scores.py DEV.json --threads 1 --rounds 3 --sample 100

The 255 intrasentence triplets about gender, 765 sentences. The rival is the loop of the published code: one pass of the
model for each sentence, a softmax over the vocabulary at each token, the first token from the beginning-of-text token.
Words stand for tokens, since the weights are random. Both run interleaved in one process; the loop runs on ``--sample``
sentences drawn at random and is scaled up. The scores of both are compared.
"""

from __future__ import annotations

import argparse
import re
import statistics
import time
from typing import Any

import numpy as np
import torch
from saliency import machine
from transformers import GPT2Config, GPT2LMHeadModel

from interp_widgets import load_model, read_stereoset
from interp_widgets.analysis.continuations import Continuation, score_continuations

BOS = 50_256


def sentences_of(path: str) -> list[tuple[int, ...]]:
    """A number for each word of the sentences."""
    number: dict[str, int] = {}
    chosen = [one for one in read_stereoset(path) if one.domain == "gender" and one.task == "intrasentence"]
    words = [re.findall(r"\w+|[^\w\s]", sentence) for one in chosen for sentence in one.sentences]
    return [tuple(number.setdefault(word, len(number)) for word in sentence) for sentence in words]


@torch.no_grad()
def loop(hf: Any, sentences: list[tuple[int, ...]]) -> np.ndarray[Any, Any]:
    first = torch.softmax(hf(torch.tensor([[BOS]])).logits[0, 0], -1)
    scores = []
    for ids in sentences:
        rows = torch.softmax(hf(torch.tensor([ids])).logits[0], -1)
        each = [first[ids[0]].item(), *(rows[k - 1, ids[k]].item() for k in range(1, len(ids)))]
        scores.append(2 ** np.mean(np.log2(each)))
    return np.array(scores)


def ours(model: Any, sentences: list[tuple[int, ...]]) -> np.ndarray[Any, Any]:
    first = [Continuation((BOS,), ids[:1]) for ids in sentences]
    parts = list(dict.fromkeys([*first, *(Continuation(ids[:1], ids[1:]) for ids in sentences if ids[1:])]))
    found = {part: one.log_probability for part, one in zip(parts, score_continuations(model, parts), strict=True)}
    rows = [[found[part] for part in (begun, Continuation(ids[:1], ids[1:])) if part.ids]
            for begun, ids in zip(first, sentences, strict=True)]  # fmt: skip
    return np.array([np.exp(np.concatenate(row).mean()) for row in rows])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", help="StereoSet's official file")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sample", type=int, default=100)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    hf = GPT2LMHeadModel(GPT2Config()).eval()
    model = load_model(hf)
    sentences = sentences_of(options.data)
    chosen = np.random.default_rng(0).choice(len(sentences), options.sample, replace=False).tolist()
    some = [sentences[i] for i in chosen]
    error = np.abs(ours(model, sentences)[chosen] / loop(hf, some) - 1).max()
    print(
        f"{machine('cpu')}; {options.threads} threads; {len(sentences)} sentences; "
        f"largest difference of scores {error:.1e}"
    )
    ratios = []
    for _ in range(options.rounds):
        start = time.perf_counter()
        loop(hf, some)
        middle = time.perf_counter()
        ours(model, sentences)
        end = time.perf_counter()
        slow = (middle - start) * len(sentences) / len(some)
        ratios.append(slow / (end - middle))
        print(f"one by one ~{slow:6.1f} s   batches {end - middle:6.1f} s   ratio {ratios[-1]:.1f}")
    print(f"median ratio {statistics.median(ratios):.1f}")


if __name__ == "__main__":
    main()
