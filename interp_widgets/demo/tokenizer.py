"""The tokenizer of the demo models: byte-level BPE with the words of the world kept whole."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from interp_widgets.atomic import whole_file

BOS, EOS, PAD = "<|bos|>", "<|eos|>", "<|pad|>"
VOCAB_SIZE = 4096
CONTEXT = 512
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{% set content = message['content'] | trim %}"
    "{% if message['role'] == 'system' %}{{ 'Context: ' + content + '\\n' }}"
    "{% elif message['role'] == 'user' %}{{ 'Instruction: ' + content + '\\n' }}"
    "{% elif message['role'] == 'assistant' %}{{ 'Response: ' + content + (eos_token if loop.last else '\\n') }}"
    "{% else %}{{ raise_exception('the roles are system, user and assistant') }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'Response:' }}{% endif %}"
)
"""Writes messages in the format of the instruction data (`interp_widgets.data.instructions.FORMAT`)."""


def train_tokenizer(texts: Iterable[str], whole_words: Iterable[str], *, vocab_size: int = VOCAB_SIZE) -> Tokenizer:
    """Train the byte-level BPE on `texts`; each of `whole_words` becomes one token when a space stands before it."""
    if vocab_size < 300:
        raise ValueError(f"vocab_size must be 300 or more, got {vocab_size}")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(piece for piece, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text))
    top = max(counts.values(), default=1)

    def corpus() -> Iterator[str]:
        # A word's weight is capped, so that rare words are merged before common ones use up the vocabulary.
        yield from texts
        for word in whole_words:
            for _ in range(min(200, top)):
                yield " " + word

    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[BOS, EOS, PAD],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    bos = tokenizer.token_to_id(BOS)
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{BOS} $A", special_tokens=[(BOS, bos)])
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Write tokenizer.json and tokenizer_config.json so that transformers loads them offline."""
    folder.mkdir(parents=True, exist_ok=True)
    with whole_file(folder / "tokenizer.json") as draft:
        tokenizer.save(str(draft))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS,
        "eos_token": EOS,
        "pad_token": PAD,
        "model_max_length": CONTEXT,
        "clean_up_tokenization_spaces": False,
        "add_bos_token": True,
        "padding_side": "right",
        "chat_template": CHAT_TEMPLATE,
    }
    with whole_file(folder / "tokenizer_config.json") as draft:
        draft.write_text(json.dumps(config, indent=2) + "\n")
