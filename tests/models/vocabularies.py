"""Tiny tokenizers of every kind of vocabulary, and a tiny model for each."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from interp_widgets.models import Model, load_model
from tests.models.tiny import TEXT, byte_level_tokenizer, metaspace_tokenizer

LINES = TEXT.splitlines()


def _fast(core: Any, **tokens: str) -> Any:
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(tokenizer_object=core, **tokens)


def byte_level() -> Any:
    """GPT-2's kind, with added tokens whose letters are beyond ASCII."""
    from tokenizers import Tokenizer

    core = Tokenizer.from_str(byte_level_tokenizer().backend_tokenizer.to_str())
    core.add_tokens(["Zürich", "naïveté", "日本"])
    return _fast(core, eos_token="<|endoftext|>", bos_token="<|endoftext|>")


def byte_level_trimmed() -> Any:
    """RoBERTa's kind: the characters of a token leave its space out."""
    from tokenizers import Tokenizer, processors

    core = Tokenizer.from_str(byte_level_tokenizer().backend_tokenizer.to_str())
    core.post_processor = processors.ByteLevel(trim_offsets=True)
    return _fast(core, eos_token="<|endoftext|>")


def legacy_metaspace() -> Any:
    """LLaMA's first kind: a space in front of every text, also of one that begins with a space."""
    from tokenizers import Tokenizer, normalizers

    core = Tokenizer.from_str(metaspace_tokenizer().backend_tokenizer.to_str())
    core.pre_tokenizer = None
    core.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    return _fast(core, unk_token="<unk>", bos_token="<s>", eos_token="</s>")


def unigram() -> Any:
    """T5's kind."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    core = Tokenizer(models.Unigram())
    core.normalizer, core.pre_tokenizer = normalizers.NFKC(), pre_tokenizers.Metaspace()
    core.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=150, special_tokens=["<unk>", "<s>"], unk_token="<unk>", show_progress=False
    )
    core.train_from_iterator(LINES, trainer)
    return _fast(core, unk_token="<unk>", bos_token="<s>")


def wordpiece() -> Any:
    """BERT's kind, in lower case and without accents."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    core = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    core.normalizer, core.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    core.decoder = decoders.WordPiece()
    core.train_from_iterator(
        [*LINES, "don't"],
        trainers.WordPieceTrainer(vocab_size=220, special_tokens=["[UNK]", "[CLS]"], show_progress=False),
    )
    return _fast(core, unk_token="[UNK]", bos_token="[CLS]")


def word_ends(decoder: bool = True) -> Any:
    """The first GPT's kind: ``</w>`` ends a word."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    core = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    core.normalizer, core.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    if decoder:
        core.decoder = decoders.BPEDecoder()
    trainer = trainers.BpeTrainer(
        vocab_size=220, special_tokens=["<unk>"], end_of_word_suffix="</w>", show_progress=False
    )
    core.train_from_iterator([*LINES, "don't"], trainer)
    return _fast(core, unk_token="<unk>")


def clip() -> Any:
    """CLIP's kind: characters for bytes, and ``</w>`` ends a word."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    core = Tokenizer(models.BPE(end_of_word_suffix="</w>"))
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(r"\s+"), "removed"), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=700, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), special_tokens=["<e>"],
        end_of_word_suffix="</w>", show_progress=False,
    )  # fmt: skip
    core.train_from_iterator(LINES, trainer)
    return _fast(core, eos_token="<e>")


def characters() -> Any:
    """A token per character."""
    from tokenizers import Tokenizer, decoders, models

    vocabulary = {character: number for number, character in enumerate(sorted({*TEXT, " "}))}
    core = Tokenizer(models.BPE(vocab={**vocabulary, "<unk>": len(vocabulary)}, merges=[], unk_token="<unk>"))
    core.decoder = decoders.Fuse()
    return _fast(core, unk_token="<unk>")


VOCABULARIES: dict[str, Callable[[], Any]] = {
    "byte_level": byte_level,
    "byte_level_trimmed": byte_level_trimmed,
    "metaspace": metaspace_tokenizer,
    "legacy_metaspace": legacy_metaspace,
    "unigram": unigram,
    "wordpiece": wordpiece,
    "word_ends": word_ends,
    "word_ends_without_decoder": lambda: word_ends(decoder=False),
    "clip": clip,
    "characters": characters,
}
LOSSLESS = ("byte_level", "byte_level_trimmed", "metaspace", "legacy_metaspace")
"""Kinds whose tokens hold the whole text."""


@functools.cache
def _loaded() -> Model:
    """A tiny random model with a vocabulary as large as the largest of these."""
    from transformers import LlamaConfig, LlamaForCausalLM

    state = torch.random.get_rng_state()
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=720, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=128, initializer_range=0.3, pad_token_id=None,
    )  # fmt: skip
    hf_model = LlamaForCausalLM(config).eval()
    torch.random.set_rng_state(state)
    return load_model(hf_model, backend="bridge", device="cpu")


@functools.cache
def model_of(kind: str) -> Model:
    """The model with a tokenizer of a kind (shared: leave it as it was)."""
    loaded, tokenizer = _loaded(), VOCABULARIES[kind]()
    puts_bos = len(tokenizer("a")["input_ids"]) > len(tokenizer("a", add_special_tokens=False)["input_ids"])
    return Model(
        loaded.tl_model, name=kind, backend=loaded.backend, self_check=loaded.self_check, tokenizer=tokenizer,
        prepend_bos=puts_bos,
    )  # fmt: skip
