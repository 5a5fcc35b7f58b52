"""A prompt as the messages of a chat: a role and a box for each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ipywidgets as W
import traitlets as T

from interp_widgets.models.chat import ChatText

from ..views import TextBox
from . import lifetime
from .controls import chat_text, row, shown_if
from .fields import Hint, hint_at
from .guard import guarded

ROLES = ("system", "user", "assistant")


class ChatBox:
    """Boxes of messages; `changed(messages)` is called when one of them is edited, added or removed."""

    def __init__(self, changed: Callable[[list[dict[str, str]]], object]) -> None:
        self._changed = changed
        self._filling = False
        self.lines: list[tuple[Any, TextBox, W.Button]] = []
        self.add = W.Button(description="Add message")
        self.add.on_click(lambda _: self._add())
        self.rows = W.VBox([])
        self.hint = Hint()
        """What is wrong with the messages."""
        self.box = W.VBox([W.Label("Prompt · chat"), self.rows, self.hint, self.add])
        for name in ("iw-chat", "iw-grow"):
            self.box.add_class(name)

    @property
    def messages(self) -> list[dict[str, str]]:
        """The contents of the boxes."""
        return [{"role": role.value, "content": content.value} for role, content, _ in self.lines]

    def fill(self, messages: Sequence[Any]) -> None:
        """Show these messages."""
        if messages == self.messages:
            return
        self._filling = True
        try:
            while len(self.lines) > len(messages):
                self._drop(self.lines[-1])
            while len(self.lines) < len(messages):
                self._make()
            for (role, content, _), message in zip(self.lines, messages, strict=True):
                if message["role"] not in role.options:
                    role.options = (*role.options, message["role"])
                role.value, content.value = message["role"], message["content"]
            self._lay_out()
        finally:
            self._filling = False

    def _make(self) -> None:
        role = W.Dropdown(options=ROLES, value="user", tooltip="Role of the speaker")
        content = TextBox(rows=1, hint="Message text")
        out = W.Button(description="×", tooltip="Remove this message")
        line = (role, content, out)
        content.add_class("iw-grow")
        for control in (role, content):
            control.observe(lambda _: self._tell(), "value")
        out.on_click(lambda _: self._take_out(line))
        self.lines.append(line)

    def _drop(self, line: tuple[Any, TextBox, W.Button]) -> None:
        self.lines.remove(line)
        self._lay_out()
        for control in line:
            lifetime.close_one(control)

    def _lay_out(self) -> None:
        before = self.rows.children
        self.rows.children = [row(*line) for line in self.lines]
        for old in before:
            lifetime.close_one(old)

    def _add(self) -> None:
        self._make()
        last = self.lines[-2][0].value if len(self.lines) > 1 else "assistant"
        self.lines[-1][0].value = "user" if last == "assistant" else "assistant" if last == "user" else "user"
        self._lay_out()

    def _take_out(self, line: tuple[Any, TextBox, W.Button]) -> None:
        if len(self.lines) > 1:
            self._drop(line)
            self._tell()

    def _tell(self) -> None:
        self.hint.say("")
        if not self._filling and all(message["content"].strip() for message in self.messages):
            self._changed(self.messages)


class ChatPrompt:
    """The *Chat* button of a panel or a stack, and the message boxes that replace its prompt box while it is on."""

    def __init__(self, owner: Any, text: Any) -> None:
        self._owner, self._text = owner, text
        self.button = W.ToggleButton(
            description="Chat",
            tooltip="Write the prompt as chat messages, formatted with the tokenizer's chat template",
        )
        self.messages = ChatBox(guarded(owner, self._messages_changed))
        owner.watch(self.button, "value", lambda change: self._pressed(change.new))
        owner.watch(owner, "prompt", lambda _: self._show())
        self._show()

    def _pressed(self, pressed: bool) -> None:
        """Turn a text into a chat of one message, or a chat into the text that its template writes."""
        owner = self._owner
        if pressed == isinstance(owner.prompt, ChatText):
            return
        message = {"role": "user", "content": owner.prompt.strip() or "Hello"}
        try:
            with hint_at("prompt"):
                owner.prompt = chat_text(owner.models, [message]) if pressed else str(owner.prompt)
        finally:
            self.button.value = isinstance(owner.prompt, ChatText)

    def _messages_changed(self, messages: list[dict[str, str]]) -> None:
        try:
            self._owner.prompt = chat_text(self._owner.models, messages)
        except (ValueError, T.TraitError) as error:
            self.messages.hint.say(str(error))

    def _show(self) -> None:
        """Show the text box or the message boxes, depending on the prompt."""
        prompt = self._owner.prompt
        chat = isinstance(prompt, ChatText)
        if chat:
            self.messages.fill(prompt.messages)
        self.button.value = chat
        shown_if(self.messages.box, chat)
        shown_if(self._text, not chat)
