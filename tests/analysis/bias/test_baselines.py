"""Debiasing methods beside LoPE: what each edit changes, by identities and naive computation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from concept_erasure import LeaceFitter

from interp_widgets import (
    LabeledTexts,
    ModelEdit,
    SentencePair,
    ethos_edit,
    inlp_edit,
    leace_edit,
    load_model,
    random_edit,
    subtraction_edit,
    suppression_edit,
    train_bias_probes,
)
from interp_widgets.analysis._core.prompts import read_prompt
from interp_widgets.analysis._core.run import RunOptions
from interp_widgets.analysis.bias.baselines import gap_attribution
from interp_widgets.analysis.bias.ethos import bias_part
from interp_widgets.analysis.bias.states import pooled_states
from interp_widgets.analysis.probe.fitting import linear_probe
from interp_widgets.data.bias.labelled import demo_bias_texts, labeled_texts
from tests.models.tiny import tiny_folder
from tests.shipped import demo_pair

PAIRS = [SentencePair(f"{one} {two}.", f"{one} {two} Paris.", f"{one} {two}")
         for one in ("A pilot", "A nurse", "John", "Mary", "The dog") for two in ("flies", "helps")]  # fmt: skip
KINDS = [("gpt2", "auto"), ("gpt2", "bridge"), ("llama", "auto"), ("llama", "bridge")]


def loaded(family: str, backend: str = "auto", dtype: torch.dtype = torch.float64) -> Any:
    return load_model(tiny_folder(family), device="cpu", backend=backend, dtype=dtype)


def states_of(model: Any, data: Any, edit: ModelEdit | None = None) -> tuple[np.ndarray, np.ndarray]:
    texts = data if isinstance(data, LabeledTexts) else labeled_texts(data)
    read = [read_prompt(model, text, what="text") for text in texts.texts]
    if edit is None:
        return pooled_states(model, read, "last", RunOptions()), np.array(texts.biased, dtype=int)
    with edit.applied(model):
        return pooled_states(model, read, "last", RunOptions()), np.array(texts.biased, dtype=int)


@pytest.mark.seconds
@pytest.mark.parametrize(("family", "backend"), KINDS)
def test_inlp_projects_every_probe_out(family: str, backend: str) -> None:
    model = loaded(family, backend)
    edit = inlp_edit(model, PAIRS, rounds=4, pool="last", layer=[1, -1])
    assert sorted(edit.streams) == [1, model.n_layers]
    for at, stream in edit.streams.items():
        removed = (stream.read @ stream.write).double().numpy()
        np.testing.assert_allclose(removed @ removed, removed, atol=1e-6)
        np.testing.assert_allclose(removed, removed.T, atol=1e-6)
        assert np.linalg.matrix_rank(removed, tol=1e-3) == 4
        before, target = states_of(model, PAIRS)
        left = before[:, at] - before[:, at].mean(axis=0)
        units: list[np.ndarray] = []
        for _ in range(4):  # each probe of what is left reads along a direction that the projection takes out
            weights = linear_probe(left, target, 1.0)[0][0]
            np.testing.assert_allclose(removed @ weights, weights, atol=1e-4 * np.linalg.norm(weights))
            units.append(weights)
            basis = np.linalg.qr(np.stack(units).T)[0]
            left = left - left @ basis @ basis.T
    only = inlp_edit(model, PAIRS, rounds=4, pool="last", layer=1)
    after, _ = states_of(model, PAIRS, only)
    assert np.abs(after[:, 1] @ only.streams[1].read.numpy()).max() < 1e-5


@pytest.mark.seconds
def test_after_inlp_a_probe_of_the_demo_is_no_better_than_chance() -> None:
    model, texts = demo_pair().base, demo_bias_texts()
    before = train_bias_probes(model, texts, pool="last", splits=3)
    assert before.auc[-1].mean() > 0.95
    with inlp_edit(model, texts, rounds=12, pool="last").applied(model):
        after = train_bias_probes(model, texts, pool="last", splits=3)
    assert after.auc[-1].mean() < 0.65
    np.testing.assert_allclose(after.auc[:-1], before.auc[:-1], atol=1e-9)  # only the last stream is edited


@pytest.mark.parametrize(("family", "backend"), KINDS)
def test_leace_leaves_no_difference_of_means(family: str, backend: str) -> None:
    model = loaded(family, backend)
    edit = leace_edit(model, PAIRS, pool="last", layer=2)
    before, target = states_of(model, PAIRS)
    after, _ = states_of(model, PAIRS, edit)

    def gap(states: np.ndarray) -> float:
        return float(np.abs(states[target == 1].mean(axis=0) - states[target == 0].mean(axis=0)).max())

    assert gap(after[:, 2]) < 1e-5 * gap(before[:, 2])
    eraser = LeaceFitter.fit(torch.from_numpy(before[:, 2].copy()), torch.from_numpy(target)).eraser
    wanted = eraser(torch.from_numpy(before[:, 2].copy())).numpy()
    np.testing.assert_allclose(after[:, 2], wanted, atol=1e-5 * np.abs(wanted).max())
    removed = (edit.streams[2].read @ edit.streams[2].write).numpy()
    assert np.linalg.matrix_rank(removed, tol=1e-3) == 1


def test_after_leace_no_probe_of_the_demo_finds_the_planted_groups() -> None:
    model, texts = demo_pair().base, demo_bias_texts()
    states, target = states_of(model, texts, leace_edit(model, texts, pool="last", layer=6))
    weights = linear_probe(states[:, 6], target, 1.0)[0][0]
    scores = states[:, 6] @ weights
    share = max(target.mean(), 1 - target.mean())
    from sklearn.linear_model import LogisticRegression

    right = LogisticRegression(C=1e-3, max_iter=2000).fit(states[:, 6], target).score(states[:, 6], target)
    assert right <= share + 1e-9, "a linear probe does as well as the most frequent label"
    assert np.abs(scores[target == 1].mean() - scores[target == 0].mean()) < 1e-3


def test_subtraction_moves_the_last_stream_along_its_neurons_by_the_gap() -> None:
    model = loaded("llama")
    probes = train_bias_probes(model, PAIRS, splits=2)
    edit = subtraction_edit(model, probes, k=2, strength=0.5)
    values = model.weight("W_out", model.n_layers - 1).double().numpy()
    cosine = values @ probes.direction[-1] / np.linalg.norm(values, axis=1)
    written = values[np.argsort(-cosine)[:2]].sum(axis=0)
    along, biased = probes.projection[-1, :, 0], probes.biased
    gap = along[biased].mean() - along[~biased].mean()
    wanted = -0.5 * gap * written / np.linalg.norm(written)
    np.testing.assert_allclose(edit.streams[model.n_layers].added.numpy(), wanted, atol=1e-5)
    ids = model.tokens("A pilot flies.")
    plain = model.run(ids, capture="ln_final.hook_normalized").logits
    with edit.applied(model):
        assert not torch.allclose(model.run(ids).logits, plain)


@pytest.mark.seconds
@pytest.mark.parametrize(("family", "backend"), KINDS)
def test_shares_of_a_gap_add_up_to_what_a_layer_makes_of_it(family: str, backend: str) -> None:
    model = loaded(family, backend)

    def log_probability(text: str, layer: int | None) -> float:
        ids = model.tokens(text)
        edit = {} if layer is None else {f"blocks.{layer}.mlp.hook_post": torch.zeros_like}
        logs = model.run(ids, edit=edit or None).logits[0].log_softmax(-1)
        return sum(float(logs[at, token]) for at, token in enumerate(ids[1:]))

    pairs = PAIRS[:2]
    share = gap_attribution(model, pairs, steps=24)
    for layer in range(model.n_layers):
        wanted = 0.0
        for pair in pairs:
            full, zero = (log_probability(pair.biased, at) - log_probability(pair.benign, at) for at in (None, layer))
            wanted += np.sign(full) * (full - zero) / len(pairs)
        assert share[layer].sum() == pytest.approx(wanted, rel=5e-3, abs=5e-3)


@pytest.mark.seconds
def test_suppressed_neurons_write_nothing_and_are_those_with_the_largest_share() -> None:
    model = loaded("gpt2")
    share = gap_attribution(model, PAIRS, steps=2)
    edit = suppression_edit(model, PAIRS, k=7, steps=2)
    found = {(layer, int(number)) for layer, one in edit.layers.items() for number in one.neurons}
    best = np.argsort(-share.ravel())[:7]
    assert found == {(int(i) // model.d_mlp, int(i) % model.d_mlp) for i in best}
    assert not any(bool(one.after.any()) or bool(one.added.any()) for one in edit.layers.values())


def test_ethos_with_all_of_its_task_vector_takes_the_task_vector_off() -> None:
    rng = torch.Generator().manual_seed(0)
    weights, task, other = torch.randn(3, 9, 5, generator=rng, dtype=torch.float64)
    square = task[:5]
    torch.testing.assert_close(bias_part(weights[:5], square, other[:5], 1.0), square)
    none = bias_part(weights, task, other, 0.0)
    assert float(none.abs().max()) == 0
    kept = bias_part(weights, task, other, 0.3)
    left, _, right = torch.linalg.svd(weights + other, full_matrices=False)
    inside = (left.T @ kept @ right.T).abs()
    largest = float((left.T @ task @ right.T).abs().max())
    assert float(inside.max()) <= 0.3 * largest + 1e-12


@pytest.mark.parametrize(("family", "backend"), KINDS)
def test_ethos_fine_tunes_what_adam_fine_tunes(family: str, backend: str) -> None:
    """With one text there is one order of texts, so that PyTorch's own training of the matrices is the reference."""
    from interp_widgets.analysis.bias.ethos import _task_vectors

    model = loaded(family, backend)
    ids = model.tokens("A pilot flies to Paris.")
    found = _task_vectors(model, [ids], 3, 1e-2, 0, RunOptions())
    names = [name for name, _ in model.tl_model.named_parameters()]
    held = [model.weight("W_out", layer) for layer in range(model.n_layers)]
    wanted = naive_training(model, names, held, ids)
    for own, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(own.double(), other, rtol=0, atol=2e-4)


def naive_training(model: Any, names: list[str], held: list[torch.Tensor], ids: list[int]) -> list[torch.Tensor]:
    """What three steps of Adam add to the output matrices, by PyTorch's own gradients of the parameters."""
    parameters = dict(model.tl_model.named_parameters())
    own = []
    for value in held:
        same = [p for p in parameters.values()
                if p.data_ptr() == value.data_ptr() or (p.shape == value.shape and torch.equal(p, value))
                or (p.ndim == 2 and p.T.shape == value.shape and torch.equal(p.T, value))]  # fmt: skip
        own.append(same[0])
    before = [p.detach().clone() for p in own]
    for p in parameters.values():
        p.requires_grad_(False)
    for p in own:
        p.requires_grad_(True)
    optimiser = torch.optim.Adam(own, lr=1e-2)
    batch = torch.tensor([ids])
    for _ in range(3):
        optimiser.zero_grad()
        logits = model.tl_model(batch)
        logits = getattr(logits, "logits", logits)
        torch.nn.functional.cross_entropy(logits[0, :-1], batch[0, 1:]).backward()
        optimiser.step()
    added = []
    for p, old, value in zip(own, before, held, strict=True):
        delta = (p.detach() - old).double()
        added.append(delta if delta.shape == value.shape else delta.T)
        p.data.copy_(old)
    return added


@pytest.mark.seconds
def test_a_random_control_changes_as_much_elsewhere() -> None:
    model = loaded("gpt2")
    edits = [leace_edit(model, PAIRS, layer=[1, 2]), suppression_edit(model, PAIRS, k=5, steps=2),
             ethos_edit(model, ["A pilot flies."], ["A nurse helps."], steps=2)]  # fmt: skip
    for edit in edits:
        control = random_edit(model, edit, seed=1)
        assert control.name == f"Random, as large as {edit.name}"
        assert not torch.equal(torch.tensor(list(control.layers)), torch.tensor([-1]))
        for layer, one in edit.layers.items():
            other = control.layers[layer]
            moved, random = one.after - one.before, other.after - other.before
            torch.testing.assert_close(moved.norm(dim=1), random.norm(dim=1), rtol=1e-3, atol=1e-5)
            assert torch.equal(other.neurons, one.neurons)
            cosine = (moved * random).sum(dim=1) / (moved.norm(dim=1) * random.norm(dim=1)).clamp(min=1e-9)
            assert float(cosine.abs().mean()) < 0.6
        for at, stream in edit.streams.items():
            removed = (control.streams[at].read @ control.streams[at].write).double().numpy()
            np.testing.assert_allclose(removed @ removed, removed, atol=1e-6)
            assert np.linalg.matrix_rank(removed, tol=1e-3) == stream.read.shape[1]
        assert not random_edit(model, edit, seed=1).settings.items() - control.settings.items()


@pytest.mark.seconds
def test_what_cannot_be_edited_is_refused_in_a_sentence() -> None:
    model = loaded("gpt2")
    probes = train_bias_probes(model, PAIRS, splits=2)
    one_kind = LabeledTexts(("A pilot.", "A nurse."), (True, True), ("a", "b"))
    calls: dict[str, Any] = {
        "data must hold biased and benign texts": lambda: inlp_edit(model, one_kind),
        "data must hold biased and benign texts, got": lambda: leace_edit(model, one_kind),
        "rounds must be in 1..31, got 0": lambda: inlp_edit(model, PAIRS, rounds=0),
        "layer must name every stream once": lambda: leace_edit(model, PAIRS, layer=[1, 1]),
        "k must be in 1": lambda: suppression_edit(model, PAIRS, k=10**6),
        "strength must be a number, got nan": lambda: subtraction_edit(model, probes, strength=float("nan")),
        "strength must be a finite number, got inf": lambda: subtraction_edit(model, probes, strength=float("inf")),
        "strength must be a finite number, got -inf": lambda: ethos_edit(
            model, ["A b"], ["A b"], strength=-float("inf")
        ),
        "train them on this model": lambda: subtraction_edit(demo_pair().base, probes),
        "auxiliary must hold at least one text": lambda: ethos_edit(model, ["A pilot flies."], []),
        "threshold must be": lambda: ethos_edit(model, ["A pilot flies."], ["A nurse helps."], threshold=2.0),
    }
    for sentence, call in calls.items():
        with pytest.raises(ValueError, match=sentence):
            call()
