"""Clusters of hidden states: scores against naive loops and scikit-learn, planted clusters, neighbours, maps."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import numpy as np
import pytest

from interp_widgets import (
    InstructionInstance,
    Result,
    cluster_hidden_states,
    clustering_scores,
    clusters_over_training,
    demo_instructions,
    knn_task,
    make_instruction_task,
    state_map,
)
from interp_widgets.analysis.clusters.clustering import cluster_states
from interp_widgets.analysis.clusters.neighbours import nearest_tasks
from interp_widgets.analysis.clusters.over_training import _procrustes
from interp_widgets.analysis.clusters.state_maps import map_states
from interp_widgets.analysis.hidden_states import last_states
from tests.models.tiny import tiny_model
from tests.shipped import demo_pair


def instances(tasks: int = 3, distributions: int = 2, mappings: int = 4) -> list[InstructionInstance]:
    return [
        InstructionInstance(f"{t} {d} {m}", str(m), f"task {t}", f"distribution {t}.{d}", str(m))
        for t in range(tasks) for d in range(distributions) for m in range(mappings)
    ]  # fmt: skip


def naive_scores(true: list[int], found: list[int]) -> tuple[float, float, float]:
    """Matched F1 by every matching, pair F1 and adjusted Rand index by every pair of instances."""
    labels, clusters = sorted(set(true)), sorted(set(found))

    def f1(label: int, cluster: int) -> float:
        both = sum(t == label and f == cluster for t, f in zip(true, found, strict=True))
        return 2 * both / (true.count(label) + found.count(cluster))

    padded: list[Any] = clusters + [None] * len(labels)
    matched = max(
        sum(0.0 if cluster is None else f1(label, cluster) for label, cluster in zip(labels, chosen, strict=True))
        for chosen in set(itertools.permutations(padded, len(labels)))
    ) / len(labels)
    same = Counter((true[i] == true[j], found[i] == found[j]) for i, j in itertools.combinations(range(len(true)), 2))
    a, b, c, d = same[True, True], same[True, False], same[False, True], same[False, False]
    pair = 2 * a / (2 * a + b + c) if a + b + c else 1.0
    rand = 2 * (a * d - b * c) / ((a + b) * (b + d) + (a + c) * (c + d)) if b + c else 1.0
    return matched, pair, rand


@pytest.mark.parametrize("seed", range(6))
def test_scores_equal_naive_loops(seed: int) -> None:
    rng = np.random.default_rng(seed)
    true, found = rng.integers(0, 3, 12).tolist(), rng.integers(0, 2 + seed % 3, 12).tolist()
    scores = clustering_scores(true, found)
    np.testing.assert_allclose((scores.f1_matched, scores.f1_pair, scores.ari), naive_scores(true, found), atol=1e-12)


@pytest.mark.parametrize("seed", range(4))
def test_ari_and_ami_are_scikit_learns(seed: int) -> None:
    from sklearn.metrics import adjusted_mutual_info_score, adjusted_rand_score

    rng = np.random.default_rng(seed)
    true = rng.integers(0, 5, 60)
    found = np.where(rng.random(60) < 0.5, true, rng.integers(0, 7, 60))
    scores = clustering_scores([f"label {t}" for t in true], found.tolist())
    assert scores.ari == pytest.approx(adjusted_rand_score(true, found), abs=1e-12)
    assert scores.ami == pytest.approx(adjusted_mutual_info_score(true, found), abs=1e-12)
    assert 0.1 < scores.ari < 0.9, "positive control"


@pytest.mark.seconds
def test_ami_is_zero_on_average_over_shuffled_labels() -> None:
    rng = np.random.default_rng(0)
    true = np.repeat(np.arange(4), 8)
    shuffled = [clustering_scores(true.tolist(), rng.permutation(true).tolist()) for _ in range(200)]
    assert abs(np.mean([scores.ami for scores in shuffled])) < 0.02
    assert abs(np.mean([scores.ari for scores in shuffled])) < 0.02
    assert np.mean([scores.f1_matched for scores in shuffled]) > 0.3, "the F1 scores are not adjusted for chance"


def test_scores_know_partitions_not_names() -> None:
    true = list("aabbcc")
    for found in ([5, 5, 1, 1, 9, 9], list("xxyyzz")):
        scores = clustering_scores(true, found)
        assert (scores.f1_matched, scores.f1_pair, scores.ari, scores.ami) == (1, 1, 1, 1)
    one = clustering_scores(true, [0] * 6)
    assert (one.f1_matched, one.ari, one.ami) == (pytest.approx(0.5 / 3), 0, pytest.approx(0))
    alone = clustering_scores([1, 2, 3], [4, 5, 6])
    assert alone.f1_pair == alone.f1_matched == 1
    assert one.to_frame().shape == (4, 2)
    assert one.measures()["ari"] == 0


def test_scores_refuse_lists_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match="one entry per instance each, got 2 and 1"):
        clustering_scores([1, 2], [1])
    with pytest.raises(ValueError, match="at least one entry"):
        clustering_scores([], [])


def test_ties_do_not_go_by_the_order_of_the_training_instances() -> None:
    old = [InstructionInstance("a", "1", f"task {i // 50}", "d", "m") for i in range(200)]
    new = [InstructionInstance("a", "1", f"task {i}", "d", "m") for i in range(4)]
    near = nearest_tasks(np.ones((200, 1, 2)), old, np.ones((4, 1, 2)), new, k=40)
    assert near.same_task[0] == pytest.approx(0.25)
    first = nearest_tasks(np.ones((200, 1, 2)), old, np.ones((1, 1, 2)), new[:1], k=40)
    assert first.same_task[0] < 0.5, "the first 40 are all of task 0"


def planted(items: list[InstructionInstance], strength: float, seed: int = 0) -> Any:
    """(instances, 2, 8) noise, and at layer 1 also one direction per task."""
    rng = np.random.default_rng(seed)
    names = sorted({item.task for item in items})
    states = rng.normal(size=(len(items), 2, 8))
    states[:, 1] += strength * np.eye(8)[[names.index(item.task) for item in items]]
    return states


@pytest.mark.seconds
@pytest.mark.parametrize("tsne", [False, True])
def test_planted_clusters_are_found_where_they_are(tsne: bool) -> None:
    items = instances(mappings=8)
    found = cluster_states(planted(items, 30), items, tsne=tsne)
    row = found.labels.index("task")
    assert found.f1_matched[row, 1] == found.ari[row, 1] == 1
    assert found.ami[row, 0] < 0.3, "noise has no clusters"
    assert found.f1_matched_chance[row, 1] < 0.6
    assert found.n_clusters.tolist() == [3, 6, 48]
    again = cluster_states(planted(items, 30), items, tsne=tsne)
    assert found.equals(again)
    table = found.to_frame()
    assert len(table) == 6
    assert table.query("labels == 'task' and layer == 1").ari.item() == 1


def test_within_an_input_the_input_cannot_hide_the_task() -> None:
    items = instances(distributions=6)
    rng = np.random.default_rng(0)
    states = rng.normal(size=(len(items), 1, 8))
    states[:, 0, :4] += 300 * np.eye(4)[[int(item.output) for item in items]]
    states[:, 0, 4:7] += 30 * np.eye(3)[[int(item.task[-1]) for item in items]]
    whole = cluster_states(states, items, labels=["task"])
    within = cluster_states(states, items, labels=["task"], within_input=True)
    assert whole.f1_matched[0, 0] < 0.6
    assert within.f1_matched[0, 0] == within.ari[0, 0] == 1
    assert within.f1_matched_chance[0, 0] < 0.75
    assert within.n_clusters.tolist() == [12]
    for output in "0123":
        part = [place for place, item in enumerate(items) if item.output == output]
        alone = cluster_states(states[part], [items[place] for place in part], labels=["task"])
        assert clustering_scores(alone.clusters[0, 0].tolist(), within.clusters[0, 0, part].tolist()).ari == 1
    with pytest.raises(ValueError, match="within_input needs an input with instances of two labels"):
        cluster_states(states[:4], items[:4], labels=["task"], within_input=True)


def test_labels_that_were_shuffled_score_what_chance_gives() -> None:
    items = instances(mappings=10)
    order = np.random.default_rng(1).permutation(len(items))
    found = cluster_states(planted([items[i] for i in order], 30), items, labels=["task"])
    assert found.f1_matched[0, 1] == pytest.approx(found.f1_matched_chance[0, 1], abs=0.12)
    assert abs(found.ari[0, 1]) < 0.1


def test_states_of_a_model_are_those_at_the_last_token() -> None:
    model, items = demo_pair().tuned, list(demo_instructions(phrasings_per_task=2, inputs=2))
    found = cluster_hidden_states(model, items, layers=[0, 3, -1], labels=["task"], n_init=2)
    states = last_states(model, [item.prompt for item in items], [0, 3, 6])
    by_hand = cluster_states(states, items, layers=[0, 3, 6], labels=["task"], n_init=2)
    np.testing.assert_array_equal(found.clusters, by_hand.clusters)
    assert found.layers.tolist() == [0, 3, 6]


def test_the_tuned_demo_model_clusters_categories_and_its_embeddings_do_not() -> None:
    found = cluster_hidden_states(demo_pair().tuned, demo_instructions(phrasings_per_task=4, inputs=3), labels=["task"])
    assert found.f1_matched[0, 0] == pytest.approx(found.f1_matched_chance[0, 0], abs=0.1), "one token for all"
    assert found.f1_matched[0].max() > found.f1_matched_chance[0].max() + 0.15


def test_progress_and_cancel() -> None:
    model, items = demo_pair().tuned, demo_instructions(phrasings_per_task=1, inputs=2)
    steps: list[tuple[int, int]] = []
    cluster_hidden_states(model, items, layers=[0, 6], n_init=1, progress=lambda *step: steps.append(step))
    assert steps[-1] == (26, 26)
    assert steps == sorted(steps)

    class Stopped(Exception):
        pass

    def stop() -> None:
        raise Stopped

    for call in (
        lambda: cluster_hidden_states(model, items, check=stop),
        lambda: knn_task(model, items, items, k=1, check=stop),
        lambda: state_map(model, items, layer=0, check=stop),
    ):
        with pytest.raises(Stopped):
            call()


# neighbours ---------------------------------------------------------------------------------------------------------


def naive_neighbours(known: Any, old: Any, asked: Any, new: Any, k: int) -> tuple[list[float], list[float]]:
    shares, right = [], []
    for layer in range(known.shape[1]):
        share, hits = 0.0, 0
        for state, item in zip(asked[:, layer], new, strict=True):
            order = sorted(range(len(old)), key=lambda i: float(((known[i, layer] - state) ** 2).sum()))[:k]
            share += sum(old[i].task == item.task for i in order) / k
            outputs = [old[i].output for i in order]
            most = max(Counter(outputs).values())
            hits += next(o for o in outputs if outputs.count(o) == most) == item.output
        shares.append(share / len(new))
        right.append(hits / len(new))
    return shares, right


@pytest.mark.parametrize("k", [1, 3, 7])
def test_neighbours_equal_a_naive_loop(k: int) -> None:
    items = instances(mappings=6)
    states = planted(items, 2)
    old, new, known, asked = items[::2], items[1::2], states[::2], states[1::2]
    near = nearest_tasks(known, old, asked, new, k=k)
    shares, right = naive_neighbours(known, old, asked, new, k)
    np.testing.assert_allclose(near.same_task, shares)
    np.testing.assert_allclose(near.accuracy, right)
    assert near.same_task[1] > near.same_task[0], "positive control: layer 1 has the tasks"
    small = nearest_tasks(1e-6 * known, old, 1e-6 * asked, new, k=k)
    assert small.same_task.tolist() == near.same_task.tolist(), "which are near does not depend on the scale of states"
    assert near.same_task_chance == pytest.approx(1 / 3)
    assert near.k == k
    assert near.to_frame().columns.tolist() == ["layer", "same_task", "accuracy", "same_task_chance", "accuracy_chance"]


def test_neighbours_of_a_model() -> None:
    items = demo_instructions(phrasings_per_task=4, inputs=2)
    model = demo_pair().tuned
    near = knn_task(model, items[::2], items[1::2], k=3, layers=[0, -1])
    states = last_states(model, [item.prompt for item in items], [0, 6])
    by_hand = nearest_tasks(states[::2], items[::2], states[1::2], items[1::2], k=3)
    np.testing.assert_allclose(near.same_task, by_hand.same_task)
    assert near.layers.tolist() == [0, 6]
    assert near.same_task[1] > near.same_task_chance + 0.1


# maps ---------------------------------------------------------------------------------------------------------------


def test_the_plane_of_components_keeps_distances() -> None:
    items = instances()
    rng = np.random.default_rng(0)
    flat = rng.normal(size=(len(items), 2)) @ np.linalg.qr(rng.normal(size=(8, 2)))[0].T + 5
    places = map_states(flat, items, layer=1)

    def distances(points: Any) -> Any:
        return np.linalg.norm(points[:, None] - points[None], axis=-1)

    np.testing.assert_allclose(distances(places.xy), distances(flat), atol=1e-9)
    assert places.explained == pytest.approx(1)
    assert places.layer == 1


def test_a_map_by_tsne_keeps_tasks_apart() -> None:
    items = instances(mappings=8)
    places = map_states(planted(items, 30)[:, 1], items, layer=1, method="tsne")
    assert cluster_states(places.xy[:, None], items, labels=["task"]).ari[0, 0] == 1
    assert places.explained is None
    assert len(places.to_frame()) == len(items)


def test_planes_of_checkpoints_are_turned_not_bent() -> None:
    rng = np.random.default_rng(0)
    points = rng.normal(size=(20, 2))
    angle = np.array([[0.0, 1.0], [-1.0, 0.0]])
    np.testing.assert_allclose(_procrustes(points @ angle, points), points, atol=1e-12)


# over training ------------------------------------------------------------------------------------------------------


@pytest.mark.seconds
def test_every_checkpoint_is_analysed_like_a_model() -> None:
    task = make_instruction_task(tasks=4, subset_tasks=2, validation_tasks=2, hard_tasks=1, max_distributions=1)
    model = tiny_model("gpt2")
    training = clusters_over_training({0: model, 7: model}, task, k=3, n_init=2)
    assert training.steps.tolist() == [0, 7]
    assert training.labels == ("task", "distribution", "distribution_mapping")
    for row, group in enumerate((task.training_subset(), task.validation())):
        alone = cluster_hidden_states(model, group, n_init=2)
        np.testing.assert_allclose(training.f1_matched[1, row], alone.f1_matched)
        np.testing.assert_allclose(training.ami[1, row], alone.ami)
    near = knn_task(model, task.training(), task.validation(), k=3)
    np.testing.assert_allclose(training.same_task[0], near.same_task)
    np.testing.assert_allclose(training.knn_accuracy[0], near.accuracy)
    np.testing.assert_allclose(training.subset_xy[0], training.subset_xy[1], atol=1e-5)
    assert len(training.to_frame()) == 2 * 2 * 3 * len(training.layers)
    assert training.xy("validation").shape[2] == len(task.validation())


def test_results_come_back_from_files(tmp_path: Any) -> None:
    items = instances()
    for number, result in enumerate(
        [cluster_states(planted(items, 3), items), map_states(planted(items, 3)[:, 1], items, layer=0)]
    ):
        assert Result.load(result.save(tmp_path / str(number))).equals(result)


# refusals -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m, i: cluster_hidden_states(m, i[:3]), "instances must be 4 or more, got 3"),
        (lambda m, i: cluster_hidden_states(m, i, labels=[]), "labels must not be empty"),
        (lambda m, i: cluster_hidden_states(m, i, layers=[9]), "layer must be in -7..6"),
        (lambda m, i: cluster_hidden_states(m, i, n_init=0), "n_init must be 1 or more, got 0"),
        (lambda m, i: knn_task(m, i, i, k=999), "k must be in 1..20 for 20 training instances, got 999"),
        (lambda m, i: knn_task(m, i, []), "instances must have at least one instance, got none"),
        (lambda m, i: knn_task(m, [], i), "training must have at least one instance, got none"),
        (lambda m, i: clusters_over_training({}, make_instruction_task()), "checkpoints must not be empty"),
    ],
)
def test_refusals(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(demo_pair().tuned, demo_instructions(phrasings_per_task=1, inputs=2))


def test_states_must_fit_their_instances() -> None:
    items = instances()
    with pytest.raises(ValueError, match=r"states must have shape \(24, layers, d_model\), got \(3, 2, 8\)"):
        cluster_states(np.zeros((3, 2, 8)), items)
    with pytest.raises(ValueError, match="states must be finite"):
        cluster_states(np.full((24, 1, 2), np.nan), items)
    with pytest.raises(TypeError, match="the checkpoint of step 0 must be a folder or a loaded model, got int"):
        clusters_over_training({0: 3}, make_instruction_task())
