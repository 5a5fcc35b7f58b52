"""The small copy has the boundaries of the model it stands for, crosses them on few tokens, and shows what they do."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers as tf

from interp_widgets.models import SelfCheckError, load_model, self_check, small_copy
from interp_widgets.models.self_check import check_long_context, log_probabilities

LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0] * 4,
    "long_factor": [1.0, 3.0, 5.0, 8.0],
    "original_max_position_embeddings": 600,
}


def rotary(**options: Any) -> dict[str, Any]:
    """A model of a few layers whose boundaries lie past what the check runs itself."""
    return {
        "vocab_size": 300, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4,
        "num_key_value_heads": 2, "max_position_embeddings": 2048, "initializer_range": 0.3,
        "pad_token_id": None, "bos_token_id": 0, "eos_token_id": 0, **options,
    }  # fmt: skip


def qwen2() -> Any:
    return tf.Qwen2Config(**rotary(use_sliding_window=True, sliding_window=700, max_window_layers=1))


def qwen3() -> Any:
    return tf.Qwen3Config(**rotary(head_dim=8, use_sliding_window=True, sliding_window=700, max_window_layers=1))


def phi3() -> Any:
    return tf.Phi3Config(**rotary(original_max_position_embeddings=600, rope_parameters=LONGROPE))


def random_model(config: Any) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return tf.AutoModelForCausalLM.from_config(config).eval()


def tokens(count: int) -> torch.Tensor:
    return torch.randint(0, 300, (1, count), generator=torch.Generator().manual_seed(1))


@pytest.mark.hooked
@pytest.mark.parametrize("config", [qwen2, qwen3, phi3])
def test_what_hooked_transformer_drops_past_a_boundary_is_found(config: Any) -> None:
    """Each was silently wrong behind a check of 48 tokens."""
    hf_model = random_model(config())
    model = load_model(hf_model)
    assert model.backend == "bridge"
    assert "past the lengths that its configuration declares" in model.self_check.note
    assert "log-probabilities differ" in model.self_check.note
    with pytest.raises(SelfCheckError, match="as HookedTransformer failed: past the lengths"):
        load_model(hf_model, backend="hooked")
    ids = tokens(760)
    torch.testing.assert_close(
        log_probabilities(model.tl_model, ids), log_probabilities(hf_model, ids), atol=2e-3, rtol=0
    )


@pytest.mark.hooked
def test_a_window_that_is_kept_stays_with_hooked_transformer() -> None:
    model = load_model(random_model(tf.MistralConfig(**rotary(sliding_window=700))))
    assert model.backend == "hooked"
    past = model.self_check.past
    assert past is not None
    assert past.passed
    assert past.length == 2 * small_copy.STEP
    assert past.gradient_of == "Hugging Face"
    assert model.self_check.caches


@pytest.mark.seconds
def test_the_cache_of_long_rope_is_not_reused() -> None:
    """Keys that were rotated before the boundary are wrong behind it: generation runs whole sequences instead."""
    hf_model = random_model(phi3())
    model = load_model(hf_model, backend="bridge")
    assert model.self_check.passed
    assert not model.self_check.caches
    assert "without a key/value cache (past the lengths that its configuration declares its steps are" in (
        model.self_check.summary()
    )
    prompt = tokens(598)[0].tolist()
    ids = list(prompt)
    for _ in range(5):
        with torch.no_grad():
            ids.append(int(hf_model(torch.tensor([ids])).logits[0, -1].argmax()))
    assert model.generate_ids(prompt, max_new_tokens=5) == ids[len(prompt) :]


def test_the_small_copy_of_a_configuration_is_checked_once() -> None:
    self_check._check_copy.cache_clear()
    first, second = random_model(qwen2()), random_model(qwen2())
    assert check_long_context(first, 48, "bridge", False) is check_long_context(second, 48, "bridge", False)
    assert self_check._check_copy.cache_info().hits == 1


def test_boundaries() -> None:
    assert small_copy.boundaries(tf.LlamaConfig(**rotary())) == ()  # plain rotary positions are the same at any length
    assert small_copy.boundaries(qwen2()) == (700,)
    assert small_copy.boundaries(phi3()) == (600, 2048)
    assert small_copy.boundaries(tf.GPT2Config(n_positions=900)) == (900,)
    assert small_copy.boundaries(tf.GPTNeoConfig()) == (256, 2048)
    assert small_copy.boundaries(tf.BloomConfig()) == ()
    assert small_copy.length_past_bounds(qwen2()) == 700 + small_copy.STEP
    assert small_copy.length_past_bounds(phi3()) == 2048
    assert small_copy.length_past_bounds(tf.LlamaConfig(**rotary())) == 0
    assert small_copy.position_limit(tf.MptConfig(max_seq_len=77)) == 77


def test_a_small_copy_is_small_and_keeps_the_kinds_of_layers() -> None:
    whole = tf.Gemma3TextConfig()
    small = small_copy.small_config(whole)
    assert small.num_hidden_layers == 6
    assert small.layer_types == whole.layer_types[:6]
    assert small.sliding_window == small_copy.STEP
    assert small.head_dim == whole.head_dim
    assert small.hidden_size == 4 * whole.head_dim
    assert small.vocab_size == small_copy.D_VOCAB
    windows = small_copy.small_config(qwen2())
    assert windows.layer_types == ["full_attention", "sliding_attention"]
    assert windows.max_window_layers == 1
    assert (windows.sliding_window, windows.max_position_embeddings) == (small_copy.STEP, 2 * small_copy.STEP)
    neo = small_copy.small_config(tf.GPTNeoConfig())
    assert neo.attention_layers == ["global", "local"]


def test_a_small_copy_shows_what_its_window_does() -> None:
    """The control: without the window the same weights give other numbers past it, and the same before it."""
    config = small_copy.small_config(qwen2())
    tree = {**config.to_dict(), "use_sliding_window": False, "layer_types": ["full_attention"] * 2}
    with_window = small_copy.small_random_copy(tf.Qwen2ForCausalLM, config)
    without = small_copy.small_random_copy(tf.Qwen2ForCausalLM, tf.Qwen2Config.from_dict(tree))
    ids = torch.randint(0, small_copy.D_VOCAB, (1, 2 * small_copy.STEP), generator=torch.Generator().manual_seed(0))
    one, other = log_probabilities(with_window, ids), log_probabilities(without, ids)
    assert (one - other)[:, : small_copy.STEP].abs().max() < 1e-4
    assert (one - other)[:, small_copy.STEP + 2 :].abs().max() > 0.5


def test_making_a_small_copy_leaves_the_random_state() -> None:
    torch.manual_seed(3)
    wanted = torch.rand(2)
    torch.manual_seed(3)
    small_copy.small_random_copy(tf.Qwen2ForCausalLM, small_copy.small_config(qwen2()))
    assert torch.equal(torch.rand(2), wanted)
