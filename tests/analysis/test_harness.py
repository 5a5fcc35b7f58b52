"""The adapter to lm-evaluation-harness: one of its tasks on local data, edits included, and its parts by hand."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lm_eval import simple_evaluate
from lm_eval.api.instance import Instance
from lm_eval.tasks import TaskManager

from interp_widgets import Ablation, ablation, as_lm_eval
from tests.models.tiny import tiny_model
from tests.shipped import demo_pair

QUESTIONS = [
    ("The capital of France is", ["Paris", "London"], 0),
    ("The capital of Japan is", ["Rome", "Tokyo"], 1),
    ("The Eiffel Tower is in the city of", ["Dubai", "Paris"], 1),
]


@pytest.fixture
def task(tmp_path: Path) -> dict[str, Any]:
    """A multiple-choice task of the harness on a file."""
    rows = [{"question": question, "choices": choices, "answer": answer} for question, choices, answer in QUESTIONS]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return {
        "task": "capitals", "dataset_path": "json", "test_split": "test", "output_type": "multiple_choice",
        "dataset_kwargs": {"data_files": {"test": str(tmp_path / "rows.jsonl")}},
        "doc_to_text": "question", "doc_to_choice": "choices", "doc_to_target": "answer",
        "metric_list": [{"metric": "acc"}],
    }  # fmt: skip


def judged(model: Any, task: dict[str, Any]) -> tuple[float, list[float]]:
    """Accuracy, and the log-likelihoods of all choices."""
    found = simple_evaluate(
        as_lm_eval(model), tasks=[task], bootstrap_iters=0, task_manager=TaskManager(include_defaults=False)
    )
    assert found is not None
    samples = sorted(found["samples"]["capitals"], key=lambda sample: sample["doc_id"])
    return found["results"]["capitals"]["acc,none"], [float(value[0]) for s in samples for value in s["filtered_resps"]]


@pytest.mark.seconds
def test_a_task_of_the_harness_judges_the_demo_model_and_an_ablated_one(
    task: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    model = demo_pair().base
    accuracy, values = judged(model, task)
    assert accuracy == 1, "the demo model knows its capitals"
    wanted = [
        model.run([*before, *own]).logits[0, len(before) - 1 : -1].double().log_softmax(-1)[range(len(own)), own].sum()
        for question, choices, _ in QUESTIONS
        for before, own in (model.split(question, f" {choice}") for choice in choices)
    ]
    np.testing.assert_allclose(values, wanted, atol=1e-3)
    with ablation(model, [Ablation("mlp", layer) for layer in range(model.n_layers)]):
        _, without = judged(model, task)
    assert np.abs(np.subtract(without, values)).max() > 1, "the ablation was not in force"


def request(kind: Any, *arguments: Any) -> Instance:
    return Instance(request_type=kind, doc={}, arguments=arguments, idx=0)


def test_whole_texts_are_scored_in_windows() -> None:
    model = tiny_model("gpt2", "auto")
    text = "The dog was happy. " * 60
    ids = model.token_lists([text])[0]
    assert len(ids) > 2 * model.n_ctx
    own = as_lm_eval(model)
    found = own.loglikelihood_rolling([request("loglikelihood_rolling", text)])[0]
    total, start = 0.0, 0
    while start < len(ids):
        part = ids[start : start + model.n_ctx]
        before = [own.prefix_token_id] if start == 0 else ids[start - 1 : start]
        if start and len(part) < model.n_ctx:  # the last window is as long as the others
            before = ids[len(ids) - model.n_ctx - 1 : start]
        logits = model.run([*before, *part][:-1]).logits[0].double().log_softmax(-1)[-len(part) :]
        total += float(logits[range(len(part)), part].sum())
        start += len(part)
    assert found == pytest.approx(total, rel=1e-4)


def test_writing_stops_where_the_task_says() -> None:
    own = as_lm_eval(demo_pair().base)
    prompt = "The capital of France is"
    whole = own.generate_until([request("generate_until", prompt, {"until": [], "max_gen_toks": 8})])[0]
    assert whole.startswith(" Paris")
    until = own.generate_until([request("generate_until", prompt, {"until": ["."], "max_gen_toks": 8})])[0]
    assert until == whole.split(".")[0]


def test_writing_stops_at_once_and_takes_the_names_of_other_models(monkeypatch: pytest.MonkeyPatch) -> None:
    own = as_lm_eval(demo_pair().base)
    prompt, written = "The capital of France is", []
    generate = type(own.model).generate_ids

    def counted(model: Any, ids: Any, **options: Any) -> list[int]:
        add = options.pop("on_token")
        return generate(model, ids, on_token=lambda token: (written.append(token), add(token))[1], **options)

    monkeypatch.setattr(type(own.model), "generate_ids", counted)
    own.generate_until([request("generate_until", prompt, {"until": ["Paris"], "max_gen_toks": 50})])
    assert len(written) < 10
    one, two = (
        own.generate_until([request("generate_until", prompt, options)])[0]
        for options in ({"until": None, "max_new_tokens": 1}, {"until": [], "max_gen_toks": 2, "max_tokens": 1})
    )
    assert (one, two) == (" Paris", " Paris.")


def test_repeats_are_sampled_anew_and_a_temperature_is_enough() -> None:
    own = as_lm_eval(tiny_model("gpt2", "auto"))
    options = {"until": [], "max_gen_toks": 8, "temperature": 1.0}
    several = own.generate_until([request("generate_until", "The dog", options)] * 3)
    assert len(set(several)) == 3
    greedy = {"until": [], "max_gen_toks": 8, "do_sample": False, "temperature": 1.0, "top_p": 0.9}
    assert len(set(own.generate_until([request("generate_until", "The dog", greedy)] * 2))) == 1
    assert own.generate_until([request("generate_until", "", greedy)])[0], "after the prefix token"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"num_beams": 4}, "takes until, max_gen_toks, do_sample and temperature, got num_beams=4"),
        ({"do_sample": True, "temperature": 0.8, "top_p": 0.95}, "got top_p=0.95"),
        ({"max_gen_toks": 128}, r"max_gen_toks must be in 1..127 for .*, whose context is 128 tokens, got 128"),
        ({"max_gen_toks": 0}, "got 0"),
    ],
)
def test_what_is_not_heeded_is_refused(options: dict[str, Any], sentence: str) -> None:
    own = as_lm_eval(tiny_model("gpt2", "auto"))
    with pytest.raises(ValueError, match=sentence):
        own.generate_until([request("generate_until", "The dog", {"until": [], **options})])


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_context_and_continuation_are_read_as_one_text(family: str) -> None:
    model = tiny_model(family, "auto")
    own = as_lm_eval(model)
    for context, continuation in [
        ("Paris is the cap", "ital"),
        ("Paris is ", "the"),
        ("Paris is", " the"),
        ("", "the"),
    ]:
        ids = model.tokens(context + continuation, prepend_bos=True)
        cut = len(ids) - len(model.split(context.rstrip(), context[len(context.rstrip()) :] + continuation)[1])
        if not model.prepend_bos and context:
            ids, cut = ids[1:], cut - 1
        logits = model.run(ids[:-1]).logits[0].double().log_softmax(-1)
        wanted = float(sum(logits[i - 1, ids[i]] for i in range(cut, len(ids))))
        ((found, _),) = own.loglikelihood([request("loglikelihood", context, continuation)], disable_tqdm=True)
        assert found == pytest.approx(wanted, rel=1e-4), context
    texts = ["Paris is", model.decode(model.tokens("Paris is", prepend_bos=True))]
    assert len({own.loglikelihood_rolling([request("loglikelihood_rolling", text)])[0] for text in texts}) == 1
    assert own.tok_encode(texts[1]) == model.tokens("Paris is", prepend_bos=True)


SYSTEM = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Where is Paris?"}]


def test_a_refused_chat_is_never_right(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    model = tiny_model("gpt2", "auto")
    template = (
        "{% for message in messages %}{% if message['role'] == 'system' or 'bad' in message['content'] %}"
        "{{ raise_exception('no such message') }}{% endif %}<{{ message['content'] }}>{% endfor %}"
    )
    monkeypatch.setattr(model.tokenizer, "chat_template", template)
    own = as_lm_eval(model)
    assert own.apply_chat_template(SYSTEM[1:]) == "<Where is Paris?>"
    assert own.apply_chat_template(SYSTEM) == own.apply_chat_template(SYSTEM) == "<Where is Paris?>"
    assert own.apply_chat_template([*SYSTEM[1:], {"role": "assistant", "content": "In Fr"}], False).endswith("<In Fr")
    refused = own.apply_chat_template([{"role": "user", "content": "bad"}])
    said = [record.getMessage() for record in caplog.records if "chat template" in record.getMessage()]
    assert said == [
        "the chat template refuses these messages: no such message; the system message is left out",
        "the chat template refuses these messages: no such message; such items count as failed, or cannot be scored",
    ]
    options = {"until": [], "max_gen_toks": 2}
    (written,) = own.generate_until([request("generate_until", refused, options)])
    assert written.strip(), "an empty answer is right where a question has none"
    assert not any(letter.isalnum() for letter in written)
    asked = [request("loglikelihood", context, " In") for context in ("Where", f"{refused} Answer:", "Paris")]
    with pytest.raises(ValueError, match=r"refuses the messages of 1 of 3 continuations, .* leave these items out"):
        own.loglikelihood(asked, disable_tqdm=True)
    assert len(own.loglikelihood([asked[0], asked[2]], disable_tqdm=True)) == 2


def test_a_long_context_loses_its_beginning() -> None:
    model = tiny_model("gpt2", "auto")
    own = as_lm_eval(model)
    long = np.random.default_rng(0).integers(3, 200, size=model.n_ctx + 20).tolist()
    cut = own._loglikelihood_tokens([(None, long, [7, 8])])[0][0]
    assert cut == pytest.approx(own._loglikelihood_tokens([(None, long[-(model.n_ctx - 1) :], [7, 8])])[0][0])


def test_without_the_harness_the_way_to_install_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "interp_widgets.analysis.harness_model", raising=False)
    for name in [name for name in sys.modules if name.split(".")[0] == "lm_eval"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    with pytest.raises(ImportError, match=r"needs lm-evaluation-harness: run pip install 'interp-widgets\[lm-eval\]'"):
        as_lm_eval(tiny_model("gpt2", "auto"))
