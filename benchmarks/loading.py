"""Memory and time of `load_model`, of a made-up LLaMA with random weights, each load in a process of its own.

    python benchmarks/loading.py                                # 250 million parameters: 1 GB in float32
    python benchmarks/loading.py --millions 100 --types float32
    python benchmarks/loading.py --quick                        # 20 million, seconds

Printed are the size of the weights in the type that they are loaded in, the peak of anonymous memory during the load
beyond what the process held before it (pages mapped from the weights' file are not anonymous: the system drops and
reads them again as it likes), what is still held after it, and the time. A first load of the demo model goes ahead, so
that imports do not count. *folder* reads the weights' file; *memory* takes a transformers model, which is there before;
*processed* folds the norms and centres the weights, so that it holds weights of its own.
"""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

VOCABULARY = 8192
D_MODEL = 1024


def write_model(folder: Path, millions: int, dtype: torch.dtype) -> None:
    """Save a random LLaMA of about this many million parameters."""
    from transformers import LlamaConfig, LlamaForCausalLM

    each = 4 * D_MODEL**2 + 3 * D_MODEL * 3 * D_MODEL
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=D_MODEL,
        intermediate_size=3 * D_MODEL,
        num_hidden_layers=max(1, round((millions * 1e6 - 2 * VOCABULARY * D_MODEL) / each)),
        num_attention_heads=16,
        max_position_embeddings=2048,
    )
    torch.manual_seed(0)
    LlamaForCausalLM(config).to(dtype).save_pretrained(folder)


class AnonymousMemory:
    """The peak of this process's anonymous memory while the block runs, in bytes beyond what was held before it."""

    def __enter__(self) -> AnonymousMemory:
        gc.collect()
        self.before = self.peak = self._now()
        self._done = threading.Event()
        self._watcher = threading.Thread(target=self._watch)
        self._watcher.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._watcher.join()
        self.peak -= self.before
        gc.collect()
        self.held = self._now() - self.before

    def _watch(self) -> None:
        while not self._done.wait(0.001):
            self.peak = max(self.peak, self._now())

    @staticmethod
    def _now() -> int:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))


def measure(source: str, options: dict[str, Any]) -> dict[str, float]:
    """Load a folder, or the transformers model in it, once; bytes and seconds."""
    from transformers import AutoModelForCausalLM

    from interp_widgets import load_model

    load_model("demo-base", **{**options, "dtype": "float32"})
    kind, folder = source.split(":", 1)
    dtype = getattr(torch, options.pop("dtype"))
    given: Any = folder if kind == "folder" else AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    with AnonymousMemory() as memory:
        start = time.perf_counter()
        model = load_model(given, **options, **({"dtype": dtype} if kind == "folder" else {}))
        seconds = time.perf_counter() - start
    if model.dtype != dtype:
        raise ValueError(f"{source} was loaded as {model.dtype}, not as {dtype}")
    size = model.parameter_count * dtype.itemsize
    return {"size": size, "peak": memory.peak, "held": memory.held, "seconds": seconds}


def in_a_process(source: str, **options: Any) -> dict[str, float]:
    """What `measure` gives in a fresh process."""
    command = [sys.executable, __file__, "--one", json.dumps([source, options])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return {key: float(value) for key, value in json.loads(done.stdout.splitlines()[-1]).items()}


def rows(
    folder: Path, millions: int, types: Sequence[str], backends: Sequence[str], loaded: Sequence[str]
) -> list[tuple[str, dict[str, float]]]:
    """A label and what was measured for every way to load the models that are written to ``folder``."""
    measured = []
    for stored in types:
        write_model(folder / stored, millions, getattr(torch, stored))
        for backend in backends:
            for dtype in loaded or [stored]:
                for kind, processed in (("folder", False), ("memory", False), ("folder", True)):
                    label = f"{kind}, {backend}, {stored} file as {dtype}{', processed' if processed else ''}"
                    options = {"backend": backend, "dtype": dtype, "processed": processed}
                    measured.append((label, in_a_process(f"{kind}:{folder / stored}", **options)))
    return measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--millions", type=int, default=250, help="parameters of the model, in millions")
    parser.add_argument("--types", nargs="+", default=["float32", "bfloat16"], help="what the files hold")
    parser.add_argument("--load-as", nargs="+", default=[], help="what is loaded; by default what the file holds")
    parser.add_argument("--backends", nargs="+", default=["hooked", "bridge"])
    parser.add_argument("--quick", action="store_true", help="20 million parameters")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(*json.loads(options.one))))
        return
    with tempfile.TemporaryDirectory() as folder:
        measured = rows(
            Path(folder), 20 if options.quick else options.millions, options.types, options.backends, options.load_as
        )
    if options.json:
        print(json.dumps(dict(measured)))
        return
    print("| load | weights (MB) | peak (MB) | peak / weights | held (MB) | seconds |\n|---|---|---|---|---|---|")
    for label, row in measured:
        size, peak, held = (row[key] / 2**20 for key in ("size", "peak", "held"))
        print(f"| {label} | {size:.0f} | {peak:.0f} | {peak / size:.2f} | {held:.0f} | {row['seconds']:.1f} |")


if __name__ == "__main__":
    main()
