"""A chat is written in a panel opened alone: its messages are read as the tokenizer's own template puts them."""

from __future__ import annotations

from typing import Any

import pytest

from interp_widgets import (
    AblationPanel,
    FFNConceptBrowser,
    LogitLensExplorer,
    SaliencyExplorer,
    TokenDecompositionExplorer,
)
from interp_widgets.models.chat import ChatText
from interp_widgets.widgets.base.fields import hidden
from tests.shipped import demo_pair
from tests.widgets.opening import opening

pytestmark = pytest.mark.slow

MESSAGES = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Name the capital of Japan."}]


def chat_of(panel: Any) -> Any:
    """What the button and the boxes belong to."""
    if isinstance(panel, SaliencyExplorer):
        return panel.chat
    return (panel["neurons"] if isinstance(panel, FFNConceptBrowser) else panel).texts.boxes.chat


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (LogitLensExplorer, {}),
        (TokenDecompositionExplorer, {}),
        (AblationPanel, {"tab": "heads"}),
        (FFNConceptBrowser, {"tab": "neurons"}),
        (SaliencyExplorer, {"response": " Tokyo", "regenerate": False}),
    ],
)
def test_a_panel_alone_takes_messages(kind: Any, options: Any, wire: Any) -> None:
    model = demo_pair().tuned
    with opening(kind) as build:
        panel = build(model, prompt="Paris is", **options)
        chat = chat_of(panel)
        box = chat._owner.controls["prompt"]
        assert hidden(chat.messages.box)
        assert not hidden(box)
        wire.type(chat.button, value=True)
        assert isinstance(panel.prompt, ChatText)
        assert panel.prompt.messages == [{"role": "user", "content": "Paris is"}]
        assert hidden(box)
        assert not hidden(chat.messages.box)
        wire.type(chat.messages.lines[0][1], value=MESSAGES[1]["content"])
        wire.click(chat.messages.add)
        assert len(panel.prompt.messages) == 1, "an empty message says nothing"
        panel.prompt = MESSAGES
        assert chat.messages.messages == MESSAGES
        assert panel.wait(120)
        panel.run()
        ids = model.tokenizer.apply_chat_template(MESSAGES, add_generation_prompt=True, return_dict=False)
        own = [one for one in ids if one != model.bos_token_id]
        read = panel.result.prompt_tokens if kind is SaliencyExplorer else chat._owner.texts.axis
        assert tuple(read) == tuple(model.token_strings(own))
        wire.type(chat.button, value=False)
        assert type(panel.prompt) is str
        assert "Name the capital of Japan." in panel.prompt
        assert hidden(chat.messages.box)
        assert not hidden(box)
        assert panel.status.error == ""


def test_what_cannot_be_read_is_a_hint(wire: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model = demo_pair().base
    with opening(LogitLensExplorer) as build:
        panel = build(model, prompt=MESSAGES)
        chat = chat_of(panel)
        assert not hidden(chat.messages.box), "it opens on the messages"
        assert chat.button.value
        wire.type(chat.messages.lines[1][1], value="a\ud800")
        assert "one half of a surrogate pair: remove it" in chat.messages.hint.sentence
        assert panel.prompt.messages == MESSAGES
        panel.prompt = "Paris is"
        monkeypatch.setattr(model.tokenizer, "chat_template", None)
        wire.type(chat.button, value=True)
        assert "has no chat template" in panel.controls.hints["prompt"]
        assert not chat.button.value
        assert panel.status.error == ""
