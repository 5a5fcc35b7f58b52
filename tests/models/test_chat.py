"""Chats: token for token what the tokenizer's own template writes, and every token has its role, turn and span."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import torch

from interp_widgets import chat_prompt, load_model, logit_lens, prompt_saliency
from interp_widgets.data.instructions import make_case
from interp_widgets.models import Model
from tests.models.tiny import TEXT, metaspace_tokenizer, tiny_model

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] }}"
    "{{ '<|im_end|>' + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA3 = (
    "{% for message in messages %}{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'"
    " + message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}"
    "{% endif %}{{ content }}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
MISTRAL = (
    "{% if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] %}{% set rest = messages[1:] %}"
    "{% else %}{% set rest = messages %}{% endif %}{{ bos_token }}{% for message in rest %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "{% if message['role'] == 'user' %}{% if loop.last and system is defined %}"
    "{{ '[INST] ' + system + '\n\n' + message['content'] + ' [/INST]' }}{% else %}"
    "{{ '[INST] ' + message['content'] + ' [/INST]' }}{% endif %}"
    "{% elif message['role'] == 'assistant' %}{{ ' ' + message['content'] | trim + eos_token }}{% endif %}{% endfor %}"
)
GEMMA = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}"
    "{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate') }}{% endif %}"
    "{% set role = 'model' if message['role'] == 'assistant' else message['role'] %}"
    "{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)
TEMPLATES = {"chatml": CHATML, "llama3": LLAMA3, "mistral": MISTRAL, "gemma": GEMMA}
MARKS = {
    "chatml": ["<|im_start|>", "<|im_end|>"],
    "llama3": ["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"],
    "mistral": ["[INST]", "[/INST]"],
    "gemma": ["<start_of_turn>", "<end_of_turn>"],
}
USER, ANSWER = "What is the capital of France?", "The capital of France is Paris."
ONE = [{"role": "user", "content": USER}]
SEVERAL = [
    {"role": "user", "content": "user"},  # the word that the template itself writes in front of it
    {"role": "assistant", "content": ANSWER},
    {"role": "user", "content": " Write a short\nstory; café 🙂 "},
]
SYSTEM = [{"role": "system", "content": "Answer the question."}, *ONE]


@functools.cache
def chat_model(kind: str, backend: str) -> Model:
    """A tiny model whose tokenizer has the template and special tokens of a kind of chat, and a BOS of its own."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    special = ["<s>", "</s>", *MARKS[kind]]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=420, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    core.train_from_iterator(TEXT.splitlines(), trainer)
    core.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, bos_token="<s>", eos_token="</s>")
    tokenizer.chat_template = TEMPLATES[kind]
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=256, initializer_range=0.3, bos_token_id=0, eos_token_id=1,
    )  # fmt: skip
    return load_model(LlamaForCausalLM(config).eval(), tokenizer=tokenizer, backend=backend)  # type: ignore[arg-type]


def applied(model: Model, messages: list[dict[str, str]]) -> list[int]:
    """What the tokenizer itself makes of a chat."""
    ids = model.tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    return [int(i) for i in ids]


@pytest.mark.parametrize("backend", ["hooked", "bridge"])
@pytest.mark.parametrize("kind", TEMPLATES)
def test_a_chat_is_what_the_template_writes(kind: str, backend: str) -> None:
    model = chat_model(kind, backend)
    assert model.prepend_bos  # so that a second one would be there, if it was put in front of a chat too
    for messages in [ONE, SEVERAL, *([SYSTEM] if kind != "gemma" else [])]:
        wanted = applied(model, messages)
        assert model.tokens(messages) == wanted
        assert model.split(messages, None)[0] == wanted
        assert wanted.count(0) == (kind != "chatml")
        chat = chat_prompt(model, messages)
        assert chat.fed_ids == wanted
        assert chat.text == model.tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)


@pytest.mark.parametrize("kind", TEMPLATES)
def test_every_token_of_a_chat_is_in_one_span_of_its_role(kind: str) -> None:
    model = chat_model(kind, "bridge")
    for messages in [ONE, SEVERAL, *([SYSTEM] if kind != "gemma" else [])]:
        chat = chat_prompt(model, messages)
        every = list(range(chat.n_positions))
        for spans in (chat.role_spans, chat.turn_spans):
            assert [i for start, end in spans for i in range(start, end)] == every
        said = [(chat.roles[a], model.decode(list(chat.ids[a:b])).strip()) for a, b in chat.role_spans]
        order = messages if kind != "mistral" or messages is not SYSTEM else [SYSTEM[0], SYSTEM[1]]
        expected = [(message["role"], message["content"].strip()) for message in order]
        assert [pair for pair in said if pair[0] != "template"] == expected
        # a special token is never what somebody says, and is never left out
        specials = [chat.roles[i] for i in every if chat.special[i]]
        assert specials
        assert set(specials) == {"template"}
        # a turn holds its message, and what opens the answer is a turn of its own but where the template has none
        for number, message in enumerate(messages):
            inside = [i for i in every if chat.turns[i] == number]
            assert message["content"].strip() in model.decode([chat.ids[i] for i in inside])
        assert (len(messages) in chat.turns) == (kind != "mistral")


def test_turns_end_where_the_template_ends_them() -> None:
    chat = chat_prompt(chat_model("chatml", "bridge"), SEVERAL)
    texts = ["".join(chat.tokens[a:b]) for a, b in chat.turn_spans]
    assert texts[0] == "<|im_start|>user\nuser<|im_end|>\n"
    assert texts[1] == f"<|im_start|>assistant\n{ANSWER}<|im_end|>\n"
    assert texts[-1] == "<|im_start|>assistant\n"
    last = chat_prompt(chat_model("gemma", "bridge"), ONE)
    assert "".join(last.tokens[slice(*last.turn_spans[-1])]) == "<start_of_turn>model\n"


@pytest.mark.seconds
def test_contents_that_a_template_cuts_are_found_and_those_it_scrambles_are_told() -> None:
    cut = "{% for m in messages %}<{{ m['role'] }}>{{ m['content'].split('</think>')[-1] }}{% endfor %}<assistant>"
    model = load_model("demo-tuned", chat_template=cut)
    chat = chat_prompt(model, [{"role": "user", "content": "so</think>France"}])
    assert chat.text == "<user>France<assistant>"
    assert "".join(token for token, role in zip(chat.tokens, chat.roles, strict=True) if role == "user") == "France"
    odd = "{% for m in messages %}{{ 'A' if m['content'] == 'France' else 'B ' + m['content'] }}{% endfor %}"
    model = load_model("demo-tuned", chat_template=odd)
    assert model.tokens([{"role": "user", "content": "France"}]) == model.tokens("A", prepend_bos=False)
    with pytest.raises(ValueError, match=r"^the chat template rewrites these messages"):
        chat_prompt(model, [{"role": "user", "content": "France"}])


@pytest.mark.parametrize(
    ("messages", "error"),
    [
        ([], "got an empty list"),
        ([{"role": "user"}], "message 0 has no 'content'"),
        ([{"content": "a"}], "message 0 has no 'role'"),
        (
            [*ONE, {"role": "user", "content": "a", "name": "b"}],
            "message 1 may have the keys 'role' and",
        ),
        ([{"role": "user", "content": 3}], "'content' of message 0 must be a str, got int"),
        ([{"role": "system", "content": "a"}, *ONE], "refuses these messages: System role not supported$"),
        ([ONE[0], ONE[0]], "refuses these messages: Conversation roles must alternate$"),
    ],
)
def test_bad_messages_are_told_in_a_sentence(messages: Any, error: str) -> None:
    with pytest.raises((ValueError, TypeError), match=error):
        chat_prompt(chat_model("gemma", "bridge"), messages)
    with pytest.raises((ValueError, TypeError), match=error if messages else "empty"):
        prompt_saliency(chat_model("gemma", "bridge"), messages, " a")


def test_a_message_that_the_template_leaves_out_is_told() -> None:
    model = chat_model("mistral", "bridge")
    lost = [*ONE, {"role": "tool", "content": "42"}]
    with pytest.raises(ValueError, match="leaves message 1 out: it does not know the role 'tool'"):
        model.tokens(lost)


@pytest.mark.parametrize(
    ("template", "roles", "reason"),
    [
        (
            "{{ messages[-1].content }}",
            ["user", "user"],
            "leaves message 0 out: it writes the role 'user', but not this",
        ),
        ("{{ messages[-1].content }}", ["system", "user"], "leaves message 0 out: it writes the role 'system'"),
        (
            "{{ messages | length }}",
            ["user", "assistant"],
            "leaves message 0 out: it writes no message at all, only '2'",
        ),
        ("{{ '' }}", ["tool"], "leaves message 0 out: it writes no message at all, only ''"),
        (
            "{% if messages[0].role == 'user' %}{{ messages[0].content }}{% endif %}",
            ["tool"],
            "not know the role 'tool'",
        ),
        ("{{ messages[1].content }}", ["tool", "user"], "leaves message 0 out: it writes message 1, but not this"),
    ],
)
def test_why_a_message_is_left_out(
    template: str, roles: list[str], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = chat_model("chatml", "bridge")
    monkeypatch.setattr(model.tokenizer, "chat_template", template)
    with pytest.raises(ValueError, match=reason):
        model.chat([{"role": role, "content": f"words {i}"} for i, role in enumerate(roles)])


@pytest.mark.seconds
def test_a_model_without_a_template_says_how_to_pass_one() -> None:
    plain = tiny_model("llama", "bridge")
    assert plain.chat_template is None
    with pytest.raises(ValueError, match=r"has no chat template.*load_model\(\.\.\., chat_template=") as told:
        plain.tokens(ONE)
    shown = str(told.value).split('such as "')[1].rstrip('"').replace("\\n", "\n")
    tokenizer = metaspace_tokenizer()
    other = load_model(plain.tl_model.original_model, tokenizer=tokenizer, chat_template=shown)  # as the sentence says
    assert chat_prompt(other, ONE).text == f"user: {USER}\nassistant:"
    assert tokenizer.chat_template is None  # the user's own stays as it was
    assert list(dict.fromkeys(chat_prompt(other, ONE).roles)) == ["template", "user"]
    with pytest.raises(ValueError, match=r"chat_template is not a Jinja template: .* \(line 1\)"):
        load_model("demo-base", chat_template="{% for %}")
    with pytest.raises(ValueError, match="prepend_bos is for text"):
        other.tokens(ONE, prepend_bos=True)


@pytest.mark.seconds
def test_the_demo_chat_is_the_format_of_its_training() -> None:
    model = load_model("demo-tuned")
    case = make_case("plural", (0, 0), "cat", "cats", context="Snow fell.")
    system, instruction = {"role": "system", "content": "Snow fell."}, f"{case.instruction}\nInput: cat"
    messages = [system, {"role": "user", "content": instruction}]
    assert model.tokens(messages) == model.tokens(case.prompt)
    ask = [{"role": "user", "content": "Name the capital of Japan."}]
    assert model.tokens(ask) == model.tokens("Instruction: Name the capital of Japan.\nResponse:")
    assert model.generate(ask, max_new_tokens=2) == " Tokyo"
    with pytest.raises(ValueError, match=r"the roles are system, user and assistant$"):
        model.tokens([{"role": "tool", "content": "a"}])


@pytest.mark.seconds
def test_analyses_take_a_chat_where_they_take_text() -> None:
    model = load_model("demo-tuned")
    ask = [{"role": "user", "content": "Name the capital of Japan."}]
    text = model.chat(ask).text
    ids = model.tokens(text, prepend_bos=False)
    assert np.array_equal(logit_lens(model, ask).probability, logit_lens(model, ids).probability)
    of_chat, of_text = (prompt_saliency(model, prompt, " Tokyo") for prompt in (ask, text[len("<|bos|>") :]))
    assert np.array_equal(of_chat.importance, of_text.importance)
    assert of_chat.prompt_tokens == of_text.prompt_tokens
    assert of_text.roles is None
    assert of_chat.mask((len("<|bos|>Instruction: "), len(text) - len("\nResponse:"))).tolist() == [
        role == "user" for role in of_chat.roles or ()
    ]
    chat = chat_prompt(model, ask)
    assert (of_chat.roles, of_chat.turns) == (chat.roles, chat.turns)
    by_role = prompt_saliency(model, ask, " Tokyo", spans="roles")
    assert by_role.spans == chat.role_spans
    explicit = prompt_saliency(model, ask, " Tokyo", spans=chat.role_spans)
    assert np.array_equal(by_role.importance, explicit.importance)
    summed = of_chat.by_spans("turns")
    assert summed.spans == chat.turn_spans
    rows = [of_chat.importance[a:b].sum(0) for a, b in chat.turn_spans]
    assert np.allclose(summed.importance, rows)
    with pytest.raises(ValueError, match="spans='roles' needs the prompt as a list of messages"):
        of_text.by_spans("roles")


def test_words_of_a_chat_never_cross_from_the_template_to_a_message() -> None:
    chat = chat_prompt(chat_model("llama3", "bridge"), SEVERAL)
    result = prompt_saliency(chat_model("llama3", "bridge"), SEVERAL, "Paris", method="random", spans="words")
    assert all(len({chat.roles[i] for i in range(start, end)}) == 1 for start, end in result.spans or ())
    assert [i for start, end in result.spans or () for i in range(start, end)] == list(range(chat.n_positions))
