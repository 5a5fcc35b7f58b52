"""Templates of strangers: whatever they do, one sentence, and limits of time, memory and length that hold."""

from __future__ import annotations

import os
import sys

import pytest

from interp_widgets.models import Model, chat_process
from interp_widgets.models.chat_process import RENDERER
from tests.models.test_chat import ONE, TEMPLATES, chat_model

FAULTY = {
    "{% for tool in tools %}{{ tool }}{% endfor %}": r"TypeError: 'NoneType' object is not iterable \(line 1 of the",
    "{{ 1 / 0 }}": "ZeroDivisionError: division by zero",
    "{{ 2.5 ** 100000 }}": "OverflowError",
    "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}": "RecursionError",
    "{% include 'other' %}": "TypeError: no loader for this environment",
    "{{ none | dictsort }}": "AttributeError",
    "{{ messages | tojson | int + [] }}": "TypeError",
    "{% if 1 %}" * 500 + "{% endif %}" * 500: "RecursionError",
    "{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}": "RecursionError",
    "{{ messages.a.b.c }}": "has no attribute",
    "{{ ''.__class__.__mro__ }}": "unsafe",
    "{{ 10 ** 5000 }}": "cannot write these messages: it writes a number of more than 4300 digits",
    "{{ strftime_now('\\ud800') }}": r"that it gives strftime_now is not valid \(UnicodeEncodeError: .*line 1",
    "{{ strftime_now(5) }}": r"the format that it gives strftime_now is not valid \(TypeError: strftime",
    "{{ 10**10**8 }}": "leaves message 0 out: it writes no message at all, only '100000",
    "{{ strftime_now('%!') }}": "leaves message 0 out: it writes no message at all, only '%!'",
    "{{ raise_exception('two\n lines.') }}": "refuses these messages: two lines$",
}
ENDLESS = {
    "loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "filtered loops": "{% for a in range(99999) %}{% for b in range(99999) if false %}{% endfor %}{% endfor %}",
    "center": "{% for a in range(99999) %}{% set b = (a ~ 'a' * 99999) | center(199999) %}{% endfor %}",
    "power": "{{ (7 ** (7 ** 9)) % 10 }}",
    "lists": "{% set n = namespace(x=[1]) %}{% for i in range(60) %}{% set n.x=[n.x] * 2 %}{% endfor %}{{ n.x }}",
    "macros": "{% macro two(n) %}{% if n %}{{ two(n - 1) }}{{ two(n - 1) }}{% endif %}{% endmacro %}{{ two(60) }}",
}  # fmt: skip
HUGE = {
    "center": "{{ 'a' | center(10000000000) }}",
    "product": "{% set n = namespace(x='a') %}{% for i in range(60) %}{% set n.x = n.x * 9 %}{% endfor %}{{ n.x }}",
    "format": "{{ '%9999999999d' % 1 }}",
    "ljust": "{{ 'a'.ljust(9999999999) }}",
    "replace": "{{ ('a' * 9999999).replace('a', 'b' * 9999999) | length }}",
    "join": "{{ (['a'] * 9999999) | join('b' * 999999) | length }}",
    "output": "{% for i in range(99999) %}{{ 'a' * 9999 }}{% endfor %}",
}  # fmt: skip


def model_with(template: str, monkeypatch: pytest.MonkeyPatch) -> Model:
    model = chat_model("chatml", "bridge")
    monkeypatch.setattr(model.tokenizer, "chat_template", template)
    return model


@pytest.mark.seconds
@pytest.mark.parametrize("template", FAULTY)
def test_a_faulty_template_gives_one_sentence(template: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=FAULTY[template]) as error:
        model_with(template, monkeypatch).tokens(ONE)
    assert str(error.value).startswith("the chat template ")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ENDLESS)
def test_a_template_that_does_not_end_is_stopped(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_process, "SECONDS", 0.3)
    model = model_with(ENDLESS[name], monkeypatch)
    with pytest.raises(ValueError, match=r"cannot write these messages: it takes more than (0.3 seconds|512 MB)"):
        model.tokens(ONE)
    monkeypatch.undo()
    assert model.chat(ONE).text, "the next chat is written"


@pytest.mark.parametrize("name", HUGE)
def test_a_template_that_fills_the_memory_is_stopped(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_process, "MEGABYTES", 64)
    with pytest.raises(ValueError, match=r"it takes (more than 64 MB|too much memory)|it writes more than|MemoryError"):
        model_with(HUGE[name], monkeypatch).tokens(ONE)


@pytest.mark.parametrize("kind", TEMPLATES)
def test_long_chats_are_what_transformers_writes(kind: str) -> None:
    model = chat_model(kind, "bridge")
    turns = [{"role": ("user", "assistant")[i % 2], "content": f"{i} \u2028 é🙂 " * 50} for i in range(201)]
    wanted = model.tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
    assert model.chat(turns).text == wanted


def test_the_process_is_replaced_when_it_has_ended() -> None:
    model = chat_model("chatml", "bridge")
    wanted = model.chat(ONE).text
    process = RENDERER._process
    assert process is not None
    process.kill()
    process.wait()
    assert model.chat(ONE).text == wanted
    assert RENDERER._process is not process


def test_the_process_sees_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", "secret")
    assert "SOME_API_KEY" not in chat_process._ENVIRONMENT
    RENDERER.close()
    chat_model("chatml", "bridge").chat(ONE)
    if sys.platform == "linux":
        assert RENDERER._process is not None
        with open(f"/proc/{RENDERER._process.pid}/environ", "rb") as file:
            assert b"SOME_API_KEY" not in file.read()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_fork_has_a_process_of_its_own() -> None:
    model = chat_model("chatml", "bridge")
    wanted = model.chat(ONE).text
    child = os.fork()
    if child == 0:
        ended = 1
        try:
            ended = int(RENDERER._process is not None or model.chat(ONE).text != wanted)
            RENDERER.close()
        finally:
            os._exit(ended)
    assert os.waitpid(child, 0)[1] == 0
    assert model.chat(ONE).text == wanted
