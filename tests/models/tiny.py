"""Tiny random Hugging Face folders of several families, with small real tokenizers, for every test that needs a model.

`tiny_folder(family)` builds a folder once per process and returns its path; `FAMILIES` lists the names.
"""

from __future__ import annotations

import atexit
import functools
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch

TEXT = """The Eiffel Tower is located in the city of Paris.
When Mary and John went to the store, John gave a drink to Mary.
Answer the question. What is the capital of France? The capital of France is Paris, and the capital of Italy is Rome.
Write a short story about a small dog. Once there was a dog who lived near the river. The dog was happy every day.
Instruction: translate the word into French. Input: house. Response: maison.
A pilot flies a plane; a nurse helps people.
She sells sea shells by the sea shore. One two three four five six seven eight nine ten.
Café, naïve, über, señor, coração."""

FAMILIES = (
    "gpt2",
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "gemma",
    "gemma2",
    "gpt_neox",
    "llama_bias",
    "llama_linear_rope",
)
"""Families that `tiny_folder` can build. Llama, Mistral and Qwen share key/value heads among query heads."""

BRIDGE_ONLY = ("gemma", "gemma2", "llama_bias", "llama_linear_rope")
"""Families whose conversion to HookedTransformer is refused or wrong, so that ``backend="auto"`` takes the bridge."""

BYTE_LEVEL = ("gpt2", "qwen2", "qwen3", "gpt_neox")
"""Families with a byte-level tokenizer; the others have a SentencePiece-like one with byte fallback and a BOS."""


HALF_SEED = 20
"""The seed of the models for half precision: their matrices are half as large. The others are so steep that bfloat16's
rounding alone takes their log-probabilities past the self-check's bound, which depends on the processor."""


@functools.cache
def byte_level_tokenizer() -> Any:
    """GPT-2's kind of tokenizer: byte-level BPE, one special token, no BOS put in front."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    core.train_from_iterator(TEXT.splitlines(), trainer)
    return PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<|endoftext|>", bos_token="<|endoftext|>")


@functools.cache
def metaspace_tokenizer() -> Any:
    """LLaMA's kind of tokenizer: spaces as ▁, bytes as <0xNN> for unknown characters, <s> put in front."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    special = ["<unk>", "<s>", "</s>"]
    raw = [f"<0x{byte:02X}>" for byte in range(256)]
    core = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    core.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    core.train_from_iterator(
        TEXT.splitlines(), trainers.BpeTrainer(vocab_size=460, special_tokens=special + raw, show_progress=False)
    )
    # the trainer marks the bytes as special; in LLaMA's vocabulary they are ordinary entries
    state = json.loads(core.to_str())
    state["added_tokens"] = [token for token in state["added_tokens"] if token["content"] in special]
    core = Tokenizer.from_str(json.dumps(state))
    core.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    core.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", core.token_to_id("<s>"))]
    )
    return PreTrainedTokenizerFast(tokenizer_object=core, unk_token="<unk>", bos_token="<s>", eos_token="</s>")


def tiny_tokenizer(family: str) -> Any:
    """The tokenizer of a family (shared: do not change it)."""
    return byte_level_tokenizer() if family in BYTE_LEVEL else metaspace_tokenizer()


def tiny_config(family: str, *, n_ctx: int = 128, n_layers: int = 3, d_model: int = 32) -> Any:
    """A transformers configuration: 3 layers, 4 heads of 8, 2 key/value heads where the family has them."""
    import transformers as tf

    tokenizer = tiny_tokenizer(family)
    ids = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id, "pad_token_id": None}
    vocab = {"vocab_size": len(tokenizer), **ids}
    rotary = {
        "hidden_size": d_model,
        "intermediate_size": 3 * d_model,
        "num_hidden_layers": n_layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": n_ctx,
        "initializer_range": 0.3,
        **vocab,
    }
    match family:
        case "gpt2":
            return tf.GPT2Config(
                n_embd=d_model, n_layer=n_layers, n_head=4, n_positions=n_ctx, initializer_range=0.3, **vocab
            )
        case "gpt_neox":
            one = {k: v for k, v in rotary.items() if k != "num_key_value_heads"}
            return tf.GPTNeoXConfig(use_parallel_residual=True, **one)
        case "llama":
            return tf.LlamaConfig(**rotary)
        case "llama_bias":
            return tf.LlamaConfig(attention_bias=True, **rotary)
        case "llama_linear_rope":
            return tf.LlamaConfig(
                rope_parameters={"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}, **rotary
            )
        case "mistral":
            return tf.MistralConfig(sliding_window=None, **rotary)
        case "qwen2":
            return tf.Qwen2Config(**rotary)
        case "qwen3":
            return tf.Qwen3Config(head_dim=d_model // 4, **rotary)
        case "gemma":
            return tf.GemmaConfig(head_dim=d_model // 4, **rotary)
        case "gemma2":
            # a cap low enough that logits without it are far off
            return tf.Gemma2Config(
                head_dim=d_model // 4, query_pre_attn_scalar=d_model // 4, final_logit_softcapping=3.0, **rotary
            )
    raise ValueError(f"family must be one of {', '.join(FAMILIES)}, got {family!r}")


def tiny_hf(family: str, *, seed: int = 0, dtype: torch.dtype = torch.float32, **shape: int) -> Any:
    """A random transformers model in evaluation mode; biases and norm scales are random too: dropping one shows."""
    from transformers import AutoModelForCausalLM

    state = torch.random.get_rng_state()
    try:
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(tiny_config(family, **shape))
        for name, parameter in model.named_parameters():
            if name.endswith(".bias"):
                parameter.data.normal_(0, 0.3)
            elif "norm" in name or ".ln_" in name:
                parameter.data.add_(0.2 * torch.randn_like(parameter))
            elif seed == HALF_SEED:
                parameter.data.mul_(0.5)
    finally:
        torch.random.set_rng_state(state)
    return model.to(dtype).eval()


@functools.cache
def _root() -> Path:
    root = Path(tempfile.mkdtemp(prefix="tiny_models_"))
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    return root


@functools.cache
def tiny_folder(family: str, seed: int = 0) -> Path:
    """A Hugging Face folder (config, safetensors, tokenizer) with random weights; removed when the process ends."""
    folder = _root() / f"{family}_{seed}"
    tiny_hf(family, seed=seed).save_pretrained(folder)
    tiny_tokenizer(family).save_pretrained(folder)
    return folder


@functools.cache
def tiny_model(
    family: str, backend: str = "auto", *, processed: bool = False, dtype: torch.dtype = torch.float32, seed: int = 0
) -> Any:
    """A loaded `Model` on the CPU (shared between tests: leave it as it was)."""
    from interp_widgets.models import load_model

    return load_model(tiny_folder(family, seed), device="cpu", backend=backend, processed=processed, dtype=dtype)
