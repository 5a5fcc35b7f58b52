"""Whoever searches for a term of the field finds the function that does it."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

import interp_widgets

FIRST_LINES = 6
TERMS = {
    "activation patching": (
        "activation_patching",
        "ablate_modules",
        "ablate_heads",
        "ablate_neurons",
        "causal_trace",
        "resample_ablation",
    ),
    "causal tracing": ("causal_trace",),
    "causal mediation": ("activation_patching",),
    "noising": ("activation_patching",),
    "permutation test": ("ablation_null",),
    "average precision": ("circuit_scoreboard",),
    "edge patching": ("path_patching",),
    "attribution patching": ("activation_patching",),
    "circuit discovery": ("greedy_circuit",),
    "faithfulness": ("greedy_circuit",),
    "denoising": ("causal_trace", "activation_patching"),
    "interchange intervention": ("ablate_modules", "activation_patching"),
    "zero, mean or resample ablation": ("ablate_modules", "ablate_heads"),
    "mean ablation": ("mean_ablation",),
    "resample ablation": ("resample_ablation",),
    "head ablation": ("ablate_heads",),
    "neuron ablation": ("ablate_neurons",),
    "direct logit attribution": ("decompose_logit", "direct_logit_attribution", "neuron_effects"),
    "DLA": ("decompose_logit", "direct_logit_attribution", "neuron_effects"),
    "residual stream": ("decompose_tokens", "last_states", "erase", "steer", "concept_directions"),
    "logit lens": ("neuron_tokens",),
    "tuned lens": ("logit_lens", "load_translators"),
    "key-value memory": ("neuron_tokens",),
    "value vector": ("neuron_tokens",),
    "steering vector": ("steer", "concept_directions"),
    "activation steering": ("steer",),
    "activation addition": ("steer",),
    "directional ablation": ("erase",),
    "difference in means": ("concept_directions",),
    "linear probe": ("train_probe", "concept_directions", "train_bias_probes"),
    "feature attribution": ("prompt_saliency",),
    "occlusion": ("prompt_saliency",),
    "gradient × input": ("prompt_saliency",),
    "teacher-forced": ("prompt_saliency",),
    "comprehensiveness": ("faithfulness",),
    "QK circuit": ("head_word_pairs", "attention_reasons"),
    "attention head": ("head_word_pairs", "ablate_heads", "head_scores", "direct_logit_attribution"),
    "attention pattern": ("attention_patterns",),
    "attention map": ("attention_patterns",),
    "induction head": ("head_scores",),
    "previous-token head": ("head_scores",),
    "massive activation": ("massive_activations",),
    "attention sink": ("massive_activations",),
    "centered kernel alignment": ("linear_cka",),
    "concept erasure": ("leace_edit",),
    "null-space projection": ("inlp_edit",),
    "principal direction": ("ffn_concepts",),
}
"""Terms of the field, and the functions whose first lines name them."""


@pytest.mark.parametrize("term", TERMS)
def test_the_first_lines_name_what_the_field_calls_it(term: str) -> None:
    for name in TERMS[term]:
        lines = (inspect.getdoc(getattr(interp_widgets, name)) or "").splitlines()[:FIRST_LINES]
        text = re.sub(r"\s+", " ", " ".join(lines))
        assert term.lower() in text.lower(), f"{name} does not say “{term}”"


def test_no_docstring_means_nothing_on_hover() -> None:
    package = Path(interp_widgets.__file__).parent
    assert [str(file) for file in package.rglob("*.py") if '"""The same' in file.read_text(encoding="utf-8")] == []
