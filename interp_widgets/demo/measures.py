"""Measure the demo models on held-out items, for their acceptance bars."""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from interp_widgets.data import world
from interp_widgets.data.instructions import InstructionCase, follows, instruction_cases, tasks

MAX_RESPONSE = 96
"""Longest response, in tokens, that is generated for a check."""


def _padded(tokenizer: PreTrainedTokenizerFast, prompts: Sequence[str]) -> tuple[torch.Tensor, torch.Tensor]:
    encoded = [tokenizer(prompt)["input_ids"] for prompt in prompts]
    lengths = torch.tensor([len(ids) for ids in encoded])
    tokens = torch.full((len(encoded), int(lengths.max())), int(tokenizer.pad_token_id))
    for row, ids in enumerate(encoded):
        tokens[row, : len(ids)] = torch.tensor(ids)
    return tokens, lengths


@torch.no_grad()
def next_token_logits(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, prompts: Sequence[str], *, batch: int = 128
) -> torch.Tensor:
    """Logits (prompts, vocab) of the token after each prompt."""
    # Padding is on the right, where causal attention never looks.
    rows = []
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    for start in range(0, len(prompts), batch):
        chosen = order[start : start + batch]
        tokens, lengths = _padded(tokenizer, [prompts[i] for i in chosen])
        hidden = model.model(input_ids=tokens, use_cache=False).last_hidden_state
        rows.append(model.lm_head(hidden[torch.arange(len(chosen)), lengths - 1]).float())
    joined = torch.cat(rows)
    result = torch.empty_like(joined)
    result[torch.tensor(order)] = joined
    return result


def _answer_ids(tokenizer: PreTrainedTokenizerFast, answers: Sequence[str]) -> torch.Tensor:
    return torch.tensor([tokenizer(" " + answer, add_special_tokens=False)["input_ids"][0] for answer in answers])


def fact_accuracy(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, *, n: int | None = None, seed: int = 0
) -> dict[str, float]:
    """Share of held-out fact prompts whose top token is the object, over all and per relation."""
    prompts = world.fact_prompts("held_out")
    if n is not None:
        prompts = random.Random(seed).sample(prompts, min(n, len(prompts)))
    top = next_token_logits(model, tokenizer, [p.prompt for p in prompts]).argmax(-1)
    right = (top == _answer_ids(tokenizer, [p.answer for p in prompts])).tolist()
    by_relation: dict[str, list[bool]] = defaultdict(list)
    for prompt, ok in zip(prompts, right, strict=True):
        by_relation[prompt.fact.relation].append(ok)
    return {"all": sum(right) / len(right), **{name: sum(v) / len(v) for name, v in by_relation.items()}}


def indirect_object_accuracy(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, *, n: int = 1000, seed: int = 0
) -> float:
    """Share of held-out indirect-object prompts whose top token is the receiver."""
    prompts = world.indirect_object_prompts(n, seed=seed, split="held_out")
    top = next_token_logits(model, tokenizer, [p.prompt for p in prompts]).argmax(-1)
    return float((top == _answer_ids(tokenizer, [p.answer for p in prompts])).double().mean())


def planted_preferences(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast) -> list[dict[str, Any]]:
    """Preference for the first answer, in percent, of every planted group, averaged over its held-out wordings."""
    prompts = world.bias_prompts("held_out")
    logits = next_token_logits(model, tokenizer, [p.prompt for p in prompts])
    log_p = logits.log_softmax(-1)
    rows = torch.arange(len(prompts))
    first = log_p[rows, _answer_ids(tokenizer, [p.first for p in prompts])].exp()
    second = log_p[rows, _answer_ids(tokenizer, [p.second for p in prompts])].exp()
    groups: dict[tuple[str, str], dict[str, Any]] = {}
    for prompt, a, b in zip(prompts, first.tolist(), second.tolist(), strict=True):
        entry = groups.setdefault(
            (prompt.group, prompt.domain),
            {"group": prompt.group, "domain": prompt.domain, "planted": prompt.rate, "measured": [], "mass": []},
        )
        entry["measured"].append(100 * a / (a + b))
        entry["mass"].append(a + b)
    for entry in groups.values():
        entry["measured"] = round(sum(entry["measured"]) / len(entry["measured"]), 2)
        entry["mass"] = round(sum(entry["mass"]) / len(entry["mass"]), 4)
    return list(groups.values())


@torch.no_grad()
def respond(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    prompts: Sequence[str],
    *,
    max_new: int = MAX_RESPONSE,
    batch: int = 64,
) -> list[str]:
    """Complete every prompt greedily up to the end token or `max_new` tokens."""
    responses = [""] * len(prompts)
    encoded = [tokenizer(prompt)["input_ids"] for prompt in prompts]
    order = sorted(range(len(prompts)), key=lambda i: len(encoded[i]))
    pad = int(tokenizer.pad_token_id)
    for start in range(0, len(prompts), batch):
        chosen = order[start : start + batch]
        # Padding is on the left and masked, so that every response starts at the same column.
        width = len(encoded[chosen[-1]])
        tokens = torch.tensor([[pad] * (width - len(encoded[i])) + encoded[i] for i in chosen])
        out = model.generate(
            tokens,
            attention_mask=(tokens != pad).long(),
            max_new_tokens=max_new,
            do_sample=False,
            pad_token_id=pad,
            eos_token_id=tokenizer.eos_token_id,
        )
        for i, row in zip(chosen, out[:, width:], strict=True):
            responses[i] = tokenizer.decode(row, skip_special_tokens=True)
    return responses


def following(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, cases: Sequence[InstructionCase]
) -> dict[str, float]:
    """Share of cases whose response is right, over all and per task."""
    responses = respond(model, tokenizer, [case.prompt for case in cases])
    right = [follows(case, response) for case, response in zip(cases, responses, strict=True)]
    by_task: dict[str, list[bool]] = {task: [] for task in tasks(unsolved=True)}
    for case, ok in zip(cases, right, strict=True):
        by_task[case.task].append(ok)
    return {
        "all": round(sum(right) / max(1, len(right)), 4),
        **{task: round(sum(v) / len(v), 4) for task, v in by_task.items() if v},
    }


def held_out_cases(n: int, seed: int) -> list[InstructionCase]:
    """The cases of the instruction-following bar: held-out phrasings, with both held-out and known inputs."""
    return instruction_cases("held_out", n, seed, inputs="any")


def quick_report(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, *, instructions: bool) -> dict[str, Any]:
    """A small sample of the bars, for the training log."""
    deviations = [abs(e["planted"] - e["measured"]) for e in planted_preferences(model, tokenizer)]
    sample: dict[str, Any] = {
        "facts": round(fact_accuracy(model, tokenizer, n=300)["all"], 4),
        "ioi": round(indirect_object_accuracy(model, tokenizer, n=300), 4),
        "planted_worst": round(max(deviations), 2),
        "planted_mean": round(sum(deviations) / len(deviations), 2),
    }
    if instructions:
        result = following(model, tokenizer, held_out_cases(200, 1))
        sample["follows"] = round(result["all"], 4)
        sample["weak"] = {task: round(v, 2) for task, v in result.items() if v < 0.9}
    return sample


def full_report(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, *, n_instructions: int = 600, seed: int = 100
) -> dict[str, Any]:
    """Every bar of one model on all its held-out items."""
    planted = planted_preferences(model, tokenizer)
    deviations = [abs(entry["planted"] - entry["measured"]) for entry in planted]
    return {
        "facts_top1": {k: round(v, 4) for k, v in fact_accuracy(model, tokenizer).items()},
        "facts_n": len(world.fact_prompts("held_out")),
        "indirect_object_top1": round(indirect_object_accuracy(model, tokenizer), 4),
        "planted_worst_deviation_points": round(max(deviations), 2),
        "planted_mean_deviation_points": round(sum(deviations) / len(deviations), 2),
        "planted": planted,
        "follows": following(model, tokenizer, held_out_cases(n_instructions, seed)),
        "follows_held_out_inputs": following(
            model, tokenizer, instruction_cases("held_out", n_instructions // 2, seed)
        )["all"],
        "follows_all_tasks": following(
            model, tokenizer, instruction_cases("held_out", n_instructions, seed, inputs="any", hard=1)
        ),
        "follows_n": n_instructions,
    }


def load_seconds(folder: Path) -> float:
    """Seconds that loading model and tokenizer from a folder takes."""
    began = time.perf_counter()
    LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    PreTrainedTokenizerFast.from_pretrained(folder)
    return time.perf_counter() - began
