"""Debiasing on the demo's base model: how far each method brings the stereotype score, at what price.

    python benchmarks/debiasing.py            # about ten minutes on one core
    python benchmarks/debiasing.py --quick    # without suppression and Ethos, which differentiate and train

Probes and edits are made from the wordings that the model was trained on, the scores from held-out ones. A row is the
SS of the gender domain with its 95% interval over 21 terms, LMS, the ratio of perplexities on 40 ordinary texts, and
the SS of a random edit of the same size.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace

import torch
from saliency import machine

from interp_widgets import (
    Model,
    ModelEdit,
    compare_debiasing,
    demo_bias_texts,
    demo_stereoset,
    demo_texts,
    ethos_edit,
    inlp_edit,
    leace_edit,
    load_model,
    lope_edit,
    subtraction_edit,
    suppression_edit,
    train_bias_probes,
)


def edits_of(model: Model, quick: bool) -> Iterator[ModelEdit]:
    """Every method, with the settings that are told in its name."""
    texts = demo_bias_texts("train")
    probes = train_bias_probes(model, texts, pool="last")
    every = model.n_layers * model.d_mlp // 2
    for k, threshold, alpha in [(10, 0.9, 1.0), (10, 0.7, 1.0), (10, 0.9, 30.0), (10, 0.9, 100.0),
                                (100, 0.9, 1.0), (every, 0.9, 1.0)]:  # fmt: skip
        edit = lope_edit(model, probes, k=k, threshold=threshold, alpha=alpha)
        yield replace(edit, name=f"LoPE, k {k}, threshold {threshold:g}, α × {alpha:g}")
    for strength in (1.0, 3.0, 10.0):
        yield replace(subtraction_edit(model, probes, strength=strength), name=f"Subtraction, {strength:g} gaps")
    for rounds, layers in ((10, [model.n_layers]), (30, [model.n_layers]), (10, range(1, model.n_layers + 1))):
        edit = inlp_edit(model, texts, rounds=rounds, layer=list(layers), pool="last")
        yield replace(edit, name=f"INLP, {rounds} rounds, {len(layers)} streams")
    yield replace(leace_edit(model, texts, pool="last", layer=model.n_layers), name="LEACE, last stream")
    yield replace(leace_edit(model, texts, pool="last"), name=f"LEACE, {model.n_layers} streams")
    if quick:
        return
    pairs = [one for one in demo_stereoset("train") if one.domain == "gender"]
    for k in (5, 20):
        yield replace(suppression_edit(model, pairs, k=k), name=f"bias neuron suppression, k {k}")
    biased, benign = [one.stereotype for one in pairs], [one.anti_stereotype for one in pairs]
    for strength in (1.0, 3.0):
        yield replace(ethos_edit(model, biased, benign, strength=strength), name=f"Ethos, strength {strength:g}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    model = load_model("demo-base")
    print(machine("cpu"))
    print("| edit | SS | LMS | perplexity × | SS of the random edit |\n|---|---|---|---|---|")
    for edit in edits_of(model, options.quick):
        found = compare_debiasing(model, [edit], demo_stereoset(), texts=demo_texts(40))
        _, own, control = found.rows
        gender, ratio = own.domain("gender"), own.perplexity_ratio or (float("nan"),) * 3
        low, high = gender.ss_interval
        print(
            f"| {edit.name} | {gender.ss:.1f} [{low:.0f}, {high:.0f}] | {gender.lms:.1f} | {ratio[0]:.2f} "
            f"[{ratio[1]:.2f}, {ratio[2]:.2f}] | {control.domain('gender').ss:.1f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
