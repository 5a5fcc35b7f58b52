"""This checkout against another one: processor time of the analyses, in turns, on one random model.

    git worktree add /tmp/before COMMIT
    python benchmarks/before_after.py /tmp/before                  # every row, both backends (ten minutes)
    python benchmarks/before_after.py /tmp/before saliency lens    # rows whose names hold one of these words

A LLaMA of 6 layers and width 256, float32. Each checkout runs in a process of its own with one thread. They take turns,
row by row and round by round, so that what else the machine does meets both alike. Printed are the medians of
processor seconds, and the median of the ratios of the rounds. Without another checkout it measures this one alone.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[1]
VOCABULARY = 8000


def model(backend: str) -> Any:
    """The random LLaMA; its word ``wN`` is token N."""
    import torch
    from saliency import word_tokenizer
    from transformers import LlamaConfig, LlamaForCausalLM

    import interp_widgets as iw

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=256, intermediate_size=1024, num_hidden_layers=6, num_attention_heads=4,
        num_key_value_heads=4, max_position_embeddings=512, initializer_range=0.06, bos_token_id=0, eos_token_id=1,
    )  # fmt: skip
    options: dict[str, Any] = {"backend": backend, "device": "cpu"}
    return iw.load_model(LlamaForCausalLM(config).eval(), tokenizer=word_tokenizer(VOCABULARY), **options)


def rows(backend: str) -> dict[str, Callable[[], object]]:
    """What is measured, by name."""
    import torch

    import interp_widgets as iw

    llama = model(backend)
    ids = torch.randint(3, VOCABULARY, (232,), generator=torch.Generator().manual_seed(7)).tolist()
    texts = [f"w{3 + i} w{4 + i} w{5 + i} w{6 + i % 7}" for i in range(500)]

    def saliency(method: Any, prompt: int, response: int) -> Callable[[], object]:
        return lambda: iw.prompt_saliency(llama, ids[:prompt], ids[prompt : prompt + response], method=method)

    return {
        "saliency exact, 64 + 64 tokens": saliency("exact", 64, 64),
        "saliency first order, 64 + 64": saliency("first_order", 64, 64),
        "saliency exact, 200 + 32": saliency("exact", 200, 32),
        "saliency first order, 200 + 32": saliency("first_order", 200, 32),
        "logit lens, 128 tokens": lambda: iw.logit_lens(llama, ids[:128]),
        "module map, 32 tokens": lambda: iw.ablate_modules(llama, ids[:32], 5),
        "head map, 64 tokens": lambda: iw.ablate_heads(llama, ids[:64], 5),
        "causal tracing, 24 tokens, 3 samples": lambda: iw.causal_trace(llama, ids[:24], (4, 7), 5, samples=3),
        "token decomposition, 64 tokens": lambda: iw.decompose_tokens(llama, ids[:64]),
        "decomposition of a logit, 128 tokens": lambda: iw.decompose_logit(llama, ids[:128], 5),
        "last states of 500 prompts": lambda: iw.last_states(llama, texts, 6),
        "30 generated tokens": lambda: llama.generate(ids[:16], max_new_tokens=30),
    }


def serve(backend: str) -> None:
    """Run the rows whose names come in, and answer each with its processor seconds."""
    import torch

    import interp_widgets

    torch.set_num_threads(1)
    table = rows(backend)
    print(Path(interp_widgets.__file__).parents[1], *table, sep="\t", flush=True)
    for line in sys.stdin:
        gc.collect()
        began = time.process_time()
        table[line.strip()]()
        print(time.process_time() - began, flush=True)


class Worker:
    """A process that runs rows with the package of one checkout."""

    def __init__(self, checkout: Path, backend: str) -> None:
        command = [sys.executable, "-W", "ignore", __file__, "--serve", backend]
        environment = {**os.environ, "PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=checkout
        )
        package, *self.names = self._read().split("\t")
        if Path(package).resolve() != checkout.resolve():
            raise RuntimeError(f"the worker took the package of {package}, not of {checkout}")

    def _read(self) -> str:
        line = self._process.stdout.readline() if self._process.stdout else ""
        if not line:
            raise RuntimeError("a worker has ended: its error stands above")
        return line.rstrip("\n")

    def seconds(self, name: str) -> float:
        """Processor seconds of one run."""
        if self._process.stdin:
            print(name, file=self._process.stdin, flush=True)
        return float(self._read())

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def measured(workers: Sequence[Worker], name: str, rounds: int) -> list[list[float]]:
    """Per worker the seconds of each round; a first one, in which routes are compared, does not count."""
    for worker in workers:
        worker.seconds(name)
    turns = [[worker.seconds(name) for worker in workers] for _ in range(rounds)]
    return [list(column) for column in zip(*turns, strict=True)]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", nargs="?", type=Path, help="another checkout")
    parser.add_argument("words", nargs="*", help="only rows whose names hold one of these words")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--backend", choices=["hooked", "bridge"], action="append")
    parser.add_argument("--serve", choices=["hooked", "bridge"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve)
        return
    checkouts = [*([] if options.before is None else [options.before.resolve()]), HERE]
    for backend in options.backend or ["hooked", "bridge"]:
        workers = [Worker(checkout, backend) for checkout in checkouts]
        print(f"\n| {backend} | seconds | after / before |\n|---|---|---|", flush=True)
        for name in workers[0].names:
            if options.words and not any(word in name for word in options.words):
                continue
            times = measured(workers, name, options.rounds)
            seconds = " → ".join(f"{statistics.median(some):.3f}" for some in times)
            ratio = statistics.median(after / before for before, after in zip(times[0], times[-1], strict=True))
            print(f"| {name} | {seconds} | {f'{ratio:.2f}' if len(times) > 1 else '–'} |", flush=True)
        for worker in workers:
            worker.close()


if __name__ == "__main__":
    main()
