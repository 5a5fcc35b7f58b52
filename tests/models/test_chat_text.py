"""The text of a chat that knows its messages: read as it stands, unlike any plain text."""

from __future__ import annotations

from typing import Any

import pytest

from interp_widgets import prompt_saliency
from interp_widgets.models.chat import ChatText
from tests.models.tiny import tiny_model

TEMPLATE = "{% for m in messages %}<{{ m['role'] }}> {{ m['content'] }}\n{% endfor %}<assistant>"
MESSAGES = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Any:
    one = tiny_model("llama", "auto")
    monkeypatch.setattr(one.tokenizer, "chat_template", TEMPLATE)
    return one


def test_it_is_read_as_the_messages_are(model: Any) -> None:
    text = ChatText(model.chat(MESSAGES))
    assert model.tokens(text) == model.tokens(MESSAGES)
    assert model.split(text, " Paris") == model.split(MESSAGES, " Paris")
    assert model.tokens(str(text)) == [model.bos_token_id, *model.tokens(MESSAGES)], "a plain text gets a BOS"
    found, wanted = (
        prompt_saliency(model, prompt, " Paris", method="random", spans="roles") for prompt in (text, MESSAGES)
    )
    assert found.roles == wanted.roles
    assert found.equals(wanted)
    with pytest.raises(ValueError, match="the chat template writes the BOS"):
        model.tokens(text, prepend_bos=True)


def test_it_equals_no_plain_text(model: Any) -> None:
    text = ChatText(model.chat(MESSAGES))
    assert text != str(text)
    assert str(text) != text
    assert text == ChatText(model.chat([dict(message) for message in MESSAGES]))
    assert len({text, str(text), ChatText(model.chat(MESSAGES))}) == 2
    assert eval(repr(text)) == MESSAGES
