"""Whoever searches for a term of the field finds the function that does it."""

from __future__ import annotations

import inspect
import pickle
import re
from pathlib import Path

import numpy as np
import pytest

import interp_widgets
from interp_widgets import LabeledTexts, Result, Results, TaskNeighbors
from interp_widgets.renamed import OLD_CLASSES, OLD_NAMES, OldAttribute, renamed
from interp_widgets.sweeps.identity import describe
from interp_widgets.widgets.base.shipped import request_text
from interp_widgets.widgets.workbench import session

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
    "edge attribution patching": ("edge_attribution",),
    "attribution patching": ("activation_patching",),
    "circuit discovery": ("greedy_circuit",),
    "faithfulness": ("greedy_circuit", "circuit_faithfulness"),
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


BRITISH = re.compile(
    r"colour|neighbour|centre|labell|behaviour|favour|modell|(?<!no)(?<!prec)(?<!adv)"
    r"(normal|general|quant|linear|material|token|optim|initial|summar|visual|standard|random|regular|anal)(is|ys)(e|a)"
)
SPELLED_ALIKE = {"analyses"}
"""A noun that is spelled so everywhere."""


def public_parts(name: str, value: object) -> set[str]:
    """A public name, its keywords and, of a class, its attributes with their keywords; not what is an old name."""
    parts = {name}
    if inspect.isclass(value):
        for each in dir(value):
            member = inspect.getattr_static(value, each)
            if not each.startswith("_") and not isinstance(member, OldAttribute):
                parts |= {each, *(signature_of(member) if inspect.isfunction(member) else ())}
    return parts | signature_of(value) if callable(value) else parts


def signature_of(value: object) -> set[str]:
    try:
        return set(inspect.signature(value).parameters)  # type: ignore[arg-type]
    except ValueError:  # of what is written in C
        return set()


def british(names: set[str]) -> list[str]:
    return sorted(name for name in names - SPELLED_ALIKE if BRITISH.search(name))


def test_public_names_are_spelled_as_the_field_spells_them() -> None:
    names = {part for name in interp_widgets.__all__ for part in public_parts(name, getattr(interp_widgets, name))}
    assert british(names) == []
    assert british({"normalise", "colour_range", "kneighbours", "analyse_text", "noise", "raise", "precise"}) == [
        "analyse_text", "colour_range", "kneighbours", "normalise",
    ]  # fmt: skip


@pytest.mark.parametrize("old", OLD_NAMES)
def test_an_old_name_gives_the_new_one_and_a_warning(old: str) -> None:
    with pytest.warns(DeprecationWarning, match=f"{old} is called {OLD_NAMES[old]} now"):
        assert getattr(interp_widgets, old) is getattr(interp_widgets, OLD_NAMES[old])
    assert old not in interp_widgets.__all__


@pytest.mark.parametrize("old", OLD_CLASSES)
def test_a_pickle_that_names_a_class_by_its_old_name_opens(old: str) -> None:
    kind = getattr(interp_widgets, OLD_CLASSES[old])
    assert pickle.loads(f"c{kind.__module__}\n{old}\n.".encode()) is kind


def test_files_of_results_name_a_class_as_before(tmp_path: Path) -> None:
    near = TaskNeighbors(np.array([0]), np.array([0.5]), np.array([0.25]), 0.1, 0.2, 3)
    path = near.save(tmp_path / "near")
    assert b'"class": "TaskNeighbours"' in np.load(path)["header.json"].tobytes()
    assert TaskNeighbors.load(path).equals(near)
    assert Result.load(path).equals(near)
    both = Results(["A"], [near])
    assert Results.load(both.save(tmp_path / "both")).equals(both)


def test_sessions_and_keys_name_a_class_as_before() -> None:
    texts = LabeledTexts(("A pilot.",), (True,), ("pilot",))
    packed = session.packed(texts)
    assert packed[session._CLASS] == "interp_widgets.data.bias.labelled:LabelledTexts"
    assert session.unpacked(packed) == texts
    assert request_text(texts).startswith("LabelledTexts(")
    assert request_text((LabeledTexts,)) == "(interp_widgets.data.bias.labelled.LabelledTexts,)"
    assert describe(texts)[0].startswith("interp_widgets.data.bias.labelled.LabelledTexts ")


def test_an_old_keyword_and_an_old_attribute_work() -> None:
    @renamed(colour="color")
    class Pen:
        color = "red"

    @renamed(colour="color")
    def paint(*, color: str) -> str:
        return color

    with pytest.warns(DeprecationWarning, match=r"Pen\.colour is called Pen\.color now"):
        assert Pen().colour == "red"  # type: ignore[attr-defined]
    with pytest.warns(DeprecationWarning, match=r"paint\(colour=\) is called"):
        assert paint(colour="blue") == "blue"  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="got both colour= and color="):
        paint(colour="blue", color="red")  # type: ignore[call-arg]
