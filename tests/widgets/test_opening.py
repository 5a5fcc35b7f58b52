"""What panels open on: a demo in its own format, a model with a template in a chat; an answer that ends at once."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from interp_widgets import LogitLensExplorer, Model, SaliencyExplorer, Workbench
from interp_widgets.data.cases import opening_prompt
from interp_widgets.data.presets import PRESETS
from interp_widgets.models import load_model
from interp_widgets.models.chat import ChatText
from interp_widgets.models.hub_files import DEMO
from interp_widgets.widgets.base.opening import QUESTION, Opening, opening_of, opening_pair
from tests.shipped import demo_pair

pytestmark = pytest.mark.slow

TEMPLATES = {
    "chat": None,
    "plain": "",
    "refusing": "{{ raise_exception('first a system message') }}",
}


@pytest.fixture(scope="module")
def pair() -> Any:
    return demo_pair()


def from_folder(folder: Path, template: str | None) -> Model:
    """The tuned demo as somebody's own model, with its template, another or none."""
    shutil.copytree(DEMO / "tuned", folder, ignore=shutil.ignore_patterns("answers"), dirs_exist_ok=True)
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text())
    path.unlink()
    if template is not None:
        config["chat_template"] = template
    if template == "":
        del config["chat_template"]
    path.write_text(json.dumps(config))
    return load_model(folder, device="cpu")


def test_each_kind_of_model_opens_on_what_suits_it(pair: Any, tmp_path: Path) -> None:
    """The demo on its own format, a model with a template on a chat, the others on the start of a sentence."""
    assert opening_of([pair.base, pair.tuned]) == Opening(opening_prompt().prompt, opening_prompt().instruction)
    own = {name: from_folder(tmp_path / name, template) for name, template in TEMPLATES.items()}
    chat = opening_of([own["chat"]])
    assert isinstance(chat.prompt, ChatText)
    assert [*chat.prompt.messages] == [{"role": "user", "content": QUESTION}]
    for name in ("plain", "refusing"):
        assert opening_of([own[name]]) == Opening(PRESETS[0].prompt, answer="Paris", subject="Eiffel Tower")
    assert opening_of([own["plain"], own["chat"]]) == chat  # the tuned one has the template
    explorer = SaliencyExplorer(own["chat"], live_seconds=0)
    assert (explorer.prompt, explorer.instruction) == (chat.prompt, None)
    explorer.close()


def test_a_pair_of_prompts_that_a_model_answers_differently(pair: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    same, other = ("The capital of France is",) * 2, ("The capital of France is", "The capital of Italy is")
    assert opening_pair([pair.base], [same, other]) == same, "what ships is for this pair"
    monkeypatch.setattr("interp_widgets.widgets.base.opening.are_demo", lambda models: False)
    assert opening_pair([pair.base], [same, other]) == other
    assert opening_pair([pair.base], [same, same[::-1]]) == same


def test_a_screen_opens_on_the_answer(tmp_path: Path) -> None:
    with_answer = Opening("", answer="Paris")
    assert with_answer.answer_in(["The", " capital", " is", " Paris", "."]) == 3
    assert with_answer.answer_in(["Rome"]) == 0
    assert Opening("").answer_in(["", "Rome"]) == 0
    bench = Workbench(from_folder(tmp_path, ""))
    assert bench.screen.wait(120)
    assert bench.prompt == PRESETS[0].prompt
    assert bench.screen.texts.result.response_tokens[bench.response_token].strip() == "Paris"
    bench.close()


def ended(pair: Any) -> str:
    """A prompt after which the tuned demo writes nothing more."""
    case = opening_prompt()
    return case.prompt + pair.tuned.generate(case.prompt, max_new_tokens=100)


def test_the_end_token_is_an_answer(pair: Any) -> None:
    model, prompt = pair.tuned, ended(pair)
    assert model.generate(prompt) == ""
    assert model.generate_ids(model.tokens(prompt)) == []
    text = model.generate(prompt, keep_end=True)
    assert text == model.tokenizer.eos_token
    assert model.split(prompt, text)[1] == [model.eos_token_id]
    assert model.is_end(text)
    assert not model.is_end(f"a{text}")
    case = opening_prompt()  # elsewhere the end is left out
    ids = model.tokens(case.prompt)
    assert model.generate_ids(ids, max_new_tokens=100, keep_end=True) == model.generate_ids(ids, max_new_tokens=100)


@pytest.mark.parametrize("panel", ["screen", "saliency", "lens"])
def test_an_answer_that_ends_at_once_is_a_result(pair: Any, panel: str) -> None:
    """Never *Failed*: the end token stands as the response, its alternatives beside it, and a hint says why."""
    prompt, end = ended(pair), pair.tuned.tokenizer.eos_token
    bench = Workbench(pair.tuned, prompt=prompt)
    if panel == "screen":
        shown = bench.screen
        assert shown.wait(120)
        assert shown.texts.result.top_tokens[0][0] == end
    elif panel == "saliency":
        shown = SaliencyExplorer(bench)
        assert shown.wait(120)
        assert shown.result.response_tokens == (end,)
    else:
        shown = LogitLensExplorer(bench)
        assert shown.wait(120)
        shown.texts.generate_response()
        assert shown.wait(120)
    status = shown.status_line if panel == "screen" else shown.status
    assert not status.error
    assert bench.response == end
    hint = shown.controls.hints["response"]
    assert "ends its text at once" in hint
    assert "Chat writes" in hint
    bench.close()
