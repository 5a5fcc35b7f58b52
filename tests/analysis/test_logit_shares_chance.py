"""The shares of a logit beside those of random other tokens: right, calibrated, and able to find what is there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from interp_widgets import decompose_logit, decompose_tokens
from interp_widgets.analysis._core.statistics import largest_p
from interp_widgets.data.world import fact_prompts
from interp_widgets.models.loading import load_model
from tests.models.tiny import tiny_model

IDS = [5, 17, 30, 44, 8]


@pytest.mark.parametrize("foil", [None, 9])
@pytest.mark.parametrize("backend", [pytest.param("hooked", marks=pytest.mark.hooked), "bridge"])
def test_p_compares_cosines_of_the_parts_with_all_other_tokens(backend: Any, foil: int | None) -> None:
    """Without a foil and with as many draws as there are other tokens nothing is random."""
    model = tiny_model("llama", backend)
    every = model.d_vocab - 1
    found = decompose_logit(model, IDS, 44, foil=foil, draws=every if foil is None else 4000, position=3)
    parts = decompose_tokens(model, IDS, position=3, lens=None)
    gain = (np.asarray(parts.residual[-1], float) ** 2).mean() ** -0.5
    table = model.weight("W_U").T.double().cpu().numpy() * gain * model.weight("ln_final_w").double().cpu().numpy()
    ends = np.asarray(parts.parts[-1][:4], float)
    assert found.share[:4] == pytest.approx(ends @ (table[44] - (0 if foil is None else table[foil])), rel=1e-3)
    if foil is None:
        rows = np.vstack([table[44], np.delete(table, 44, 0)])
        rows = rows - rows.mean(0)
    else:
        first, second = np.nonzero(~np.eye(len(table), dtype=bool))
        rows = np.vstack([table[44] - table[foil], (table[first] - table[second])])
    sizes = (rows / np.linalg.norm(rows, axis=1, keepdims=True)) @ ends.T
    wanted = largest_p(sizes[0], sizes[1:])
    assert found.p[:4] == pytest.approx(wanted, abs=1e-9 if foil is None else 0.03)
    assert found.p[4] == 1
    assert decompose_logit(model, IDS, 44, foil=foil).p is None


@pytest.mark.seconds
def test_the_subject_speaks_for_the_answer_and_few_tokens_for_a_random_one() -> None:
    model, facts = load_model("demo-base"), fact_prompts()[::40][:10]
    rng = np.random.default_rng(3)
    subjects, false = 0, 0
    for fact in facts:
        p = decompose_logit(model, fact.prompt, " " + fact.answer.strip(), draws=99).p
        subjects += bool((p <= 0.05).any())
        for token in rng.integers(0, model.d_vocab, 3):
            false += bool((decompose_logit(model, fact.prompt, int(token), draws=99).p <= 0.05).any())
    assert subjects >= 9, "positive control"
    assert false <= 5, "of 30, where 1.5 are expected"


def test_words_need_draws() -> None:
    model = tiny_model("llama", "bridge")
    with pytest.raises(ValueError, match="give draws=199"):
        decompose_logit(model, IDS, 44).in_words()
    assert "of 5 tokens" in decompose_logit(model, IDS, 44, draws=19).in_words()
    with pytest.raises(ValueError, match="draws"):
        decompose_logit(model, IDS, 44, draws=-1)
