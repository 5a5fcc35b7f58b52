"""The package's analyses over data sets, each equal to the analysis by itself; and Dask as the backend."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import distributed
import numpy as np
import pytest

from interp_widgets import (
    Model,
    Result,
    ablate_heads,
    ablate_modules,
    ablation_null,
    activation_patching,
    attention_patterns,
    attention_reasons,
    causal_trace,
    decompose_logit,
    decompose_tokens,
    demo_cases,
    demo_stereoset,
    demo_task_texts,
    demo_texts,
    direct_logit_attribution,
    edge_attribution,
    greedy_circuit,
    head_measures,
    head_word_pairs,
    head_writes,
    layer_similarity,
    load_model,
    logit_lens,
    massive_activations,
    path_patching,
    prompt_saliency,
    score_stereoset,
    sweep,
    weights_against_text,
)
from tests.sweeps.jobs import dies_at, square

ROWS = [
    {
        "prompt": "The Eiffel Tower is in the city of",
        "target": " Paris",
        "subject": "Eiffel Tower",
        "other": "The Trevi Fountain is in the city of",
    },
    {
        "prompt": "The Colosseum is in the city of",
        "target": " Rome",
        "subject": "Colosseum",
        "other": "The Paris is in the city of",
    },
]
TWO = ["prompt", "target"]


@pytest.fixture(scope="module")
def model() -> Model:
    return load_model("demo-base")


@pytest.mark.seconds
@pytest.mark.parametrize(
    ("analysis", "arguments"),
    [
        (logit_lens, TWO),
        (partial(ablate_modules, kinds=["attn", "mlp"]), TWO),
        (ablate_heads, TWO),
        (partial(causal_trace, samples=2, kinds=["state"]), ["prompt", "subject", "target"]),
        (
            partial(
                activation_patching,
                corrupted="The capital of Italy is",
                sites="attn",
                alignment=[(-1, -1)],
                metric="log_prob",
            ),
            {"clean": "prompt", "answer": "target"},
        ),
        (
            partial(edge_attribution, receivers=["mlp 1", "logits"], metric="log_prob", sample=3),
            {"clean": "prompt", "corrupted": "other", "answer": "target"},
        ),
        (
            partial(
                path_patching, senders=["head 1.2", "mlp 0"], receivers=["head_q 4.1", "logits"], metric="log_prob"
            ),
            {"clean": "prompt", "corrupted": "other", "answer": "target"},
        ),
        (
            partial(greedy_circuit, parts="head", layers=[4, 5], most=1, draws=2, metric="log_prob"),
            {"clean": "prompt", "corrupted": "other", "answer": "target"},
        ),
        (partial(attention_reasons, layer=2, head=1, query=-1, key=3), ["prompt"]),
        (partial(ablation_null, parts=[(0, 1), (2, 2)], draws=5), {"prompts": "prompt", "target": "target"}),
        (decompose_logit, TWO),
        (attention_patterns, ["prompt"]),
        (direct_logit_attribution, {"prompts": "prompt", "target": "target"}),
        (partial(head_writes, layer=1, head=2, draws=2), ["prompt"]),
        (partial(head_measures, measures=["induction", "direct_attribution"], length=6, sequences=2), TWO),
        (partial(massive_activations, others=1, references=1), ["prompt"]),
        (decompose_tokens, ["prompt"]),
        (partial(prompt_saliency, method="first_order"), {"prompt": "prompt", "response": "target"}),
    ],
    ids=[
        "lens",
        "modules",
        "heads",
        "trace",
        "patching",
        "edges",
        "paths",
        "circuit",
        "reasons",
        "null",
        "logit",
        "patterns",
        "direct",
        "writes",
        "measures",
        "massive",
        "tokens",
        "saliency",
    ],
)
def test_rows_are_what_the_analysis_measures(model: Model, analysis: Callable[..., Result], arguments: Any) -> None:
    result = sweep(partial(analysis, model), ROWS, arguments=arguments)
    names = arguments if isinstance(arguments, dict) else {name: name for name in arguments}
    assert result.n_failed == 0, result.errors
    for i, row in enumerate(ROWS):
        alone = analysis(model, **{name: row[column] for name, column in names.items()}).measures()
        assert set(alone) == set(result.measured)
        for name, value in alone.items():
            if isinstance(value, str):
                assert result.texts(name)[i] == value
            else:
                assert result.numbers(name)[i] == pytest.approx(float(value or 0), nan_ok=True)


@pytest.mark.seconds
def test_words_against_sets_of_texts(model: Model) -> None:
    pairs = head_word_pairs(model, layers=[0], top=200)
    sets = [{"texts": list(demo_texts()[at : at + 10])} for at in (0, 10)]
    found = sweep(partial(weights_against_text, model, pairs=pairs, shuffles=2), sets, arguments=["texts"])
    assert found.n_failed == 0, found.errors
    for i, row in enumerate(sets):
        alone = weights_against_text(model, row["texts"], pairs, shuffles=2).measures()
        assert alone["heads_with_interval"] == found.numbers("heads_with_interval")[i] > 0
        assert found.numbers("auc")[i] == pytest.approx(alone["auc"])
        assert found.texts("head")[i] == alone["head"]


def test_density_over_a_data_set(model: Model) -> None:
    """The instruction score of each case, as `SaliencyResult` gives it."""
    cases = demo_cases(3)

    def score(case: Any) -> dict[str, Any]:
        result = prompt_saliency(model, case.prompt, case.response, method="first_order")
        return {"score": result.instruction_score(result.mask(case.instruction)), "density": result.density().max()}

    swept = sweep(score, cases)
    assert swept.n_failed == 0, swept.errors
    assert swept.numbers("score").tolist() == [score(case)["score"] for case in cases]


@pytest.mark.seconds
def test_similarity_over_tasks_and_layers(model: Model) -> None:
    tuned, tasks = load_model("demo-tuned"), demo_task_texts(12, names=["plural", "sum"])
    result = sweep(lambda task: layer_similarity(model, tuned, task.texts), tasks)
    assert result.measured == tuple(f"layer_{layer}" for layer in range(model.n_layers + 1))
    for row, task in zip(result.values[:, -len(result.measured) :], tasks, strict=True):
        alone = layer_similarity(model, tuned, task.texts)
        assert row == pytest.approx(np.diag(alone.cka), nan_ok=True)


@pytest.mark.seconds
def test_stereoset_over_models() -> None:
    data = demo_stereoset()[:30]
    result = sweep(lambda name: score_stereoset(load_model(name), data, resamples=9), ["demo-base", "demo-tuned"])
    alone = [score_stereoset(load_model(name), data, resamples=9).overall for name in ("demo-base", "demo-tuned")]
    assert result.numbers("ss").tolist() == [one.ss for one in alone]
    assert result.numbers("icat").tolist() == [one.icat for one in alone]


@pytest.mark.seconds
def test_dask_serves_and_a_killed_worker_loses_nothing(tmp_path: Path) -> None:
    once = tmp_path / "once"
    once.touch()
    with (
        mock.patch.dict(os.environ),  # in which Dask leaves variables
        distributed.LocalCluster(
            n_workers=1, threads_per_worker=1, dashboard_address=None, local_directory=str(tmp_path)
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        call = partial(dies_at, bad=(7,), once=str(once))
        result = sweep(call, range(15), backend=client, out=tmp_path / "out")
        again = sweep(square, range(3), backend=client.get_executor())
    assert not os.path.exists(once)
    assert result.n_failed == 0, result.errors
    assert result.numbers("square").tolist() == [n * n for n in range(15)]
    assert np.array_equal(again.numbers("square"), [0, 1, 4])
