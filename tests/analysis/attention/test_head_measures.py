"""`head_measures`: the measures are those of the functions that they are named for, and what a circuit's heads have."""

from __future__ import annotations

import importlib
import re
from functools import partial
from typing import Any

import numpy as np
import pytest
from scipy.stats import spearmanr

from interp_widgets import (
    HeadMeasures,
    ablate_heads,
    direct_logit_attribution,
    head_measures,
    head_scores,
    load_circuit,
)
from interp_widgets.analysis.attention.head_measures import head_measures_cost
from tests.models.tiny import tiny_model

ALL = ("first_token", "induction", "ablation_effect", "direct_attribution", "previous_token", "duplicate_token")
IDS = [5, 9, 12, 9, 5, 31]


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_each_measure_is_that_of_its_function(family: str, tmp_path: Any) -> None:
    model = tiny_model(family, "bridge")
    steps: list[tuple[int, int]] = []
    found = head_measures(model, IDS, 7, measures=ALL, length=6, sequences=3, progress=lambda *step: steps.append(step))
    scores = head_scores(model, length=6, sequences=3)
    for name in ("first_token", "induction", "previous_token", "duplicate_token"):
        np.testing.assert_allclose(found.of(name), getattr(scores, name), atol=1e-6)
    np.testing.assert_allclose(found.of("direct_attribution"), direct_logit_attribution(model, IDS, 7).heads, atol=1e-6)
    np.testing.assert_allclose(found.of("ablation_effect"), ablate_heads(model, IDS, 7).effect, atol=1e-6)
    assert (found.names, found.target) == (ALL, 7)
    assert found.correlation("induction", "ablation_effect") == pytest.approx(
        tuple(spearmanr(found.of("induction").ravel(), found.of("ablation_effect").ravel())), abs=1e-9
    )
    assert found.to_frame().columns.tolist() == ["layer", "head", *ALL, "direct_attribution_p"]
    np.testing.assert_array_equal(np.asarray(found.p), direct_logit_attribution(model, IDS, 7).heads_p)
    assert [done / total for done, total in steps] == sorted(done / total for done, total in steps)
    assert steps[-1][0] == steps[-1][1]
    again = HeadMeasures.load(found.save(tmp_path / "measures.npz"))
    np.testing.assert_array_equal(again.values, found.values)


def test_the_token_is_the_likeliest_and_scores_alone_have_none() -> None:
    model = tiny_model("llama", "bridge")
    both = head_measures(model, IDS, measures=("direct_attribution", "ablation_effect"))
    assert both.target == ablate_heads(model, IDS).target
    alone = head_measures(model, IDS, measures="induction", length=6, sequences=2)
    assert (alone.target, alone.target_token, alone.ids) == (None, None, tuple(IDS))
    assert alone.provenance["bos"] is False
    with pytest.raises(ValueError, match="the prompt holds only special tokens"):
        head_measures(model, "", measures="induction", length=6, sequences=2)
    with pytest.raises(ValueError, match="'first_token' was not computed, only induction: name it in measures"):
        alone.of("first_token")


def test_heads_that_are_ablated_first_are_handed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("interp_widgets.analysis.attention.head_measures")
    monkeypatch.setattr(module, "ablate_heads", partial(ablate_heads, batch_size=2))
    model, parts = tiny_model("llama", "bridge"), list[HeadMeasures]()
    options: Any = {"measures": ("induction", "ablation_effect"), "length": 6, "sequences": 2}
    whole = head_measures(model, IDS, 7, on_partial=parts.append, **options)
    assert (whole.partial, whole.strongest_first) == (False, False)
    counts = []
    for part in parts:
        assert (part.partial, part.strongest_first, part.target) == (True, True, 7)
        np.testing.assert_array_equal(part.of("induction"), whole.of("induction"))
        known = np.isfinite(part.of("ablation_effect"))
        np.testing.assert_array_equal(part.of("ablation_effect")[known], whole.of("ablation_effect")[known])
        counts.append(int(known.sum()))
    assert counts == sorted(set(counts))
    assert counts[0] == 0 < counts[-1] < whole.values[0].size
    assert np.isnan(parts[0].correlation("induction", "ablation_effect")).all()
    assert (parts[0].measures()["ablation_effect_head"], whole.measures()["rho"]) == (
        "", whole.correlation("induction", "ablation_effect")[0],
    )  # fmt: skip


def test_an_induction_head_looks_writes_and_is_needed() -> None:
    model, truth = load_circuit("induction")
    case = truth.cases[0]
    found = head_measures(model, case.prompt, case.answer, measures=ALL, length=10, sequences=4)
    for name in ("induction", "direct_attribution"):
        assert np.unravel_index(found.of(name).argmax(), found.of(name).shape) == (1, 1)
    assert set(np.argsort(-found.of("ablation_effect").ravel())[:2].tolist()) == {0, 5}
    busy, secret = load_circuit("busy_idle")
    constant = head_measures(busy, secret.cases[0].prompt, measures=("direct_attribution", "ablation_effect"))
    assert constant.of("ablation_effect")[0, 3] > constant.of("ablation_effect")[1, 0] > 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"measures": ("induction", "induction")}, "each once"),
        ({"measures": ()}, "measures"),
        ({"length": 1}, "length must be"),
        ({"prompt": ""}, "the prompt is empty"),
        ({"target": " two tokens of it"}, "one token"),
    ],
)
def test_bad_input_is_one_sentence(options: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"prompt": "The cat sat", **options}
    with pytest.raises(ValueError, match=re.escape(message)):
        head_measures(tiny_model("gpt2", "bridge"), given.pop("prompt"), given.pop("target", None), **given)


def test_the_forecast_grows_with_what_is_asked() -> None:
    model = tiny_model("gpt2", "bridge")
    costs = [head_measures_cost(model, 9, names).flops for names in ((), ("induction",), ("induction", ALL[2]))]
    assert costs == sorted(set(costs))
    assert head_measures_cost(model, 18, ALL).flops > head_measures_cost(model, 9, ALL).flops
