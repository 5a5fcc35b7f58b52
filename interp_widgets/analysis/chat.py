"""`chat_prompt`: how a model reads the messages of a chat, and which role each token belongs to."""

from __future__ import annotations

from collections.abc import Sequence

from interp_widgets.analysis._core.prompts import PromptResult, read_prompt
from interp_widgets.analysis._core.result import record, with_axes
from interp_widgets.analysis._core.token_runs import runs
from interp_widgets.arguments import checked
from interp_widgets.models import Model
from interp_widgets.models.chat import Messages, check_messages


@record
class ChatPrompt(PromptResult):
    """The tokens of a chat up to where the model answers, and the role of each.

    As in every result, positions leave out the beginning-of-sequence token, which the model still reads (see `bos_id`).

    Example:
        >>> chat = chat_prompt(model, [{"role": "user", "content": "Name the capital of Japan."}])
        >>> chat.turn_spans, chat.roles[1:3]
        (((0, 10), (10, 12)), ('template', 'user'))
    """

    roles: Sequence[str] = with_axes("positions")
    """The role of the message that each token is from; ``template`` for what the template writes around messages."""

    turns: Sequence[int] = with_axes("positions")
    """The turn of each token, including the template text around its message: the message's number; for the opening of
    the answer the number after the last."""

    text: str = ""
    """The text that the template writes."""

    @property
    def fed_ids(self) -> list[int]:
        """All ids that the model reads, as ``apply_chat_template(messages, add_generation_prompt=True)`` gives them."""
        return [*([] if self.bos_id is None else [self.bos_id]), *self.ids]

    @property
    def role_spans(self) -> tuple[tuple[int, int], ...]:
        """[start, end) tokens of each run of one role, in their order; every token is in one."""
        return runs(self.roles)

    @property
    def turn_spans(self) -> tuple[tuple[int, int], ...]:
        """[start, end) tokens of each turn, in their order; every token is in one."""
        return runs(self.turns)


@checked
def chat_prompt(model: Model, messages: Messages) -> ChatPrompt:
    """Messages as the model reads them, written by its tokenizer's own chat template.

    Every analysis takes the messages themselves as its prompt; this function shows the tokens they become.

    Args:
        model: what `load_model` returns.
        messages: ``{"role": ..., "content": ...}`` in their order.

    Raises:
        ValueError: no message, other keys, messages that the template refuses, leaves out or rewrites, or a model
            without a chat template (`load_model` takes one as ``chat_template``).

    Example:
        >>> chat = chat_prompt(model, [{"role": "user", "content": "Name the capital of Japan."}])
        >>> chat.text
        '<|bos|>Instruction: Name the capital of Japan.\\nResponse:'
        >>> [("".join(chat.tokens[a:b]), chat.roles[a]) for a, b in chat.role_spans]
        [('Instruction:', 'template'), (' Name the capital of Japan.', 'user'), ('\\nResponse:', 'template')]
    """
    check_messages(messages)
    prompt = read_prompt(model, messages)
    if prompt.roles is None or prompt.turns is None:
        raise ValueError(f"the tokenizer of {model.name} does not say where its tokens lie in the text of a chat")
    return ChatPrompt(**prompt.fields(), roles=prompt.roles, turns=prompt.turns, text=prompt.text)
