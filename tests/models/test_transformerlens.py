"""What this package takes from TransformerLens is there, in 3.9 and the newest 4, and leaves transformers as it is."""

from __future__ import annotations

import inspect
import sys
from types import FunctionType, ModuleType
from typing import Any

import pytest
import torch

from interp_widgets.models import convert, load_model, transformerlens
from tests.architectures.models import VOCABULARY, random_model

CALLS = {
    "build_bridge_from_module": {"hf_config", "tokenizer", "dtype", "device", "model_name"},
    "HookedTransformer": {"cfg", "tokenizer", "move_to_device"},
    "get_pretrained_model_config": {"hf_cfg", "device", "fold_ln", "dtype"},
    "get_pretrained_state_dict": {"dtype"},
    "TransformerLensKeyValueCacheEntry": {"past_keys", "past_values", "frozen"},
}
"""Names → the keywords that this package gives them."""
ROTARY = ("llama", "gemma2", "gemma3", "qwen3", "falcon_h1")
OTHERS = ("gpt2", "gpt_neox", "bloom", "mpt")


@pytest.mark.parametrize("name", sorted(transformerlens.PARTS))
def test_every_version_has_it(name: str) -> None:
    assert callable(transformerlens.part(name))


@pytest.mark.hooked
@pytest.mark.parametrize("name", sorted(transformerlens.HOOKED_PARTS))
def test_the_version_with_a_hooked_transformer_has_it(name: str) -> None:
    assert callable(transformerlens.part(name))


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.hooked] * (name in transformerlens.HOOKED_PARTS)) for name in CALLS],
)
def test_it_takes_the_keywords_that_it_is_given(name: str) -> None:
    assert CALLS[name] <= inspect.signature(transformerlens.part(name)).parameters.keys()


def test_a_part_that_is_gone_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(transformerlens.PARTS, "Gone", "transformer_lens")
    with pytest.raises(ImportError, match="transformer_lens has no Gone"):
        transformerlens.part("Gone")


def functions() -> dict[tuple[str, ...], Any]:
    """Every function and class of transformers that is loaded, and of its classes every method, by where it is."""
    found: dict[tuple[str, ...], Any] = {}
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] != "transformers" or not isinstance(module, ModuleType):
            continue
        for key, value in list(vars(module).items()):
            if isinstance(value, FunctionType | type):
                found[name, key] = value
            if isinstance(value, type) and value.__module__ == name:
                found |= {(name, key, own): each for own, each in vars(value).items() if callable(each)}
    return found


@pytest.mark.seconds
def test_building_bridges_leaves_transformers_as_it_is() -> None:
    """Logits are the same to the bit, and no function of transformers is another one."""
    ids = torch.randint(0, VOCABULARY, (2, 40), generator=torch.Generator().manual_seed(0))
    originals = {name: random_model(name).eval() for name in (*ROTARY, *OTHERS)}
    for model in originals.values():
        model.set_attn_implementation("eager")
    with torch.no_grad():
        logits = {name: model(ids).logits for name, model in originals.items()}
    before = functions()
    for model in originals.values():
        convert.to_bridge(convert.sharing_copy(model), processed=False, device=torch.device("cpu"), dtype=torch.float32)
    after = functions()
    assert not [place for place, value in before.items() if after.get(place) is not value]
    assert not [
        place for place, value in after.items() if str(getattr(value, "__module__", "")).startswith("transformer_lens")
    ]
    with torch.no_grad():
        assert not [name for name, model in originals.items() if not torch.equal(model(ids).logits, logits[name])]


@pytest.mark.parametrize("name", ["gemma2", "gemma3"])
def test_the_hooks_after_rotation_work_without_what_transformerlens_would_replace(name: str) -> None:
    model = load_model(random_model(name), backend="bridge")
    ids = torch.arange(1, 9)[None]
    hooks = [f"blocks.0.attn.hook_rot_{which}" for which in "qk"]
    whole = model.run(ids, capture=hooks)
    assert all(whole.activations[hook].abs().max() > 0 for hook in hooks)
    changed = model.run(ids, edit={hooks[0]: torch.zeros_like})
    assert not torch.allclose(changed.logits, whole.logits)
