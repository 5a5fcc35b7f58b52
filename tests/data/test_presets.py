"""The example prompts: complete, and known to the demo models."""

from __future__ import annotations

import pytest

from interp_widgets.analysis._core.prompts import read_prompt, single_token
from interp_widgets.data.presets import PRESETS, Preset, preset
from tests.shipped import demo_pair


@pytest.mark.parametrize("one", PRESETS, ids=lambda one: one.name)
def test_the_demo_models_know_the_examples(one: Preset) -> None:
    pair = demo_pair()
    for model in (pair.base, pair.tuned):
        prompt, corrupted = read_prompt(model, one.prompt), read_prompt(model, one.corrupted)
        assert prompt.n_shown == corrupted.n_shown, "resampling needs two prompts of one length"
        target, foil = (single_token(model, text) for text in (one.target, one.foil))
        assert int(model.run(prompt.ids).logits[0, -1].argmax()) == target
        assert int(model.run(corrupted.ids).logits[0, -1].argmax()) == foil
        start, end = prompt.find(one.subject)
        assert "".join(prompt.tokens()[start:end]).strip() == one.subject


def test_presets_go_by_name() -> None:
    assert preset("indirect object") is PRESETS[1]
    with pytest.raises(ValueError, match="preset must be one of 'knowledge', 'indirect object', 'gender bias'"):
        preset("facts")
