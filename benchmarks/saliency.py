"""Prompt saliency against the loop a user writes first, Captum and Inseq: time, memory and error, on random models.

    python benchmarks/saliency.py                    # both models, all sizes (about an hour on two cores)
    python benchmarks/saliency.py --quick            # one small size, a minute
    python benchmarks/saliency.py --threads 1 --cpu-time      # on a machine that does other things too
    python benchmarks/saliency.py --spans            # a prompt of 1,024 tokens by sentence and by token
    python benchmarks/saliency.py --device cuda --llama7b     # the 7-billion LLaMA shape in bfloat16, N = M = 200

All rivals run interleaved in one process on the same weights and tokens; a cell is the median of their ratios. Rivals
run on the plain transformers model, where they are fastest:

- *loop*, first order: one forward pass, one backward pass per response token, parameters left trainable; exact: one
  forward pass with all positions unembedded per zeroed prompt token.
- *Captum*: ``LLMGradientAttribution(LayerGradientXActivation)`` and ``LLMAttribution(FeatureAblation)`` per token with
  ``use_cached_outputs=False`` (cached outputs are wrong with transformers 5).
- *Inseq*: ``input_x_gradient`` and ``occlusion``; left out where it is not installed.

What would take minutes is run on a few response tokens (or perturbations) spread evenly and scaled up: marked ``~``.
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
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

warnings.simplefilter("ignore")

SIZES = ((64, 64), (32, 200), (200, 32), (200, 200))
PATIENCE = 15.0
"""Seconds after which a rival is run on a sample only."""


clock = time.perf_counter


# ---- models


def hf_model(name: str, vocab: int = 50257, context: int = 1024) -> Any:
    """Random GPT-2 shapes: ``small``, or ``mini`` with 6 layers of width 256."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    shape: dict[str, Any] = {"n_layer": 6, "n_embd": 256, "n_head": 4} if name == "mini" else {}
    # weights large enough that single tokens matter: differences of probabilities are then more than rounding
    return GPT2LMHeadModel(GPT2Config(vocab_size=vocab, n_positions=context, initializer_range=0.06, **shape)).eval()


def word_tokenizer(vocab: int = 50257) -> Any:
    """A tokenizer whose word ``wN`` is token N, so that every rival reads exactly the same ids."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.WordLevel({f"w{i}": i for i in range(vocab)}, unk_token="w0"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    last = f"w{vocab - 1}"
    return PreTrainedTokenizerFast(
        tokenizer_object=core, unk_token="w0", bos_token=last, eos_token=last, pad_token=last
    )


def words(ids: Sequence[int]) -> str:
    return " ".join(f"w{i}" for i in ids)


@dataclass
class Problem:
    """One model and one size."""

    name: str
    hf: Any
    model: Any
    tokenizer: Any
    prompt: list[int]
    response: list[int]

    @property
    def sizes(self) -> tuple[int, int]:
        return len(self.prompt), len(self.response)

    def embeddings(self) -> Tensor:
        ids = torch.tensor([self.prompt + self.response[:-1]], device=self.hf.device)
        return self.hf.get_input_embeddings()(ids).detach()

    def aimed(self, logits: Tensor) -> Tensor:
        """(response,) probabilities."""
        index = torch.arange(len(self.response)), torch.tensor(self.response)
        return logits[0, len(self.prompt) - 1 :].float().softmax(-1)[index]


@dataclass
class Timing:
    """What a rival did once."""

    seconds: float
    megabytes: float
    matrix: np.ndarray[Any, Any] | None = None
    sampled: bool = False


# ---- rivals: each returns its matrix (or None), the factor by which its time must be scaled, and the seconds of what
# is done once however long the text is, which are not scaled

Outcome = tuple["np.ndarray[Any, Any] | None", float, float]


def spread(total: int, wanted: int) -> list[int]:
    """Evenly spread indices."""
    if wanted >= total:
        return list(range(total))
    return sorted({round((i + 0.5) * total / wanted - 0.5) for i in range(wanted)})


def loop_first_order(p: Problem, sample: int) -> Outcome:
    chosen = spread(len(p.response), sample)
    embeddings = p.embeddings().requires_grad_(True)
    start = clock()
    values, columns = p.aimed(p.hf(inputs_embeds=embeddings).logits), []
    once = clock() - start
    for m in chosen:
        p.hf.zero_grad()
        embeddings.grad = None
        values[m].backward(retain_graph=True)
        columns.append((embeddings.grad * embeddings.detach())[0, : len(p.prompt)].float().sum(-1))
    p.hf.zero_grad(set_to_none=True)
    matrix = np.full(p.sizes, np.nan)
    matrix[:, chosen] = torch.stack(columns, 1).cpu().numpy()
    return matrix, len(p.response) / len(chosen), once


def captum_first_order(p: Problem, sample: int) -> Outcome:
    from captum.attr import LayerGradientXActivation, LLMGradientAttribution, TextTokenInput

    attribution = LLMGradientAttribution(LayerGradientXActivation(p.hf, p.hf.get_input_embeddings()), p.tokenizer)
    if sample >= len(p.response):
        result = attribution.attribute(TextTokenInput(words(p.prompt), p.tokenizer), torch.tensor(p.response))
        return result.token_attr.T.cpu().numpy(), 1.0, 0.0
    # a response token costs as much as one response token after so many more prompt tokens
    chosen = spread(len(p.response), sample)
    for m in chosen:
        longer = TextTokenInput(words(p.prompt + p.response[:m]), p.tokenizer)
        attribution.attribute(longer, torch.tensor(p.response[m : m + 1]))
    return None, len(p.response) / len(chosen), 0.0


def inseq_first_order(p: Problem, sample: int) -> Outcome:
    return run_inseq(p, "input_x_gradient", sample)


def run_inseq(p: Problem, method: str, sample: int) -> Outcome:
    import inseq

    model = inseq.load_model(p.hf, method, tokenizer=p.tokenizer)
    model.pad_token = p.tokenizer.pad_token
    text = words(p.prompt)
    n, m = p.sizes
    here = {}
    if sample < m:
        first = n + (m - sample) // 2
        here = {"attr_pos_start": first, "attr_pos_end": first + sample}
    result = model.attribute(text, words(p.prompt + p.response), show_progress=False, pretty_progress=False, **here)
    matrix = result.sequence_attributions[0].target_attributions
    if matrix.ndim == 3:
        matrix = matrix.sum(-1)
    whole = matrix.shape[1] == m
    return (matrix[:n].detach().cpu().numpy() if whole else None), m / matrix.shape[1], 0.0


def loop_exact(p: Problem, sample: int) -> Outcome:
    chosen = spread(len(p.prompt), sample)
    rows = []
    with torch.no_grad():
        embeddings = p.embeddings()
        start = clock()
        full = p.aimed(p.hf(inputs_embeds=embeddings).logits)
        once = clock() - start
        for n in chosen:
            zeroed = embeddings.clone()
            zeroed[0, n] = 0
            rows.append(full - p.aimed(p.hf(inputs_embeds=zeroed).logits))
    matrix = np.full(p.sizes, np.nan)
    matrix[chosen] = torch.stack(rows).cpu().numpy()
    return matrix, len(p.prompt) / len(chosen), once


def captum_exact(p: Problem, sample: int) -> Outcome:
    """N + 1 evaluations, each of M forward passes: ``sample`` of all those passes, spread over the response."""
    from captum.attr import FeatureAblation, LLMAttribution, TextTokenInput

    attribution = LLMAttribution(FeatureAblation(p.hf), p.tokenizer, attr_target="prob")
    n, m = p.sizes
    with torch.no_grad():
        if sample >= (n + 1) * m:
            inp = TextTokenInput(words(p.prompt), p.tokenizer)
            result = attribution.attribute(inp, torch.tensor(p.response), use_cached_outputs=False)
            return result.token_attr.T.cpu().numpy(), 1.0, 0.0
        chosen = spread(m, sample)
        for index in chosen:
            longer = TextTokenInput(words(p.prompt + p.response[:index]), p.tokenizer)
            attribution._forward_func(longer.to_tensor(), longer, torch.tensor(p.response[index : index + 1]))
    return None, (n + 1) * m / len(chosen), 0.0


def inseq_exact(p: Problem, sample: int) -> Outcome:
    """Occlusion of every token before each response token; a sample of response tokens."""
    return run_inseq(p, "occlusion", sample)


def ours(method: str) -> Callable[[Problem, int], Outcome]:
    def run(p: Problem, sample: int) -> Outcome:
        from interp_widgets.analysis.saliency import prompt_saliency

        found = prompt_saliency(p.model, p.prompt, p.response, method=method)  # type: ignore[arg-type]
        return found.importance, 1.0, 0.0

    return run


@dataclass
class Contest:
    """One method's rivals; the first is the one that ratios refer to, the last is ours."""

    title: str
    rivals: dict[str, Callable[[Problem, int], Outcome]]
    samples: dict[str, Callable[[int, int], int]] = field(default_factory=dict)
    """Response tokens (or passes) that a rival is run on when all would take too long."""


def contests(with_inseq: bool) -> list[Contest]:
    first = {"loop": loop_first_order, "Captum": captum_first_order, "Inseq": inseq_first_order}
    exact = {"loop": loop_exact, "Captum per token": captum_exact, "Inseq": inseq_exact}
    if not with_inseq:
        first.pop("Inseq")
        exact.pop("Inseq")
    return [
        Contest("First order", {**first, "this package": ours("first_order")}),
        Contest("Exact occlusion", {**exact, "this package": ours("exact")}),
    ]


# ---- measuring


def _resident() -> tuple[float, float]:
    """Resident and peak megabytes of this process."""
    found = {}
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(("VmRSS", "VmHWM")):
            found[line[:5]] = int(line.split()[1]) / 1024
    return found["VmRSS"], found["VmHWM"]


def _forget_peak() -> None:
    gc.collect()
    if sys.platform == "linux":
        ctypes.CDLL("libc.so.6").malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def measure(rival: Callable[[Problem, int], Outcome], p: Problem, sample: int) -> Timing:
    """Run once; memory is the peak beyond what the process held before."""
    cuda = p.hf.device.type == "cuda"
    if cuda:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated() / 2**20
    elif sys.platform == "linux":
        _forget_peak()
        before = _resident()[0]
    start = clock()
    matrix, factor, once = rival(p, sample)
    if cuda:
        torch.cuda.synchronize()
    seconds = once + (clock() - start - once) * factor
    if cuda:
        megabytes = torch.cuda.max_memory_allocated() / 2**20 - before
    else:
        megabytes = max(0.0, _resident()[1] - before) if sys.platform == "linux" else float("nan")
    return Timing(seconds, megabytes, matrix, factor != 1.0)


def sample_for(rival: Callable[[Problem, int], Outcome], p: Problem, full: int) -> int:
    """How many response tokens (or passes) of this rival fit into the patience."""
    start = clock()
    rival(p, 1)
    fits = int(PATIENCE / max(clock() - start, 1e-9))
    return full if fits >= full else max(1, min(fits, 8))


def compare(contest: Contest, p: Problem, repeats: int) -> dict[str, list[Timing]]:
    n, m = p.sizes
    full = {name: n if (contest.title, name) == ("Exact occlusion", "loop") else m for name in contest.rivals}
    if "Captum per token" in full:
        full["Captum per token"] = (n + 1) * m
    samples = {name: full[name] if name == "this package" else sample_for(rival, p, full[name])
               for name, rival in contest.rivals.items()}  # fmt: skip
    contest.rivals["this package"](p, 0)  # the first run compares the equations with the model's own
    found: dict[str, list[Timing]] = {name: [] for name in contest.rivals}
    for turn in range(repeats):
        for name, rival in contest.rivals.items():
            slow = samples[name] < full[name] and samples[name] < 4
            if slow and turn:  # what takes minutes is run once; its time stands in every pair
                found[name].append(found[name][0])
                continue
            found[name].append(measure(rival, p, samples[name]))
    return found


def error(found: dict[str, list[Timing]]) -> float:
    """Largest difference to the loop, against the largest number, where the loop was run."""
    own, loop = found["this package"][-1].matrix, found["loop"][-1].matrix
    if own is None or loop is None:
        return float("nan")
    known = np.isfinite(loop)
    return float(np.abs(own - loop)[known].max() / np.abs(loop[known]).max())


def row(p: Problem, found: dict[str, list[Timing]]) -> list[str]:
    """Ratios (rival's time over ours), our seconds, peak memories, our error."""
    n, m = p.sizes
    cells = [p.name, f"{n}, {m}"]
    own = found["this package"]
    for name, timings in found.items():
        if name == "this package":
            continue
        ratio = statistics.median(a.seconds / b.seconds for a, b in zip(timings, own, strict=True))
        cells.append(("~" if timings[0].sampled else "") + (f"{ratio:.1f}" if ratio < 100 else f"{ratio:,.0f}"))
    cells.append(f"{statistics.median(t.seconds for t in own):.2f}")
    cells.append(" / ".join(f"{max(t.megabytes for t in timings):.0f}" for timings in found.values()))
    cells.append(f"{error(found):.0e}")
    return cells


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join(lines + ["| " + " | ".join(cells) + " |" for cells in rows])


def machine(device: str) -> str:
    names = ("torch", "transformers", "transformer-lens", "captum", "inseq")
    versions = []
    for name in names:
        try:
            versions.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            versions.append(f"{name} not installed")
    threads = f"{torch.get_num_threads()} thread(s), {platform.machine()}"
    where = torch.cuda.get_device_name() if device == "cuda" else threads
    timed = "processor time" if clock is time.process_time else "wall time"
    stack = ", ".join([f"Python {platform.python_version()}", *versions])
    return f"{time.strftime('%Y-%m-%d')}; {where}; {timed}; float32; {stack}."


def random_ids(n: int, m: int, vocab: int) -> tuple[list[int], list[int]]:
    ids = torch.randint(0, vocab - 1, (n + m,), generator=torch.Generator().manual_seed(7)).tolist()
    return ids[:n], ids[n:]


def run_models(names: Sequence[str], sizes: Sequence[tuple[int, int]], repeats: int, device: str, inseq: bool) -> None:
    from interp_widgets.models import load_model

    print(machine(device), flush=True)
    results: dict[str, list[list[str]]] = {}
    headers: dict[str, list[str]] = {}
    for name in names:
        hf = hf_model(name).to(device)
        model, tokenizer = load_model(hf, device=device), word_tokenizer()
        for n, m in sizes:
            for contest in contests(inseq):
                p = Problem(name, hf, model, tokenizer, *random_ids(n, m, 50257))
                found = compare(contest, p, repeats)
                rivals = [r for r in found if r != "this package"]
                headers[contest.title] = ["model", "N, M", *(f"× {r}" for r in rivals), "seconds",
                                          "peak MB: " + " / ".join(found), "relative error"]  # fmt: skip
                line = row(p, found)
                results.setdefault(contest.title, []).append(line)
                print(contest.title, *line, sep=" | ", flush=True)
    for title, rows in results.items():
        print(f"\n{title}: times as fast as\n\n{table(headers[title], rows)}", flush=True)


def run_llama7b(device: str, repeats: int) -> None:
    """Both methods at the 7-billion LLaMA shape in bfloat16, N = M = 200; random weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from interp_widgets.analysis.saliency import prompt_saliency
    from interp_widgets.models import load_model

    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device(device):
            hf = LlamaForCausalLM(LlamaConfig(max_position_embeddings=2048)).eval()
    finally:
        torch.set_default_dtype(default)
    model = load_model(hf, device=device, dtype=torch.bfloat16)
    del hf
    print(model, model.self_check.summary(), flush=True)
    prompt, response = random_ids(200, 200, model.d_vocab)
    rows = []
    for method in ("first_order", "exact"):
        seconds = []
        for _ in range(repeats + 1):  # the first is a warm-up, which hashes the weights too
            if device == "cuda":
                torch.cuda.synchronize()
                torch.cuda.reset_peak_memory_stats()
            start = time.perf_counter()
            result = prompt_saliency(model, prompt, response, method=method)  # type: ignore[arg-type]
            seconds.append(time.perf_counter() - start)
        peak = torch.cuda.max_memory_allocated() / 2**30 if device == "cuda" else float("nan")
        rows.append(
            [method, f"{statistics.median(seconds[1:]):.2f}", f"{peak:.1f}", str(result.provenance["largest_chunk"])]
        )
    print(table(["method", "seconds", "peak GB with the model", "largest chunk"], rows), flush=True)


def run_spans(device: str, repeats: int) -> None:
    """Exact importance of a long prompt by sentence, of the tokens of one sentence, and of all tokens."""
    from interp_widgets.analysis.saliency import prompt_saliency
    from interp_widgets.models import load_model

    print(machine(device), flush=True)
    hf = hf_model("mini", context=2048).to(device)
    model = load_model(hf, device=device)
    prompt, response = random_ids(1024, 20, 50257)
    p = Problem("mini", hf, model, None, prompt, response)
    sentences = [(start, min(start + 20, 1024)) for start in range(0, 1024, 20)]
    asked: dict[str, dict[str, Any]] = {
        "by sentence": {"spans": sentences},
        "tokens of one sentence": {"within": sentences[25]},
        "by token": {},
    }
    prompt_saliency(model, prompt[:8], response[:2])  # the first run compares the equations with the model's own
    rows = []
    for name, options in asked.items():
        seconds = []
        for _ in range(1 if name == "by token" else repeats):
            start = clock()
            found = prompt_saliency(model, prompt, response, **options)
            seconds.append(clock() - start)
        spans = found.spans or [(n, n + 1) for n in range(1024)]
        chosen = spread(len(spans), 6)
        start = clock()
        loop = loop_spans(p, [spans[i] for i in chosen])
        ratio = (clock() - start) / len(chosen) * len(spans) / statistics.median(seconds)
        gap = np.abs(found.importance[chosen] - loop).max() / np.abs(loop).max()
        rows.append([name, f"{len(spans):,}", f"{statistics.median(seconds):.1f}", f"~{ratio:.1f}", f"{gap:.0e}"])
        print(*rows[-1], sep=" | ", flush=True)
    print(table(["exact importance", "runs", "seconds", "loop", "error"], rows), flush=True)


def loop_spans(p: Problem, spans: Sequence[Sequence[int]]) -> np.ndarray[Any, Any]:
    """One plain forward pass per span with its embeddings zeroed, against one of the whole."""
    with torch.no_grad():
        embeddings = p.embeddings()
        full, rows = p.aimed(p.hf(inputs_embeds=embeddings).logits), []
        for start, stop in spans:
            zeroed = embeddings.clone()
            zeroed[0, start:stop] = 0
            rows.append(full - p.aimed(p.hf(inputs_embeds=zeroed).logits))
    return torch.stack(rows).cpu().numpy()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one small size, to see that it runs")
    parser.add_argument("--models", nargs="+", default=["mini", "small"], choices=["mini", "small"])
    parser.add_argument("--sizes", nargs="+", default=None, help="such as 64,64 200,32")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--llama7b", action="store_true", help="the 7-billion LLaMA shape in bfloat16 only")
    parser.add_argument("--spans", action="store_true", help="a prompt of 1,024 tokens by sentence and by token only")
    parser.add_argument("--no-inseq", action="store_true")
    parser.add_argument("--threads", type=int, default=None, help="of torch; default: all cores")
    parser.add_argument(
        "--cpu-time", action="store_true", help="processor time instead of wall time, on a busy machine"
    )
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    if options.cpu_time:
        global clock
        clock = time.process_time
    if options.spans:
        return run_spans(options.device, options.repeats)
    if options.llama7b:
        return run_llama7b(options.device, options.repeats)
    try:
        import inseq  # noqa: F401

        found_inseq = not options.no_inseq
    except ImportError:
        found_inseq = False
    sizes = [tuple(map(int, text.split(","))) for text in options.sizes] if options.sizes else list(SIZES)
    if options.quick:
        return run_models(["mini"], [(8, 8)], 1, options.device, found_inseq)
    run_models(options.models, sizes, options.repeats, options.device, found_inseq)  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
