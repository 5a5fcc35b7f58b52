"""The parts that an analysis hands on share one reading of what the model is, which takes a second on a large one."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import interp_widgets.analysis
from interp_widgets import (
    ablate_heads,
    ablate_modules,
    ablate_neurons,
    activation_patching,
    attention_patterns,
    causal_trace,
    decompose_tokens,
    ffn_concepts,
    greedy_circuit,
    head_word_pairs,
    logit_lens,
    path_patching,
    prompt_saliency,
)
from interp_widgets.analysis.attention import patterns
from interp_widgets.analysis.logit_lens import lens
from interp_widgets.models import Model
from tests.shipped import demo_pair

PROMPT, OTHER, ANSWER = "The capital of France is", "The capital of Italy is", " Paris"
RUNS: dict[Callable[..., Any], dict[str, Any]] = {
    ablate_heads: {"prompt": PROMPT, "batch_size": 4},
    ablate_modules: {"prompt": PROMPT, "batch_size": 8},
    ablate_neurons: {"prompt": PROMPT, "layer": 1, "neurons": range(8), "batch_size": 1},
    activation_patching: {"clean": PROMPT, "corrupted": OTHER, "sites": "attn", "batch_size": 4},
    attention_patterns: {"prompt": PROMPT},
    causal_trace: {"prompt": PROMPT, "subject": "France", "samples": 2, "kinds": ["state"], "batch_size": 2},
    decompose_tokens: {"prompt": PROMPT, "batch_size": 1},
    ffn_concepts: {"words": ["Paris", "Rome", "France", "Italy"], "rank": 1, "top": 2},
    greedy_circuit: {"clean": PROMPT, "corrupted": OTHER, "answer": ANSWER, "layers": [4, 5], "most": 2, "draws": 1},
    head_word_pairs: {"words": ["One", "Friends", "Paris", "Rome"], "layers": [0, 1]},
    logit_lens: {"prompt": PROMPT},
    path_patching: {"clean": PROMPT, "corrupted": OTHER, "senders": None, "receivers": ["logits"], "batch_size": 4},
    prompt_saliency: {"prompt": PROMPT, "response": ANSWER, "method": "exact", "batch_size": 1},
}
OF_OTHERS = {"annotate_concepts", "head_measures", "saliency_dataset"}
"""Of a result, of several analyses, and of several models, whose description is read before the first part."""


def test_every_analysis_with_parts_is_here() -> None:
    handing = {
        node.name
        for file in Path(interp_widgets.analysis.__path__[0]).rglob("*.py")
        for node in ast.parse(file.read_text(encoding="utf8")).body
        if isinstance(node, ast.FunctionDef) and any(each.arg == "on_partial" for each in node.args.kwonlyargs)
    }
    assert handing == {function.__name__ for function in RUNS} | OF_OTHERS


@pytest.mark.parametrize("analysis", RUNS, ids=lambda analysis: analysis.__name__)
def test_the_model_is_described_once_in_a_run(analysis: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    model, described, parts = demo_pair().base, list[Model](), list[Any]()
    read = Model.provenance

    def counted(model: Model) -> Any:
        described.append(model)
        return read(model)

    monkeypatch.setattr(Model, "provenance", counted)
    monkeypatch.setattr(patterns, "_LARGE", 1)
    monkeypatch.setattr(patterns, "_PARTS", 2)
    monkeypatch.setattr(lens, "_block_size", lambda *_: (2, 64))
    whole = analysis(model, **RUNS[analysis], on_partial=parts.append)
    assert parts
    assert described == [model]
    known = read(model)
    for result in (*parts, whole):
        assert {name: result.provenance[name] for name in known} == known
