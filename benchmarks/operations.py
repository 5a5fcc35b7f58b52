"""What every analysis costs on an accelerator, in numbers without noise: counted on a pretend one, so no GPU is needed.

    python benchmarks/operations.py                  # both backends, every analysis (some minutes)
    python benchmarks/operations.py saliency lens    # rows whose names hold one of these words
    python benchmarks/operations.py --backend hooked

The demo model with 38 prompt and 20 response tokens. Every row runs twice and the second run is counted, so that what
is compared once per model is left out.

- *operations*: kernels that would be launched; *copies* within the device, casts included, are kernels too.
- *waits*: how often the host waits for a value, and the device's queue runs dry: copies to the host, ``.item()``,
  results whose size depends on values. *uploads* from the host wait too, unless their memory is pinned.
- *reports*: calls of ``progress=``; one wait for each is what showing progress takes.
"""

from __future__ import annotations

import argparse
import functools
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from saliency import table

import interp_widgets as iw
from interp_widgets.models.generation import generate_ids, stepper

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests.accelerator import strict

warnings.simplefilter("ignore")

N_PROMPT, N_RESPONSE = 38, 20

Progress = Callable[[int, int], None]
Row = Callable[[iw.ModelPair, Progress], Any]


def ids(count: int, vocab: int) -> list[int]:
    return torch.randint(3, vocab, (count,), generator=torch.Generator().manual_seed(7)).tolist()


def rows(vocab: int) -> dict[str, Row]:
    """What is counted, by name."""
    tokens = ids(N_PROMPT + N_RESPONSE, vocab)
    prompt, response = tokens[:N_PROMPT], tokens[N_PROMPT:]
    target, few = response[0], iw.demo_concepts()[::40]
    zeros = iw.Ablation("mlp", 3)

    def map_of(method: Any) -> Row:
        return lambda pair, progress: iw.prompt_saliency(pair.base, prompt, response, method=method, progress=progress)

    def engine(pair: iw.ModelPair, progress: Progress) -> Any:
        return pair.base.forward(pair.base.token_embeddings(tokens)[None])

    def writing(model: iw.Model) -> list[int]:
        """20 tokens, also behind an end token."""
        return generate_ids(
            stepper(model), prompt, device=model.device, max_new_tokens=20, temperature=0, seed=0, stop=(), check=None,
            on_token=None,
        )  # fmt: skip

    def ablated_writing(pair: iw.ModelPair, progress: Progress) -> Any:
        with iw.ablation(pair.base, zeros):
            return writing(pair.base)

    @functools.cache
    def mixture(model: iw.Model) -> iw.ModModel:
        return iw.untrained_mod(model, 2)

    return {
        "forward by run": lambda pair, progress: pair.base.run(tokens),
        "forward by the engine": engine,
        "saliency exact": map_of("exact"),
        "saliency first order": map_of("first_order"),
        "saliency integrated gradients": map_of("integrated_gradients"),
        "faithfulness": lambda pair, progress: iw.faithfulness(
            pair.base, iw.prompt_saliency(pair.base, prompt, response), progress=progress
        ),
        "logit lens": lambda pair, progress: iw.logit_lens(pair.base, prompt, target=target, progress=progress),
        "module maps": lambda pair, progress: iw.ablate_modules(pair.base, prompt, target, progress=progress),
        "head map": lambda pair, progress: iw.ablate_heads(pair.base, prompt, target, progress=progress),
        "neuron map": lambda pair, progress: iw.ablate_neurons(pair.base, prompt, target, layer=3, progress=progress),
        "causal tracing": lambda pair, progress: iw.causal_trace(pair.base, prompt, (4, 7), target, progress=progress),
        "ablated prediction": lambda pair, progress: iw.ablated_prediction(pair.base, prompt, zeros),
        "token decomposition": lambda pair, progress: iw.decompose_tokens(pair.base, prompt, progress=progress),
        "decomposition of a logit": lambda pair, progress: iw.decompose_logit(pair.base, prompt, target),
        "head words": lambda pair, progress: iw.head_word_pairs(pair.base, progress=progress),
        "ffn concepts": lambda pair, progress: iw.ffn_concepts(pair.base, progress=progress),
        "neuron tokens": lambda pair, progress: iw.neuron_tokens(pair.base, layer=3, progress=progress),
        "neuron effects": lambda pair, progress: iw.neuron_effects(pair.base, prompt, target, layer=3),
        "concept directions": lambda pair, progress: iw.concept_directions(pair.base, few, layer=3, progress=progress),
        "routing": lambda pair, progress: iw.routing(mixture(pair.base), prompt, progress=progress),
        "generate 20 tokens": lambda pair, progress: writing(pair.base),
        "generate 20 tokens, mixture": lambda pair, progress: writing(mixture(pair.base)),
        "generate 20 tokens, ablated": ablated_writing,
    }


def counted(row: Row, pair: iw.ModelPair) -> list[str]:
    """The numbers of one row's second run."""
    reports: list[int] = []
    row(pair, lambda done, total: None)
    with strict.counting() as counts:
        row(pair, lambda done, total: reports.append(done))
    numbers = [counts.operations, counts.copies, counts.uploads, counts.waits, len(reports)]
    return [f"{number:,}" for number in numbers]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="only rows whose names hold one of these words")
    parser.add_argument("--backend", choices=["hooked", "bridge"], action="append")
    given = parser.parse_args(arguments)
    strict.register()
    for backend in given.backend or ["hooked", "bridge"]:
        pair = iw.load_demo_pair(device="strict", backend=backend)
        header = [f"demo model, {backend}", "operations", "copies", "uploads", "waits", "reports"]
        print("\n" + table(header, []), flush=True)
        for name, row in rows(pair.base.d_vocab).items():
            if not given.words or any(word in name for word in given.words):
                print("| " + " | ".join([name, *counted(row, pair)]) + " |", flush=True)


if __name__ == "__main__":
    main()
