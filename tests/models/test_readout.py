"""The read-out gives the model's own logits on every family and both backends, and never silently others."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from interp_widgets.models import Model, load_model
from interp_widgets.models.engine import ReadOut, read_out, residual_streams
from interp_widgets.models.translators import Translators, load_translators, save_translators
from tests.models.tiny import HALF_SEED, tiny_config, tiny_hf, tiny_model
from tests.tolerances import limit

IDS = torch.tensor([5, 17, 300, 44, 8, 261, 99, 30])
FAMILIES = [
    *(pytest.param((name, "hooked"), marks=pytest.mark.hooked) for name in ("gpt2", "llama", "gpt_neox", "qwen3")),
    *((name, "bridge") for name in ("gpt2", "llama", "gpt_neox", "gemma", "gemma2")),
]


@pytest.fixture(params=FAMILIES, ids="-".join)
def name(request: pytest.FixtureRequest) -> tuple[str, str]:
    return request.param


def wide(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


def largest(x: Tensor) -> float:
    return float(x.detach().abs().max())


def all_logits(read: ReadOut, streams: Tensor, size: int = 100) -> Tensor:
    """Logits of every row, put together from blocks."""
    hidden, vocab = read.normed(streams), read.network.d_vocab
    return torch.cat([read.block(hidden, a, min(a + size, vocab)) for a in range(0, vocab, size)], dim=-1)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_last_row_is_the_models_own_output(name: tuple[str, str], dtype: torch.dtype) -> None:
    model = tiny_model(*name, dtype=dtype)
    read, wanted = read_out(model), model.run(IDS).logits[0]
    assert read.in_blocks
    streams = residual_streams(model, IDS)
    assert streams.shape == (4, 8, model.d_model)
    assert largest(all_logits(read, streams)[-1] - wanted) < limit(model, single=1e-5) * largest(wanted)
    assert largest(read.whole(streams[-1:])[0] - wanted) < limit(model, single=1e-5) * largest(wanted)


def test_every_row_is_read_like_a_last_one(name: tuple[str, str]) -> None:
    """The model itself is run with its last residual stream replaced by each earlier one."""
    model = tiny_model(*name, dtype=torch.float64)
    streams = residual_streams(model, IDS)
    found = all_logits(read_out(model), streams)
    for row, stream in enumerate(streams):
        wanted = model.run(IDS, edit={"blocks.2.hook_resid_post": lambda _, stream=stream: stream[None]}).logits[0]
        assert largest(found[row] - wanted) < limit(model) * largest(wanted)
    assert largest(found[0] - found[-1]) > 0.1


def test_residuals_are_the_hooked_values(name: tuple[str, str]) -> None:
    model = tiny_model(*name, dtype=torch.float64)
    hooks = [f"blocks.{layer}.hook_resid_pre" for layer in range(3)] + ["blocks.2.hook_resid_post"]
    run = model.run(IDS, capture=hooks)
    wanted = torch.cat([run.activations[hook] for hook in hooks])
    assert largest(residual_streams(model, IDS) - wanted) < limit(model) * largest(wanted)


@pytest.mark.parametrize("name", [pytest.param(("gpt2", "hooked"), marks=pytest.mark.hooked), ("llama", "bridge"),
                                  ("gpt_neox", "bridge"), ("gemma2", "bridge")])  # fmt: skip
def test_half_precision_is_read_in_float32(name: tuple[str, str]) -> None:
    model = tiny_model(*name, dtype=torch.bfloat16, seed=HALF_SEED)
    read, streams = read_out(model), residual_streams(model, IDS)
    assert read.in_blocks
    assert streams.dtype == torch.float32
    logits = all_logits(read, streams)
    assert logits.dtype == torch.float32
    own = model.run(IDS).logits[0].float()
    assert 0 < largest(logits[-1] - own) < 0.02 * largest(own)
    # exactly what the same weights give in float32, which the model's own bfloat16 logits are not
    exact = _widened(model, streams[-1])
    assert largest(logits[-1] - exact) < 1e-5 * largest(exact)
    assert largest(own - exact) > 1e-3 * largest(exact)


def _widened(model: Model, rows: Tensor) -> Tensor:
    """The read-out written out in float64 from the model's named weights."""
    rows, module = rows.double(), getattr(model.tl_model.ln_final, "original_component", model.tl_model.ln_final)
    scale = next(p for n, p in module.named_parameters() if n in ("weight", "w")).double()
    shift = sum(p.double() for n, p in module.named_parameters() if n in ("bias", "b"))
    scale = 1 + scale if type(module).__name__.startswith("Gemma") else scale
    eps = next(getattr(module, n) for n in ("eps", "variance_epsilon") if hasattr(module, n))
    if model.normalization == "LayerNorm":
        rows = rows - rows.mean(-1, keepdim=True)
    rows = rows / (rows.pow(2).mean(-1, keepdim=True) + eps).sqrt() * scale + shift
    logits = rows @ model.weight("W_U").double() + model.weight("b_U").double()
    cap = getattr(model.tl_model.cfg, "output_logits_soft_cap", 0) or 0
    return cap * torch.tanh(logits / cap) if cap > 0 else logits


def test_a_soft_cap_is_applied() -> None:
    from transformers import AutoModelForCausalLM

    config = tiny_config("gemma2")
    config.final_logit_softcapping = 1.5
    torch.manual_seed(0)
    model = load_model(AutoModelForCausalLM.from_config(config).double().eval(), backend="bridge")
    logits = all_logits(read_out(model), residual_streams(model, IDS))
    assert largest(logits[-1] - model.run(IDS).logits[0]) < limit(model) * largest(logits)
    assert 1.0 < largest(logits) < 1.5


def test_a_bridge_is_left_without_patterns() -> None:
    """TransformerLens would keep those of every layer, at 128 tokens more than all residual streams together."""
    model = tiny_model("gemma2", "bridge")  # its own modules run: the equations do not describe it
    model.run(IDS)
    residual_streams(model, IDS)
    assert not any(getattr(module, "_pattern", None) is not None for module in model.tl_model.modules())


# ---- when the blocks must not be used


@pytest.mark.parametrize("backend", [pytest.param("hooked", marks=pytest.mark.hooked), "bridge"])
def test_hooks_on_the_model_are_heard(backend: str) -> None:
    model = tiny_model("gpt2", backend, dtype=torch.float64)
    point = model.tl_model.hook_dict["ln_final.hook_normalized"]
    plain = all_logits(read_out(model), residual_streams(model, IDS))

    def double(value: Tensor, hook: Any) -> Tensor:
        return 2 * value

    with model.tl_model.hooks(fwd_hooks=[("ln_final.hook_normalized", double)]):
        read, streams = read_out(model), residual_streams(model, IDS)
        assert not read.in_blocks
        found, own = read.whole(streams), model.run(IDS).logits[0]
    assert largest(found[-1] - own) < 1e-10
    assert largest(found[0] - plain[0]) > 0.1
    assert not point.fwd_hooks
    assert read_out(model).in_blocks


@pytest.mark.parametrize("backend", [pytest.param("hooked", marks=pytest.mark.hooked), "bridge"])
def test_a_hook_in_a_block_moves_the_streams_after_it(backend: str) -> None:
    model = tiny_model("llama", backend, dtype=torch.float64)
    before = residual_streams(model, IDS)
    with model.tl_model.hooks(fwd_hooks=[("blocks.1.hook_mlp_out", lambda value, hook: 0 * value)]):
        after = residual_streams(model, IDS)
        own = model.run(IDS).logits[0]
        assert largest(read_out(model).whole(after)[-1] - own) < limit(model) * largest(own)
    assert largest(after[:2] - before[:2]) < limit(model)
    assert largest(after[2:] - before[2:]) > 0.1


def test_logits_that_are_scaled_afterwards_are_noticed() -> None:
    """Granite divides its logits by a number that no weight holds: the comparison sends it through its own modules."""
    from transformers import GraniteConfig, GraniteForCausalLM

    torch.manual_seed(0)
    config = GraniteConfig(
        vocab_size=420, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, logits_scaling=3.0, initializer_range=0.3, pad_token_id=None,
    )  # fmt: skip
    model = load_model(GraniteForCausalLM(config).double().eval(), backend="bridge")
    read, streams = read_out(model), residual_streams(model, IDS)
    assert not read.in_blocks
    own = model.run(IDS).logits[0]
    assert largest(read.whole(streams)[-1] - own) < limit(model) * largest(own)
    assert largest(all_logits(read, streams)[-1] - own) > 0.1  # what the comparison kept away


def test_a_wrong_epsilon_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It shows at the first stream only, which is small."""
    model = load_model(tiny_hf("gpt2", dtype=torch.float64), dtype=torch.float64)
    if model.backend == "hooked":
        with monkeypatch.context() as patch:
            patch.setattr("interp_widgets.models.engine.equations._epsilon", lambda module: 1e-3)
            assert not read_out(model).in_blocks
    model._watch.memory.clear()
    assert read_out(model).in_blocks


@pytest.mark.parametrize("backend", ["auto", "bridge"])
def test_no_rows_have_no_logits(backend: str) -> None:
    model = tiny_model("llama", backend)
    assert read_out(model).whole(torch.zeros(0, 1, model.d_model)).shape == (0, 1, model.d_vocab)


def test_edited_weights_take_effect() -> None:
    model = load_model(tiny_hf("gpt2"))
    read, streams = read_out(model), residual_streams(model, IDS)
    before = all_logits(read, streams)
    with torch.no_grad():
        model.weight("W_U").mul_(2)
    assert largest(all_logits(read, streams) - before) > 0.1
    again = residual_streams(model, IDS)  # a bridge's unembedding may be its embedding too
    assert largest(all_logits(read, again)[-1] - model.run(IDS).logits[0]) < 1e-4


# ---- translators


def some(layers: int = 3, width: int = 32, scale: float = 0.1) -> tuple[list[Tensor], list[Tensor]]:
    generator = torch.Generator().manual_seed(4)
    return (
        [scale * torch.randn(width, width, generator=generator) for _ in range(layers)],
        [scale * torch.randn(width, generator=generator) for _ in range(layers)],
    )


@pytest.mark.parametrize("form", ["residual", "affine"])
def test_translators_come_back_from_a_file(tmp_path: Any, form: Any) -> None:
    weights, biases = some()
    path = save_translators(tmp_path / "lens.safetensors", weights, biases, form=form)
    found = load_translators(path)
    assert (found.form, found.d_model, found.name) == (form, 32, str(path))
    stream = torch.randn(5, 32, generator=torch.Generator().manual_seed(1))
    for layer in range(3):
        moved = stream @ weights[layer].T + biases[layer]
        wanted = stream + moved if form == "residual" else moved
        assert torch.allclose(found(layer, stream), wanted, atol=1e-6)
    assert found(0, stream.double()).dtype == torch.float64


def test_a_file_of_the_tuned_lens_library_is_read(tmp_path: Any) -> None:
    """Its parameters are the state of a list of linear layers, added to the stream; no metadata say so."""
    from safetensors.torch import save_file

    layers = torch.nn.ModuleList([torch.nn.Linear(32, 32) for _ in range(3)])
    save_file(dict(layers.state_dict()), tmp_path / "params.safetensors")
    found, stream = load_translators(tmp_path / "params.safetensors"), torch.randn(4, 32)
    with torch.no_grad():
        assert torch.allclose(found(1, stream), stream + layers[1](stream), atol=1e-6)


def test_bad_translators_are_named(tmp_path: Any) -> None:
    from safetensors.torch import save_file

    weights, biases = some()
    with pytest.raises(FileNotFoundError, match="no file of translators at"):
        load_translators(tmp_path / "none.safetensors")
    bad = tmp_path / "params.pt"
    torch.save({"0.weight": weights[0]}, bad)
    with pytest.raises(ValueError, match=r"params\.pt is not a safetensors file .*save_translators"):
        load_translators(bad)
    save_file({"0.weight": weights[0], "0.bias": biases[0], "1.weight": weights[1]}, tmp_path / "a")
    with pytest.raises(ValueError, match=r"has 2 layers but lacks '1\.bias'"):
        load_translators(tmp_path / "a")
    save_file({"encoder.weight": weights[0]}, tmp_path / "b")
    with pytest.raises(ValueError, match=r"got the tensor 'encoder\.weight'"):
        load_translators(tmp_path / "b")
    with pytest.raises(ValueError, match=r"layer 1 must have a weight \(32, 32\) and a bias \(32,\), got \(32, 31\)"):
        save_translators(tmp_path / "c", [weights[0], weights[1][:, :31], weights[2]], biases)
    with pytest.raises(ValueError, match="one weight and one bias for every layer, got 2 weights and 3 biases"):
        Translators(tuple(weights[:2]), tuple(biases))
    with pytest.raises(ValueError, match="form must be 'residual'"):
        save_translators(tmp_path / "d", weights, biases, form="other")  # type: ignore[arg-type]
    with pytest.raises(FileNotFoundError, match=r"there is no folder .*gone to write e\.safetensors into: make"):
        save_translators(tmp_path / "gone" / "e.safetensors", weights, biases)
    with pytest.raises(ValueError, match="layer 0 holds NaN"):
        save_translators(tmp_path / "e", [weights[0] * torch.nan, *weights[1:]], biases)


def test_translators_must_fit_the_model() -> None:
    model = tiny_model("gpt2")
    Translators(*map(tuple, some())).check(model)
    with pytest.raises(ValueError, match="is for 2 layers of width 32, but gpt2_0 has 3 layers of width 32"):
        Translators(*map(tuple, some(layers=2))).check(model)
    with pytest.raises(ValueError, match="is for 3 layers of width 16, but gpt2_0 has 3 layers of width 32"):
        Translators(*map(tuple, some(width=16))).check(model)
