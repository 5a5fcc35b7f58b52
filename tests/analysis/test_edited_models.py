"""What was made from a model before it was edited is not taken for the edited model's."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from interp_widgets.analysis.ablation import Ablation, ablation
from interp_widgets.analysis.concepts import concept_directions
from interp_widgets.analysis.concepts.state_cache import HiddenStateCache
from interp_widgets.data.concepts import Concept
from interp_widgets.models import Model, load_model
from interp_widgets.tuning.mixture_of_depths.untrained import untrained_mod
from tests.models.state_edits import EDITS, Undo, act_fn_replaced, edited, hook_added, in_place, numpy_element
from tests.models.tiny import tiny_folder, tiny_model

BACKENDS = [pytest.param("hooked", marks=pytest.mark.hooked), "bridge"]
NO_CHANGE = {
    "torch_hook_added", "torch_pre_hook_added", "backward_hook_added", "config_changed", "inner_config_changed",
    "forward_of_the_class_replaced", "hook_added_everywhere",
}  # fmt: skip
"""Edits after which the model may still compute the same."""
SMALL = (
    Concept("Paris", ("The Eiffel Tower is in Paris.", "Paris is a city.", "In Paris."), ("Go to Paris.",)),
    Concept("dog", ("A small dog.", "The dog was happy.", "Once there was a dog."), ("The dog lived.",)),
)
TEXTS = ["The Eiffel Tower is in Paris.", "A small dog.", "Once there was a dog."]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: edit.__name__)
def test_a_set_of_concepts_belongs_to_the_model_as_it_was(edit: Callable[[Model], Undo], backend: str) -> None:
    model = tiny_model("llama", backend)
    plain = concept_directions(model, SMALL, layer=2, shuffles=1)
    plain.check(model)
    with edited(model, edit):
        assert not plain.made_from(model)
        with pytest.raises(ValueError, match="make them again from this model"):
            plain.check(model)
        plain.check(model, other_weights=True)
        other = concept_directions(model, SMALL, layer=2, shuffles=1)
        other.check(model)
    plain.check(model)
    assert not other.made_from(model)
    with pytest.raises(ValueError, match=r"other weights|while"):
        other.check(model)


def test_two_hooks_at_one_place_are_two_edits() -> None:
    model = tiny_model("llama", "bridge")
    with edited(model, hook_added):
        found = concept_directions(model, SMALL, layer=2, shuffles=1)
    with edited(model, hook_added), pytest.raises(ValueError, match=r"while a hook acts on blocks\.1\.hook_.*; now"):
        found.check(model)


def test_an_intervention_makes_no_other_model() -> None:
    model = tiny_model("llama", "bridge")
    plain = concept_directions(model, SMALL, layer=2, shuffles=1)
    with ablation(model, [Ablation("mlp", 1)]):
        plain.check(model)
        inside = concept_directions(model, SMALL, layer=3, shuffles=1)
    inside.check(model)
    assert "intervention" in str(inside.provenance["edited"])
    assert "edited" not in plain.provenance


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: edit.__name__)
def test_kept_states_are_read_again_after_an_edit(edit: Callable[[Model], Undo], backend: str) -> None:
    model = tiny_model("llama", backend)
    kept = HiddenStateCache(model)

    def states() -> np.ndarray:
        return kept(model, TEXTS, 3, groups=range(len(TEXTS)))

    before = states()
    assert kept.missing(TEXTS, 3) == []
    with edited(model, edit):
        assert kept.missing(TEXTS, 3) == TEXTS
        moved = states()
        fresh = HiddenStateCache(model)(model, TEXTS, 3, groups=range(len(TEXTS)))
        np.testing.assert_allclose(moved, fresh, atol=1e-6)
        if edit.__name__ not in NO_CHANGE:
            assert np.abs(moved - before).max() > 1e-7, "or this shows nothing"
    assert kept.missing(TEXTS, 3) == TEXTS
    np.testing.assert_allclose(states(), before, atol=1e-6)


def test_what_is_read_under_a_hook_is_not_kept() -> None:
    model, factor = tiny_model("llama", "bridge"), [1.0]
    kept = HiddenStateCache(model)
    model.tl_model.add_hook("blocks.1.hook_resid_pre", lambda value, hook: value * factor[0])
    try:
        one = kept(model, TEXTS, 3, groups=range(len(TEXTS)))
        factor[0] = 0.5  # nothing that the model's state could show
        other = kept(model, TEXTS, 3, groups=range(len(TEXTS)))
    finally:
        model.tl_model.reset_hooks()
    assert np.abs(one - other).max() > 1e-3


@pytest.mark.seconds
@pytest.mark.parametrize("edit", [in_place, numpy_element, act_fn_replaced], ids=lambda edit: edit.__name__)
def test_a_mixture_is_not_made_from_the_source_of_an_edited_model(
    edit: Callable[[Model], Undo], tmp_path: object
) -> None:
    model = load_model(tiny_folder("llama"), device="cpu", backend="bridge", dtype=torch.float32)
    mixture = untrained_mod(model, 2)
    folder = mixture.save(str(tmp_path))
    with edited(model, edit):
        with pytest.raises(ValueError, match="was edited after it was loaded"):
            untrained_mod(model, 2)
        with pytest.raises(ValueError, match="was edited after it was loaded"):
            load_model(folder, base=model)
    assert untrained_mod(model, 2).weight_hash == mixture.weight_hash
