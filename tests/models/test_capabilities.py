"""What a model does not have is refused in one sentence of the field; what it has is right although it is unusual."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import transformers as tf
from torch import Tensor

from interp_widgets.analysis.ablation import (
    Ablation,
    ablate_heads,
    ablate_modules,
    ablate_neurons,
    ablated_prediction,
    ablation,
    causal_trace,
)
from interp_widgets.analysis.attention import (
    attention_patterns,
    attention_reasons,
    direct_logit_attribution,
    head_scores,
    head_writes,
    massive_activations,
)
from interp_widgets.analysis.ffn_concepts import ffn_concepts, neuron_effects, neuron_tokens
from interp_widgets.analysis.logit_lens import logit_lens
from interp_widgets.analysis.patching import activation_patching
from interp_widgets.analysis.saliency import prompt_saliency
from interp_widgets.analysis.token_decomposition import decompose_logit, decompose_tokens
from interp_widgets.models import LoadError, Model, SelfCheckError, load_model
from interp_widgets.models.capabilities import BlockValues, MlpBranch
from interp_widgets.models.transformerlens import has_hooked_transformer
from tests.architectures.functions import WORDS, tokenizer
from tests.architectures.models import random_model
from tests.architectures.naive import Naive, names_of
from tests.models.tiny import FAMILIES, tiny_model

IDS = [3, 17, 42, 8, 5]
IDS_OF = {"vocab_size": 128, "pad_token_id": None, "bos_token_id": 0, "eos_token_id": 0}
SMALL = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": 64, "initializer_range": 0.3, **IDS_OF,
}  # fmt: skip
EXPERTS = {"num_key_value_heads": 2, "head_dim": 8, "moe_intermediate_size": 24, "num_experts_per_tok": 2}
CONFIGS: dict[str, Callable[[], Any]] = {
    "mamba": lambda: tf.MambaConfig(hidden_size=32, num_hidden_layers=2, state_size=4, **IDS_OF),
    "rwkv": lambda: tf.RwkvConfig(hidden_size=32, num_hidden_layers=2, context_length=64, **IDS_OF),
    "openai-gpt": lambda: tf.OpenAIGPTConfig(n_embd=32, n_layer=2, n_head=4, n_positions=64, **IDS_OF),
    "qwen3_moe": lambda: tf.Qwen3MoeConfig(num_experts=4, **EXPERTS, **SMALL),
    "deepseek": lambda: tf.DeepseekV3Config(
        n_routed_experts=4, n_group=1, topk_group=1, first_k_dense_replace=1, q_lora_rank=16, kv_lora_rank=16,
        qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=16, num_key_value_heads=4, moe_intermediate_size=24,
        num_experts_per_tok=2, **SMALL,
    ),
    "phi": lambda: tf.PhiConfig(**SMALL),
    "falcon": lambda: tf.FalconConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, ffn_hidden_size=48, initializer_range=0.3, **IDS_OF
    ),
    "gpt_neo": lambda: tf.GPTNeoConfig(
        hidden_size=32, num_layers=2, num_heads=4, intermediate_size=48, attention_types=[[["global", "local"], 1]],
        window_size=4, max_position_embeddings=64, initializer_range=0.3, **IDS_OF,
    ),
    "olmo2": lambda: tf.Olmo2Config(**SMALL),
    "olmo3": lambda: tf.Olmo3Config(
        sliding_window=8, layer_types=["sliding_attention", "full_attention"], **SMALL
    ),
    "bloom": lambda: tf.BloomConfig(hidden_size=32, n_layer=2, n_head=4, initializer_range=0.3, **IDS_OF),
    "mpt": lambda: tf.MptConfig(d_model=32, n_heads=4, n_layers=2, max_seq_len=64, initializer_range=0.3, **IDS_OF),
    "opt": lambda: tf.OPTConfig(
        hidden_size=32, ffn_dim=48, num_hidden_layers=2, num_attention_heads=4, word_embed_proj_dim=16,
        max_position_embeddings=64, init_std=0.3, **{**IDS_OF, "pad_token_id": 1},
    ),
    "opt_post_norm": lambda: tf.OPTConfig(
        hidden_size=32, ffn_dim=48, num_hidden_layers=2, num_attention_heads=4, word_embed_proj_dim=32,
        do_layer_norm_before=False, max_position_embeddings=64, **{**IDS_OF, "pad_token_id": 1},
    ),
    "falcon_new": lambda: tf.FalconConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, new_decoder_architecture=True, num_kv_heads=2,
        **IDS_OF,
    ),
}  # fmt: skip


@functools.cache
def transformers_model(name: str) -> Any:
    """A random transformers model; norms and biases are random too."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        hf_model = tf.AutoModelForCausalLM.from_config(CONFIGS[name]()).eval()
        for parameter in hf_model.parameters():
            if parameter.ndim == 1:
                parameter.data.add_(0.2 * torch.randn_like(parameter))
    return hf_model


@functools.cache
def model_of(name: str, backend: Any = "auto") -> Model:
    return load_model(transformers_model(name), backend=backend)


QUESTIONS: dict[str, Callable[[Model], Any]] = {
    "ablate_modules": lambda model: ablate_modules(model, IDS),
    "ablate_heads": lambda model: ablate_heads(model, IDS),
    "ablate_neurons": lambda model: ablate_neurons(model, IDS, layer=1),
    "causal_trace": lambda model: causal_trace(model, IDS, (0, 2), samples=1),
    "Ablation('head', ...)": lambda model: ablated_prediction(model, IDS, Ablation("head", 0, index=0)),
    "Ablation('neuron', ...)": lambda model: ablated_prediction(model, IDS, Ablation("neuron", 0, index=0)),
    "Ablation('attn_to_mlp', ...)": lambda model: ablated_prediction(model, IDS, Ablation("attn_to_mlp", 0)),
    "activation_patching": lambda model: activation_patching(model, IDS, [*IDS[:2], 9, 8, 5], 7, foil=9),
    "decompose_tokens": lambda model: decompose_tokens(model, IDS),
    "decompose_logit": lambda model: decompose_logit(model, IDS),
    "attention_patterns": lambda model: attention_patterns(model, IDS),
    "head_scores": lambda model: head_scores(model, length=4, sequences=1),
    "direct_logit_attribution": lambda model: direct_logit_attribution(model, IDS),
    "head_writes": lambda model: head_writes(model, IDS, 1, 1),
    "attention_reasons": lambda model: attention_reasons(model, IDS, 1, 1, -1, -2),
    "massive_activations": lambda model: massive_activations(model, IDS, others=1, references=1),
    "neuron_tokens": lambda model: neuron_tokens(model, layer=0),
    "neuron_effects": lambda model: neuron_effects(model, IDS, layer=0),
    "logit_lens": lambda model: logit_lens(model, IDS),
}
NEURONS = {"ablate_neurons", "Ablation('neuron', ...)", "neuron_tokens", "neuron_effects"}
SPLIT = {"decompose_tokens", "decompose_logit", "attention_reasons"}
REFUSED = {
    "mamba": set(QUESTIONS) - {"logit_lens", "massive_activations"},
    "rwkv": set(QUESTIONS) - {"logit_lens", "massive_activations"},
    "openai-gpt": set(QUESTIONS)
    - {"Ablation('head', ...)", "Ablation('neuron', ...)", "attention_patterns", "head_scores"},
    "qwen3_moe": NEURONS | SPLIT,
    "deepseek": NEURONS | SPLIT | {"ablate_heads", "Ablation('head', ...)", "direct_logit_attribution", "head_writes"},
    "phi": set(),
    "falcon": set(),
    "gpt_neo": {"attention_reasons"},
}


def refusal(ask: Callable[[Model], Any], model: Model) -> str:
    """What a ValueError says; "" for an answer."""
    try:
        ask(model)
    except ValueError as error:
        return str(error)
    return ""


@pytest.mark.seconds
@pytest.mark.parametrize("name", REFUSED)
def test_every_question_is_answered_or_refused_in_a_sentence(name: str) -> None:
    model = model_of(name, "bridge")
    sentences = {question: sentence for question, ask in QUESTIONS.items() if (sentence := refusal(ask, model))}
    assert set(sentences) == REFUSED[name]
    for question, sentence in sentences.items():
        assert question.split("(")[0] in sentence.split(" needs ")[0]
        assert f"which {type(transformers_model(name)).__name__} does not have: its " in sentence
        assert "hook" not in sentence
        assert "\n" not in sentence


def test_neurons_that_are_normed_together_do_not_add_up() -> None:
    """The bridge of TransformerLens 3 shows the MLP output behind its norm, that of 4 before it."""
    model = model_of("olmo2")
    if has_hooked_transformer():
        with pytest.raises(ValueError, match="the neurons of layer 0 do not add up to its MLP output"):
            neuron_effects(model, IDS, layer=0)
    else:
        found = neuron_effects(model, IDS, layer=0)
        assert found.effect.sum() + found.bias_effect == pytest.approx(found.mlp_effect, abs=1e-5)


@pytest.mark.parametrize("name", ["mamba", "qwen3_moe", "phi", "gpt_neo", "bloom"])
def test_saliency_needs_only_embeddings(name: str) -> None:
    result = prompt_saliency(model_of(name), IDS, [9, 4], method="first_order")
    assert np.isfinite(result.importance).all()


@pytest.mark.parametrize("name", ["phi", "falcon"])
def test_attention_to_mlp_is_zero_in_parallel_blocks_that_share_a_norm(name: str) -> None:
    """It was refused, because such an MLP reads no stream but what the shared norm gives."""
    model = model_of(name)
    assert model.capabilities.parallel_blocks
    found = ablate_modules(model, IDS)
    assert np.abs(found.of("attn_to_mlp")).max() == 0
    assert np.abs(found.of("attn")[0]).min() > 0
    before = model.run(IDS).logits
    with ablation(model, Ablation("attn_to_mlp", 0)):
        assert torch.equal(model.run(IDS).logits, before)


@pytest.mark.parametrize("family", FAMILIES)
def test_capabilities_of_ordinary_families(family: str) -> None:
    model = tiny_model(family)
    has = model.capabilities
    assert not has.reasons
    assert has.gradients
    assert has.heads
    assert has.mlp_neurons
    assert has.cached_generation
    assert has.gated == (family not in ("gpt2", "gpt_neox"))
    assert has.parallel_blocks == (family == "gpt_neox")
    assert has.positions == ("learned" if family == "gpt2" else "rotary")
    assert has.normalization == ("LayerNorm" if family in ("gpt2", "gpt_neox") else "RMSNorm")
    assert has.soft_cap == (3.0 if family == "gemma2" else 0.0)
    assert has.devices == ("cpu",)
    assert has is model.capabilities  # found once


def test_a_users_hooks_neither_see_the_look_nor_hide_anything() -> None:
    model = load_model(transformers_model("gpt_neo"))
    seen: list[Tensor] = []

    def forget(value: Tensor, hook: Any) -> Tensor:
        seen.append(value)
        return torch.zeros_like(value)

    with model.tl_model.hooks(fwd_hooks=[("blocks.1.hook_resid_post", forget)]):
        has = model.capabilities
        assert has.heads
        assert has.mlp_neurons
        assert not has.parallel_blocks
        assert not seen
        model.run(IDS)
        assert len(seen) == 1  # it is back on


def test_neurons_are_counted_in_the_weights() -> None:
    """GPT-Neo and Falcon may have MLPs of any width, which TransformerLens takes for four times the stream."""
    for name in ("gpt_neo", "falcon"):
        model = model_of(name, "bridge")
        assert model.d_mlp == 48
        assert ablate_neurons(model, IDS, layer=1).effect.shape == (48,)
        with pytest.raises(ValueError, match=r"neuron must be in 0\.\.47"):
            ablated_prediction(model, IDS, Ablation("neuron", 0, index=48))


@pytest.mark.parametrize("name", ["mamba", "rwkv", "mpt", "openai-gpt"])
def test_generation_without_a_usable_cache(name: str) -> None:
    """The steps of an MPT bridge were eleven logits off; those of the others raised an AttributeError."""
    model, hf_model = model_of(name, "bridge"), transformers_model(name)
    usable = name == "mpt" and not has_hooked_transformer()  # right from TransformerLens 4 on
    assert model.capabilities.cached_generation == usable
    assert ("generation without a key/value cache" in model.self_check.summary()) != usable
    ids = list(IDS)
    for _ in range(6):
        with torch.no_grad():
            ids.append(int(hf_model(torch.tensor([ids])).logits[0, -1].argmax()))
    wanted = ids[len(IDS) :]
    wanted = wanted[: wanted.index(0)] if 0 in wanted else wanted  # 0 ends a text
    assert model.generate_ids(IDS, max_new_tokens=6) == wanted


def test_a_token_embedding_is_the_row_of_the_embedding_table() -> None:
    """BLOOM norms its embeddings; HookedTransformer feeds in what comes behind that norm."""
    model, hf_model = model_of("bloom"), transformers_model("bloom")
    assert model.backend == "bridge"
    rows = hf_model.get_input_embeddings()(torch.tensor(IDS)).detach()
    torch.testing.assert_close(model.token_embeddings(IDS), rows)
    torch.testing.assert_close(model.weight("W_E")[IDS], rows)
    wanted = model.run(IDS).logits
    torch.testing.assert_close(model.run(IDS, embeddings=rows).logits, wanted, atol=1e-4, rtol=0)
    torch.testing.assert_close(model.forward(rows[None]), wanted, atol=1e-4, rtol=0)


@pytest.mark.hooked
def test_hooked_transformer_is_refused_for_another_embedding_row() -> None:
    assert "a pass from its token embeddings differs" in model_of("bloom").self_check.note
    with pytest.raises(SelfCheckError, match="a pass from its token embeddings differs from the pass from their ids"):
        model_of("bloom", "hooked")


@pytest.mark.hooked
@pytest.mark.parametrize("case", ["rows that the norm leaves nearly as they are", "half precision"])
def test_a_norm_of_embeddings_that_logits_do_not_show_is_noticed(case: str) -> None:
    """In both, the pass from the rows agrees within its tolerance, and derivatives would be those behind the norm."""
    hf_model = tf.BloomForCausalLM(tf.BloomConfig(hidden_size=32, n_layer=2, n_head=4, **IDS_OF)).eval()
    generator = torch.Generator().manual_seed(0)
    for parameter in hf_model.parameters():
        if parameter.ndim > 1:
            parameter.data.copy_(torch.randn(parameter.shape, generator=generator) * 0.02)
    if case == "half precision":
        model = load_model(hf_model.to(torch.bfloat16))
    else:
        table = hf_model.get_input_embeddings().weight
        table.data.copy_(torch.nn.functional.layer_norm(50 * table.data, (32,)))
        model = load_model(hf_model.double())
        found = prompt_saliency(model, IDS, [7, 9], method="first_order").importance
        rows = hf_model.get_input_embeddings()(torch.tensor([[*IDS, 7]])).detach().requires_grad_()
        probabilities = hf_model(inputs_embeds=rows).logits[0].softmax(-1)
        for column, token in enumerate((7, 9)):
            (slope,) = torch.autograd.grad(probabilities[len(IDS) - 1 + column, token], rows, retain_graph=True)
            wanted = (slope * rows).sum(-1)[0, : len(IDS)].detach()
            np.testing.assert_allclose(np.asarray(found)[:, column], wanted, atol=1e-10)
    assert model.backend == "bridge"
    assert "its hook of token embeddings holds other numbers" in model.self_check.note


def test_the_bridge_knows_how_many_positions_there_are() -> None:
    model = model_of("mpt")
    assert model.n_ctx == 64
    with pytest.raises(ValueError, match="65 tokens do not fit the model's context of 64 tokens"):
        model.run([1] * 65)


@pytest.mark.parametrize("name", ["opt_post_norm", "falcon_new"])
def test_what_neither_backend_can_convert_is_refused_in_a_sentence(name: str) -> None:
    """These ended in a RuntimeError from inside."""
    kind = type(transformers_model(name)).__name__
    with pytest.raises((LoadError, SelfCheckError), match=f"^{kind} as TransformerBridge failed"):
        model_of(name)


def test_a_package_that_an_architecture_needs_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """TransformerLens raises an ImportError for Qwen's vision models where torchvision is not installed."""

    def needs(*args: Any, **options: Any) -> Any:
        raise ImportError("this adapter needs torchvision. Install with `pip install torchvision`")

    monkeypatch.setattr("interp_widgets.models.convert.to_bridge", needs)
    with pytest.raises(LoadError, match=r"failed: it needs a package that is not installed: .* `pip install torchvis"):
        load_model(transformers_model("gpt_neo"), backend="bridge")


def test_embeddings_of_another_width_than_the_stream_are_refused() -> None:
    with pytest.raises(SelfCheckError, match="its token embeddings have 16 numbers and its residual stream 32"):
        model_of("opt")


@pytest.mark.hooked
def test_an_error_of_torch_in_a_conversion_falls_back_to_the_bridge() -> None:
    model = model_of("gpt_neo")
    assert model.backend == "bridge"
    assert "TransformerLens does not support this architecture" in model.self_check.note


def test_a_rotary_embedding_with_a_rule_per_kind_of_layer_loads() -> None:
    model = model_of("olmo3", "bridge")
    assert model.self_check.passed
    assert len(model.weight_hash) == 64


@pytest.mark.parametrize("parallel", [(True, False), (False, True)])
def test_where_the_mlp_reads_is_found_in_every_block(parallel: tuple[bool, bool]) -> None:
    """A model whose blocks differ: in one the MLP runs beside the attention, in the other behind it."""
    hf_model = random_model("gpt_neox" if parallel[0] else "gpt_neox_sequential")
    for block, beside in zip(hf_model.gpt_neox.layers, parallel, strict=True):
        block.use_parallel_residual = beside
    model = load_model(hf_model, backend="bridge")
    assert model.capabilities.parallel_layers == parallel
    assert not model.capabilities.parallel_blocks
    naive = Naive(hf_model, names_of("gpt_neox_sequential"))
    ids, places = [5, 17, 30, 44, 8, 9], [0, 3, 5]
    before = naive.logits(ids)[-1, 7]
    wanted = np.array([
        [float(before - naive.logits(ids, naive.without("attn_to_mlp", layer, [at]))[-1, 7]) for at in places]
        for layer in range(2)
    ])  # fmt: skip
    found = ablate_modules(model, ids, 7, kinds=("attn_to_mlp",), positions=places, metric="logit").effect[0]
    np.testing.assert_allclose(found, wanted, atol=1e-6)
    assert [bool(np.abs(row).max() > 1e-3) for row in wanted] == [not beside for beside in parallel]
    with ablation(model, [Ablation("attn_to_mlp", 0), Ablation("attn_to_mlp", 1)]):
        changed = model.run(ids).logits[0]
    hooks = naive.without("attn_to_mlp", 0) + naive.without("attn_to_mlp", 1)
    torch.testing.assert_close(changed, naive.logits(ids, hooks), atol=1e-6, rtol=0)
    parts = decompose_tokens(model, ids, lens=None)
    torch.testing.assert_close(
        torch.as_tensor(parts.parts[-1].sum(0) + parts.bias[-1]).double(), naive.streams(ids)[-1, -1], atol=1e-4, rtol=0
    )


def test_a_large_stream_does_not_hide_that_the_mlp_reads_attention() -> None:
    """At some positions the stream is so large that half precision loses what attention adds to it."""
    generator = torch.Generator().manual_seed(0)
    before, attention = (torch.randn(1, 4, 512, generator=generator) for _ in range(2))
    before, attention = before * torch.tensor([1e4, 20, 20, 20])[:, None], 0.3 * attention
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        stream, added = before.to(dtype), attention.to(dtype)
        for reads in (True, False):
            values = BlockValues(stream, added, None, {"ln2": stream + added if reads else stream})
            assert values.branch() == MlpBranch("ln2", reads)


def test_an_unembedding_of_something_else_is_refused() -> None:
    """ModernBERT's decoder puts a dense layer and a norm between its final norm and the unembedding."""
    config = tf.ModernBertDecoderConfig(
        vocab_size=128, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=64, pad_token_id=0, bos_token_id=0, eos_token_id=0, cls_token_id=0, sep_token_id=0,
    )  # fmt: skip
    model = load_model(tf.AutoModelForCausalLM.from_config(config), tokenizer=tokenizer(), backend="bridge")
    assert model.capabilities.mlp_neurons
    for call in (lambda: neuron_tokens(model, layer=1), lambda: ffn_concepts(model, words=WORDS, rank=2, top=2)):
        with pytest.raises(ValueError, match="needs an unembedding that reads the normed residual stream"):
            call()
    for other in ("gpt_neo", "falcon", "olmo2", "bloom"):
        assert model_of(other).capabilities.unembedding


# ---- after an edit of the model


class Doubling(torch.nn.Module):
    """What a user puts around a part of a model."""

    def __init__(self, part: torch.nn.Module) -> None:
        super().__init__()
        self.part = part

    def forward(self, x: Tensor) -> Tensor:
        value: Tensor = self.part(x)
        return 2 * value


@functools.cache
def of_the_matrix(architecture: str) -> Model:
    return load_model(random_model(architecture), tokenizer=tokenizer(), backend="bridge")


def fresh(architecture: str) -> tuple[Model, Any]:
    """A bridge that has been asked everything, and the transformers model inside it."""
    model = load_model(random_model(architecture), tokenizer=tokenizer(), backend="bridge")
    for ask in QUESTIONS.values():
        refusal(ask, model)
    return model, model.tl_model.original_model


@pytest.mark.seconds
def test_blocks_that_a_user_makes_sequential_are_no_longer_parallel() -> None:
    """Their attention-to-MLP effects stayed at zero."""
    model, inside = fresh("gpt_neox")
    before = model.capabilities
    edited = random_model("gpt_neox")
    edited.gpt_neox.layers[1].use_parallel_residual = False
    inside.gpt_neox.layers[1].original_component.use_parallel_residual = False
    assert before.parallel_layers == (True, True)
    assert model.capabilities.parallel_layers == (True, False)
    naive, ids = Naive(edited, names_of("gpt_neox_sequential")), [5, 17, 30, 44, 8, 9]
    clean = naive.logits(ids)[-1, 7]
    wanted = [float(clean - naive.logits(ids, naive.without("attn_to_mlp", 1, [at]))[-1, 7]) for at in (0, 3, 5)]
    found = ablate_modules(model, ids, 7, kinds=("attn_to_mlp",), positions=(0, 3, 5), metric="logit").effect[0]
    np.testing.assert_allclose(found[1], wanted, atol=1e-6)
    assert not found[0].any()
    with ablation(model, Ablation("attn_to_mlp", 1)):
        torch.testing.assert_close(
            model.run(ids).logits[0], naive.logits(ids, naive.without("attn_to_mlp", 1)), atol=1e-6, rtol=0
        )


def final_norm(inside: Any) -> None:
    inside.model.norm = torch.nn.Identity()


def output_matrix(inside: Any) -> None:
    mlp = inside.model.layers[1].mlp.original_component
    mlp.down_proj = Doubling(mlp.down_proj)


def whole_mlp(inside: Any) -> None:
    block = inside.model.layers[1].original_component
    block.mlp = Doubling(torch.nn.Linear(32, 32, dtype=torch.float64))


def first_norm(inside: Any) -> None:
    inside.model.layers[1].original_component.input_layernorm = torch.nn.Identity()


def unembedding(inside: Any) -> None:
    inside.lm_head = Doubling(inside.lm_head)


@pytest.mark.seconds
@pytest.mark.parametrize(
    ("edit", "weights", "refused"),
    [
        (final_norm, [("ln_final_w", None)], {"neuron_tokens", *SPLIT} - {"attention_reasons"}),
        (output_matrix, [("W_out", 1), ("W_in", 1)], NEURONS | SPLIT),
        (
            whole_mlp,
            [("W_out", 1), ("b_out", 1)],
            NEURONS | SPLIT | {"ablate_modules", "activation_patching", "causal_trace"},
        ),
        (first_norm, [("ln1_w", 1)], SPLIT),
        (unembedding, [("W_U", None), ("b_U", None)], {"neuron_tokens", *SPLIT} - {"attention_reasons"}),
    ],
)
def test_a_part_that_a_user_replaced_is_not_read_as_it_was(
    edit: Callable[[Any], None], weights: list[tuple[str, int | None]], refused: set[str]
) -> None:
    """The weights of what had been loaded were read on, and neurons of them ablated."""
    model, inside = fresh("llama")
    assert not {question for question, ask in QUESTIONS.items() if refusal(ask, model)}
    edit(inside)
    for name, layer in weights:
        with pytest.raises(ValueError, match=f"no {name} any more, because that part .* was replaced .*: load the"):
            model.weight(name, layer)
    sentences = {question: sentence for question, ask in QUESTIONS.items() if (sentence := refusal(ask, model))}
    assert refused <= set(sentences)
    assert not any("hook" in sentence or "\n" in sentence for sentence in sentences.values())
    with torch.no_grad():
        wanted = inside(torch.tensor([IDS])).logits
    torch.testing.assert_close(model.run(IDS).logits, wanted, atol=1e-5, rtol=0)


@pytest.mark.seconds
def test_a_norm_behind_the_mlp_that_a_user_replaced_is_no_absent_one() -> None:
    model, inside = fresh("gemma2")
    assert neuron_tokens(model, layer=1).promoted_scores.any()
    block = inside.model.layers[1].original_component
    block.post_feedforward_layernorm = Doubling(block.post_feedforward_layernorm)
    with pytest.raises(ValueError, match="no ln2_post_w any more"):
        neuron_tokens(model, layer=1)


def test_a_model_as_it_was_is_told_of_while_another_thread_computes() -> None:
    model, told = of_the_matrix("llama"), list[Any]()
    before = model.capabilities
    with model.lock:
        other = threading.Thread(target=lambda: told.append(model.capabilities))
        other.start()
        other.join(60)
    assert told == [before]
    assert told[0] is before


# ---- parts of unusual blocks


def test_experts_beside_an_mlp_are_part_of_it() -> None:
    """Gemma 4's: what is taken from the dense part alone left the experts as they were."""
    model = of_the_matrix("gemma4_experts")
    assert model.capabilities.experts
    for name in ("W_in", "W_out", "b_out"):
        with pytest.raises(ValueError, match=f"no {name}: its MLP is not made of one such matrix per layer"):
            model.weight(name, 1)
    with pytest.raises(ValueError, match="does not have: its MLPs read it in several places"):
        ablate_modules(model, IDS, kinds=("attn_to_mlp",))
    assert ablate_modules(model, IDS, kinds=("mlp",)).effect.any()


@pytest.mark.parametrize("architecture", ["gemma4", "bloom_norm_in_stream"])
def test_a_stream_that_layers_multiply_or_norm_is_no_straight_way_to_the_logits(architecture: str) -> None:
    """Gemma 4 multiplies what leaves a layer: the effects of its neurons were too large by all factors behind them."""
    model = of_the_matrix(architecture)
    assert model.capabilities.mlp_neurons
    with pytest.raises(ValueError, match=r"which .* does not have: its layers multiply or norm it; use ablate_neurons"):
        neuron_effects(model, IDS, layer=1)
    assert ablate_neurons(model, IDS, layer=1).effect.any()


@pytest.mark.seconds
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_stream_that_is_only_added_to_is_seen_in_every_type(dtype: torch.dtype) -> None:
    for architecture in ("gpt2", "llama", "gemma3", "falcon", "bamba", "granite"):
        model = load_model(random_model(architecture, dtype=dtype), backend="bridge")
        assert model.capabilities.additive_stream


def test_a_bias_of_a_matrix_that_is_not_there_is_not_zero() -> None:
    """The biases of gpt-oss's experts, which are not zero, were read as such."""
    model = of_the_matrix("gpt_oss")
    for name in ("b_in", "b_out"):
        with pytest.raises(ValueError, match=f"no {name}: its MLP is not made of one such matrix per layer"):
            model.weight(name, 0)
    assert not of_the_matrix("llama").weight("b_out", 0).any()


def test_attention_that_is_shown_with_the_stream_in_it_is_refused() -> None:
    """BERT's: an ablation took the stream out too."""
    model = of_the_matrix("bert_decoder")
    assert model.capabilities.heads
    assert not model.capabilities.attention
    with pytest.raises(ValueError, match="does not have: its layers show it with the stream added"):
        ablate_modules(model, IDS, kinds=("attn",))


def test_a_gate_and_a_linear_branch_in_one_matrix_are_refused() -> None:
    """ModernBERT's W_in was both of them side by side."""
    model = of_the_matrix("modernbert_decoder")
    assert model.weight("W_out", 0).shape == (48, 32)
    for name in ("W_in", "b_in", "W_gate"):
        with pytest.raises(ValueError, match=f"no {name}: its MLP"):
            model.weight(name, 0)


def test_a_second_norm_before_attention_is_read() -> None:
    """RWKV norms its embeddings in front of the first block's own norm; that one was read as no norm at all."""
    model = of_the_matrix("rwkv")
    own = model.tl_model.original_model.rwkv.blocks[1].ln1.original_component.weight
    torch.testing.assert_close(model.weight("ln1_w", 1), own.detach())
    if has_hooked_transformer():  # the bridge of TransformerLens 3 has the norm behind attention under this name
        assert bool((of_the_matrix("olmo2").weight("ln1_w", 1) == 1).all())


@pytest.mark.seconds
def test_rows_are_fed_as_ids_are_where_transformers_multiplies_only_these() -> None:
    """Falcon-H1 with its factors was refused."""
    hf_model, model = random_model("falcon_h1"), of_the_matrix("falcon_h1")
    with torch.no_grad():
        wanted = hf_model(torch.tensor([IDS])).logits[0]
        rows = hf_model.get_input_embeddings()(torch.tensor(IDS))
        as_given = hf_model(inputs_embeds=rows[None]).logits[0]  # of the user's own model, which is left as it was
    torch.testing.assert_close(model.token_embeddings(IDS), rows)
    torch.testing.assert_close(model.forward(rows[None])[0], wanted, atol=1e-5, rtol=0)
    torch.testing.assert_close(model.run(IDS, embeddings=rows).logits[0], wanted, atol=1e-5, rtol=0)
    assert (as_given - wanted).abs().max() > 0.1
    load_model(hf_model, backend="bridge")
    with torch.no_grad():
        torch.testing.assert_close(hf_model(inputs_embeds=rows[None]).logits[0], as_given)
