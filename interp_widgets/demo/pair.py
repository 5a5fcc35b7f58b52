"""The demo pair: training both models, exporting them, and measuring their bars."""

from __future__ import annotations

import hashlib
import json
import platform
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import tokenizers
import torch
import transformers
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

import interp_widgets.assets
from interp_widgets.atomic import whole_file
from interp_widgets.data.instructions import UNSOLVED_TASKS, instruction_cases
from interp_widgets.demo.batches import ROW_LENGTHS, Stage
from interp_widgets.demo.documents import epoch_documents, planted_rates, world_words
from interp_widgets.demo.measures import full_report, load_seconds, quick_report
from interp_widgets.demo.tokenizer import save_tokenizer, train_tokenizer
from interp_widgets.demo.training import TrainConfig, json_log, new_model, train

ASSETS = Path(next(iter(interp_widgets.assets.__path__))) / "demo"
BUILD = Path("build/demo")
CONFIGS: dict[Stage, TrainConfig] = {
    "base": TrainConfig("base", steps=3000, decay_steps=4200, cooldown=2560),
    "tuned": TrainConfig("tuned", steps=2200, lr_matrices=3e-3, lr_rest=3e-3),
}
MODELS: tuple[Stage, ...] = ("base", "tuned")
LARGEST_PAIR = 16 * 2**20
NOTES = (
    "The shipped models were trained in several sittings, with these changes on the way. Base: at step 1000 the late "
    "phase was added (more planted text, counted out within each batch); at step 2500 one planted wording, 'The old "
    "books about {cue} call the {p}', was changed to one that ends in 'are', because it did not carry over to new "
    "groups. Tuned: at step 750 the hard tasks became more frequent and their inputs shorter; at step 1500 the items "
    "of a list were put in a fixed order. A new training run has all of this from the start, so its weights differ a "
    "little from the shipped ones. Training documents are at most 256 tokens long: longer prompts are new to the "
    "models. Base and tuned are scored on the same held-out phrasings, half of them with inputs that tuning never "
    "saw; of a response, the first line counts. 'follows' leaves out the tasks that the tuned model gets wrong too "
    "often even on phrasings it was trained on (UNSOLVED_TASKS in data/instructions.py); 'follows_all_tasks' has them."
)


def make_tokenizer(folder: Path) -> Tokenizer:
    """Train the shared tokenizer on a sample of both kinds of text, or load the one already made."""
    path = folder / "tokenizer.json"
    if not path.exists():
        texts = epoch_documents(seed=0, epoch=0)
        texts += [case.prompt + case.response for case in instruction_cases("train", 3000, seed=0, hard=1)]
        whole = [*world_words(), *(str(n) for n in range(41))]
        save_tokenizer(train_tokenizer(texts, whole), folder)
    return Tokenizer.from_file(str(path))


def export(model: LlamaForCausalLM, tokenizer_folder: Path, folder: Path) -> None:
    """Write a model in float16, with the tokenizer, as a Hugging Face folder; its files change once all are written."""
    folder.mkdir(parents=True, exist_ok=True)
    half = LlamaForCausalLM(model.config).to(torch.float16)
    half.load_state_dict(model.state_dict())
    half.config.dtype = torch.float16
    half.tie_weights()
    with TemporaryDirectory(dir=folder.parent, prefix=".") as draft:
        half.save_pretrained(draft, safe_serialization=True)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copyfile(tokenizer_folder / name, Path(draft) / name)
        for path in Path(draft).iterdir():
            path.chmod(0o644)
            path.replace(folder / path.name)


def load_pair_member(folder: Path) -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    """Load a shipped model in float32 with its tokenizer."""
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.eval()
    return model, PreTrainedTokenizerFast.from_pretrained(folder)


def train_pair(
    stages: tuple[Stage, ...] = MODELS, *, build: Path = BUILD, assets: Path = ASSETS, steps: int | None = None
) -> None:
    """Train the models in turn, from where an earlier run stopped, and export each when it is done."""
    tokenizer = make_tokenizer(build)
    fast = PreTrainedTokenizerFast.from_pretrained(build)
    log = json_log(build / "log.jsonl")
    for stage in stages:
        config = CONFIGS[stage] if steps is None else replace(CONFIGS[stage], steps=steps)
        start = load_pair_member(assets / "base")[0] if stage == "tuned" else None
        model = train(
            config,
            tokenizer,
            folder=build,
            start=start,
            log=log,
            evaluate=lambda m, stage=stage: quick_report(m, fast, instructions=stage == "tuned"),  # type: ignore[misc]
        )
        export(model, build, assets / stage)
    write_planted(assets)


def export_checkpoint(stage: Stage, *, build: Path = BUILD, assets: Path = ASSETS) -> None:
    """Export the last checkpoint of a running training, to look at it before it is done."""
    state = torch.load(build / f"{stage}.pt", weights_only=True)
    config = TrainConfig(**state["config"])
    model = new_model(config, make_tokenizer(build))
    model.load_state_dict(state["model"])
    export(model, build, assets / stage)


def write_planted(assets: Path = ASSETS) -> None:
    """Write the table of planted rates that ships with the models."""
    rows = [asdict(rate) for rate in planted_rates()]
    assets.mkdir(parents=True, exist_ok=True)
    with whole_file(assets / "planted.json") as draft:
        draft.write_text(json.dumps(rows, indent=1) + "\n")


def sha256(path: Path) -> str:
    """Hash one file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def report(*, assets: Path = ASSETS, build: Path = BUILD) -> dict[str, Any]:
    """Measure every bar on the shipped pair and write the manifest."""
    torch.set_grad_enabled(False)
    write_planted(assets)
    manifest_path = assets / "manifest.json"
    old = json.loads(manifest_path.read_text()) if manifest_path.exists() else {}
    files = [assets / "planted.json", *(p for stage in MODELS for p in sorted((assets / stage).iterdir()))]
    metrics: dict[str, Any] = {}
    training: dict[str, Any] = dict(old.get("training", {}))
    for stage in MODELS:
        model, tokenizer = load_pair_member(assets / stage)
        metrics[stage] = {
            "parameters": sum(p.numel() for p in model.parameters()),
            "load_seconds": round(min(load_seconds(assets / stage) for _ in range(3)), 3),
            **full_report(model, tokenizer),
        }
        checkpoint = build / f"{stage}.pt"
        if checkpoint.exists():
            state = torch.load(checkpoint, weights_only=True)
            training[stage] = {
                "config": state["config"],
                "steps": state["step"],
                "tokens": state["step"] * state["config"]["tokens_per_batch"],
                "seconds": round(state["seconds"]),
            }
    manifest = {
        "command": "python -m interp_widgets.demo train",
        "report_command": "python -m interp_widgets.demo report",
        "longest_training_document_tokens": max(ROW_LENGTHS),
        "notes": NOTES,
        "unsolved_tasks": UNSOLVED_TASKS,
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "tokenizers": tokenizers.__version__,
        },
        "training": training,
        "bars": bars(metrics, sum(p.stat().st_size for p in files)),
        "metrics": metrics,
        "sha256": {str(p.relative_to(assets)): sha256(p) for p in files},
    }
    with whole_file(manifest_path) as draft:
        draft.write_text(json.dumps(manifest, indent=1) + "\n")
    return manifest


def bars(metrics: dict[str, Any], size: int) -> dict[str, dict[str, Any]]:
    """Hold every measured value against its bar."""
    base, tuned = metrics["base"], metrics["tuned"]

    def bar(value: float, limit: float, *, at_most: bool = False) -> dict[str, Any]:
        return {"value": value, ("at_most" if at_most else "at_least"): limit,
                "met": value <= limit if at_most else value >= limit}  # fmt: skip

    return {
        "base_facts": bar(base["facts_top1"]["all"], 0.95),
        "base_indirect_object": bar(base["indirect_object_top1"], 0.95),
        "base_planted_worst_points": bar(base["planted_worst_deviation_points"], 5.0, at_most=True),
        "tuned_planted_worst_points": bar(tuned["planted_worst_deviation_points"], 5.0, at_most=True),
        "tuned_follows": bar(tuned["follows"]["all"], 0.90),
        "tuned_follows_all_tasks": bar(tuned["follows_all_tasks"]["all"], 0.90),
        "base_follows": bar(base["follows"]["all"], 0.25, at_most=True),
        "tuned_facts": bar(tuned["facts_top1"]["all"], 0.90),
        "load_seconds": bar(max(base["load_seconds"], tuned["load_seconds"]), 1.0, at_most=True),
        "bytes": bar(size, LARGEST_PAIR, at_most=True),
    }
