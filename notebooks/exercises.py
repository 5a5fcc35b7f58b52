"""Judges the exercises of the lessons. The rules stand here and not in the lessons, where they would show the answers.

`check = judge("01_saliency", globals())` gives a lesson its judge, and `check(1, answer_1)` says whether the answer to
exercise 1 is right. A rule computes what is right from what the lesson has computed: `its` are the lesson's names.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from interp_widgets import (
    ablate_heads,
    circuit_ranking,
    circuit_scoreboard,
    compare_concepts,
    grade_circuit,
    instruction_score,
    neighbors,
    normalize_importance,
)


@dataclass(frozen=True)
class Exercise:
    """What is right, and what to say about an answer that is not."""

    accepts: Callable[[Any, Any], Any]
    """Whether an answer is right, of the answer and the lesson's names; may raise for an answer of another kind."""
    hint: str
    tempting: tuple[tuple[Callable[[Any], float], str], ...] = ()
    """Wrong numbers that one easily gives, each with what is wrong about it."""
    mistakes: tuple[tuple[Callable[[Any, Any], Any], str], ...] = ()
    """The same where an answer is no number: whether the mistake was made, of the answer and the lesson's names."""


class Names:
    """The names of a lesson as attributes, as they are now."""

    def __init__(self, names: dict[str, Any]) -> None:
        self._names = names

    def __getattr__(self, name: str) -> Any:
        if name not in self._names:
            raise NameError(f"run the cells above first: {name} is not there yet")
        return self._names[name]


def near(right: Callable[[Any], float], within: float = 1e-6) -> Callable[[Any, Any], Any]:
    """Accepts one number that is no farther from the right one than `within`."""
    return lambda answer, its: np.ndim(answer) == 0 and abs(answer - right(its)) <= within


def judge(lesson: str, names: dict[str, Any]) -> Callable[[int, Any], None]:
    """The judge of a lesson's exercises."""
    its = Names(names)

    def check(number: int, answer: Any) -> None:
        """Say whether the answer to an exercise is right; None means that it waits for you."""
        if answer is None:
            print("Your turn: replace None and run the cell again.")
            return
        right, note = verdict(lesson, number, answer, its)
        print("Right." if right else f"Not yet. {note}")

    return check


def verdict(lesson: str, number: int, answer: Any, its: Names) -> tuple[bool, str]:
    """Whether an answer is right, and what to say if it is not."""
    exercise = EXERCISES[lesson][number]
    try:
        right = bool(exercise.accepts(answer, its))
        said = [note for wrong, note in exercise.tempting if near(wrong, 0.005)(answer, its)]
        said += [] if right else [note for made, note in exercise.mistakes if made(answer, its)]
    except (TypeError, ValueError, IndexError):
        right, said = False, []  # a word for a number, a number for a list
    return right, "" if right else (said or [exercise.hint])[0]


def finds_heads_of(method: Any, circuit: str) -> bool:
    """Whether a method puts the heads that matter first on a circuit with decoys that no lesson shows."""
    board = circuit_scoreboard([method], [circuit], seed=17)
    return bool(board.average_precision[0, 0, board.kinds.index("heads")] > 1 - 1e-9)


def spread(method: Any) -> float:
    """How far apart the largest and the smallest number are that a method gives the heads of *backup*, as a share."""
    values = circuit_ranking(method, "backup", kind="heads", seed=17).values
    return float(np.ptp(values) / np.abs(values).max())


def removed_with_zero(sealed: Any) -> tuple[int, int]:
    """The head of a sealed circuit whose removal by zero does most."""
    case = sealed.cases[0]
    return ablate_heads(sealed.model, case.prompt, case.answer).strongest(1)[0]


def above(found: Any) -> Any:
    """(positions,) layers above each token's exit layer."""
    return found.n_layers - 1 - found.exit_layer


EXERCISES: dict[str, dict[int, Exercise]] = {
    "01_saliency": {
        1: Exercise(
            lambda n, its: its.result.importance[n, 0] <= its.result.importance[:, 0].min() + 1e-6,
            "Column 0 of result.importance belongs to the first response token. Raised means: negative importance.",
        ),
        2: Exercise(
            near(lambda its: np.mean(np.equal(*(its.top_token(method) for method in ("first_order", "exact")))), 1e-3),
            "top_token(method) names one prompt token per response token. How often are two such lists the same?",
        ),
        3: Exercise(
            lambda scores, its: (
                list(scores) == normalize_importance(its.column, levels=5, threshold=2).ravel().tolist()
            ),
            "Divide by the largest, multiply by L, round up; then drop what is not above b. Negative importance is 0.",
        ),
        4: Exercise(
            near(lambda its: instruction_score(its.density, its.mask), 1e-9),
            "The formula above has two divisions, and only the sum goes over the tokens where mask is true.",
        ),
        5: Exercise(
            lambda count, its: count == int(np.sum(its.score_of("tuned") > its.score_of("base"))),
            "score_of(name) holds a number per case, the same cases in the same order for both models.",
        ),
    },
    "02_logit_lens": {
        1: Exercise(
            lambda row, its: row == np.flatnonzero(its.names.target_rank[:, -1] == 0)[0],
            "names.target_rank[:, -1] holds the rank in every row, and the likeliest token has rank 0.",
        ),
        2: Exercise(
            near(lambda its: (its.depth["indirect objects"] >= 3).mean(), 1e-9),
            "depth['indirect objects'] holds the row of every prompt. Row 3 itself counts.",
        ),
        3: Exercise(
            near(lambda its: its.kl["logit lens"][3] / its.kl["tuned lens"][3], 0.05),
            "The dictionary kl has a row of numbers for each lens. A factor by which something falls is above 1.",
        ),
    },
    "03_ablation": {
        1: Exercise(
            lambda place, its: its.swapped.of("attn")[tuple(place)] == its.swapped.of("attn").max(),
            "np.unravel_index turns the index that argmax gives into (row, column).",
        ),
        2: Exercise(
            near(lambda its: its.share_right(its.order[:2]), 1e-9),
            "share_right takes a list of (layer, head); order lists them from the strongest effect down.",
        ),
        3: Exercise(
            lambda count, its: (
                count == int((its.trace.effect[its.trace.kinds.index("state")] >= its.trace.clean / 2).sum())
            ),
            "trace.effect[0] holds what each state brings back. Count the cells that reach half of trace.clean.",
        ),
    },
    "04_token_decomposition": {
        1: Exercise(
            near(lambda its: its.shares.share[1:3].sum() / its.shares.logit, 0.01),
            "shares.share holds one number per token, in the order of shares.tokens; the whole is shares.logit.",
        ),
        2: Exercise(
            near(lambda its: its.split.share[1] / its.split.share.sum(), 0.01),
            "split is of the difference, and the sum over the four tokens leaves out the rest.",
        ),
        3: Exercise(
            near(lambda its: np.mean([its.from_the_answer(one) for one in its.receivers]), 1e-9),
            "from_the_answer(one) says it of one prompt.",
        ),
    },
    "05_head_words": {
        1: Exercise(
            near(lambda its: (its.same_sign & its.near & its.different).sum() / (its.same_sign & its.different).sum()),
            "The tables same_sign, near and different are at hand. Divide by the combinations asked for, not by K × K.",
        ),
        2: Exercise(
            near(lambda its: (its.real_pairs - its.chance_pairs) / its.real_pairs),
            "How many pairs are more than chance gives? And what part of the real ones is that?",
        ),
        3: Exercise(
            lambda count, its: count == its.test.sort_values("holm_p").instruction_verbs.iloc[0],
            "The column instruction_verbs of the table counts the verbs that have a share in that layer group.",
        ),
    },
    "06_ffn_concepts": {
        1: Exercise(
            lambda n, its: n == sum(its.nearest_cosine(5, component) > its.limit for component in range(20)),
            "nearest_cosine(5, component) is the cosine of one component's nearest word.",
        ),
        2: Exercise(
            near(lambda its: its.effects.strongest(1)[0][1] / its.effects.mlp_effect, 0.01),
            "effects.strongest(1) holds the neuron and its effect. The whole is what the MLP adds, not the logit.",
        ),
        3: Exercise(
            near(lambda its: its.named - its.named_random, 0.005),
            "Beyond means: more than.",
        ),
    },
    "07_base_vs_tuned": {
        1: Exercise(
            near(lambda its: its.compared.head_change[2, 3], 1e-9),
            "The formula above divides by the pairs that are in either list, each counted once.",
        ),
        2: Exercise(
            near(lambda its: compare_concepts(*its.concepts, rank=5).overlap[5], 1e-4),
            "The singular values are cosines; a share of a subspace is a mean of *squared* cosines.",
        ),
        3: Exercise(
            lambda number, its: (
                number == (np.maximum.accumulate(np.sort(its.printed) * [4, 3, 2, 1]) < 0.05).sum()
                and not isinstance(number, bool)
            ),
            "Sort first. What is multiplied by 4 is the smallest, and nothing after it may come out smaller.",
        ),
    },
    "08_concepts": {
        1: Exercise(
            near(lambda its: its.told(its.discriminant), 0.005),
            "told(...) takes directions; those of the discriminant are in discriminant.",
        ),
        2: Exercise(
            lambda count, its: count == its.instruments(name for name, _ in neighbors(its.tuned, "piano", 10)),
            "near_on_the_map asks the picture. neighbours asks the directions.",
        ),
        3: Exercise(
            near(lambda its: (its.jobs[:, 0] - its.jobs[:, 1]).mean(), 0.01),
            "jobs has a row per occupation: its own direction first, the random one second. Take the control off.",
        ),
    },
    "09_mixture_of_depths": {
        1: Exercise(
            near(lambda its: its.hit[:-1, ~its.hit[-1]].any(axis=0).mean(), 0.005),
            "Look only at the tokens where hit[-1] is False.",
            (
                (
                    lambda its: its.hit.any(axis=0).mean() - its.hit[-1].mean(),
                    "That is a share of all tokens. Divide by those the last layer gets wrong.",
                ),
                (
                    lambda its: its.hit[:-1].any(axis=0).mean(),
                    "That counts the tokens which the last layer gets right as well.",
                ),
                (
                    lambda its: 100 * its.hit[:-1, ~its.hit[-1]].any(axis=0).mean(),
                    "Right tokens, but as a share from 0 to 1, please.",
                ),
            ),
        ),
        2: Exercise(
            near(lambda its: (its.base_loss - its.before["equal"].mean()) / its.gain, 0.005),
            "A gain is a difference from base_loss. Divide one gain by the other.",
            (
                (
                    lambda its: its.before["equal"].mean() / its.after["router"].mean(),
                    "Those are losses. What is asked for is how far each of them falls.",
                ),
                (
                    lambda its: its.before["equal"].mean() / its.base_loss,
                    "Those are losses. What is asked for is how far they fall, one fall over the other.",
                ),
                (
                    lambda its: (its.base_loss - its.after["equal"].mean()) / its.gain,
                    "Those are equal weights on the tuned mixture, whose norms were tuned: not free.",
                ),
                (
                    lambda its: (its.base_loss - its.before["router"].mean()) / its.gain,
                    "That is the random router, which does harm. Take equal weights.",
                ),
            ),
        ),
        3: Exercise(
            near(lambda its: above(its.found)[above(its.found) > 0].mean(), 0.01),
            "found.exit_layer has a layer per token, and found.n_layers - 1 is the last layer: take the difference.",
            (
                (
                    lambda its: above(its.found).mean(),
                    "That is over all tokens. Leave out those that exit at the last layer.",
                ),
                (
                    lambda its: above(its.found)[above(its.found) > 0].mean() + 1,
                    "The exit layer itself is computed; count the layers above it.",
                ),
                (
                    lambda its: its.found.exit_layer[above(its.found) > 0].mean() + 1,
                    "That is how many layers are computed. Count the others.",
                ),
                (
                    lambda its: above(its.found).mean() / its.found.n_layers,
                    "That is a share of all layers, over all tokens. Count layers, of the tokens that exit early.",
                ),
            ),
        ),
    },
    "10_your_own_probe": {
        1: Exercise(
            lambda place, its: len(place) == 2 and its.entropy.values[tuple(place)] == its.entropy.values.min(),
            "The most decided head has the smallest entropy; entropy.values has a row per layer.",
        ),
        2: Exercise(
            near(lambda its: np.log(len(its.model.tokens(its.prompt)))),
            "The formula is in section 1, and model.tokens(prompt) are the tokens that the model is fed.",
        ),
        3: Exercise(
            near(lambda its: its.mixed.bag_of_words.mean() - its.apart.bag_of_words.mean()),
            "mixed.bag_of_words and apart.bag_of_words hold an accuracy per seed and fold.",
        ),
    },
    "11_workbench": {
        1: Exercise(
            lambda token, its: (
                token == its.found[1].prompt_tokens[(its.found[1].importance - its.found[0].importance)[:, 0].argmax()]
            ),
            "found[0] and found[1] are the results of A and B; .importance has a row per token of .prompt_tokens.",
        ),
        2: Exercise(
            near(lambda its: its.parts[1].share[its.parts[1].tokens.index(its.answer_1)] / its.parts[1].logit, 0.01),
            "parts[1].share has a number per token of parts[1].tokens; the whole logit is parts[1].logit.",
        ),
        3: Exercise(
            lambda count, its: (
                count == (its.tuned.numbers("first_best_layer") > its.base.numbers("first_best_layer")).sum()
            ),
            "Compare the two arrays of tuned and base element by element, and count where the first is larger.",
        ),
    },
    "12_bias": {
        1: Exercise(
            near(lambda its: 92.79 * (100 - 68.55) / 50, 0.01),
            "The smaller of SS and 100 - SS counts; the formula is in the list above.",
            (
                (lambda its: 92.79 * 68.55 / 50, "SS is above 50: take 100 - SS."),
                (lambda its: 0.9279 * (100 - 68.55) / 50, "LMS is in percent, and so is ICAT."),
            ),
        ),
        2: Exercise(
            lambda count, its: count == int((its.neurons.cosine > its.neurons.chance[:, None]).sum()),
            "neurons.cosine has a row per probe, neurons.chance a number per probe: compare each row with its own.",
        ),
        3: Exercise(
            near(lambda its: (100 - its.rows["LEACE"].domain("gender").ss) / 50, 0.005),
            "The way is 50 points long. How many of them did it go?",
            (
                (
                    lambda its: (100 - its.rows["LEACE"].domain("gender").ss) / 100,
                    "The way from 100 to 50 is 50 points long, not 100.",
                ),
            ),
        ),
    },
    "13_clusters": {
        1: Exercise(
            near(lambda its: 1 / 3, 0.01),
            "One of the two tasks gets the cluster, the other one gets none.",
            (
                (
                    lambda its: 2 / 3,
                    "That is the F1 of the task that gets the cluster: the score is the mean over tasks.",
                ),
            ),
        ),
        2: Exercise(
            near(lambda its: its.training.f1_matched[-1, 0, 0, -1] - its.training.f1_matched[0, 0, 0, -1], 0.005),
            "training.f1_matched[checkpoint, 0, 0, -1] is the score; the first checkpoint is 0, the last -1.",
        ),
        3: Exercise(
            lambda layer, its: (
                layer == its.found[1].f1_matched[list(its.found[1].labels).index("distribution")].argmax()
            ),
            "found[1] is of the tuned model; the single tasks are the labels called distribution.",
        ),
    },
    "14_layer_similarity": {
        1: Exercise(
            near(lambda its: 192 * 9, 3),
            "Solve 1 / (1 + n / 192) = 0.1 for n.",
            ((lambda its: 192 * 10, "1 + n / d has to be 10, so n / d is one less."),),
        ),
        2: Exercise(
            lambda count, its: count == int((its.tuned.cka > its.base.cka)[its.known, -1].sum()),
            "cka has a row per task and a column per layer; known says which tasks it was tuned on.",
        ),
        3: Exercise(
            near(lambda its: (its.tuned.cka - its.base.cka)[~its.known, -1].mean(), 0.002),
            "mossa_sections(base, tuned, unseen=True).difference has a number per layer; the last one is asked for.",
            (
                (
                    lambda its: (its.tuned.cka - its.base.cka)[its.known, -1].mean(),
                    "That is of the tasks that it was tuned on: set unseen=True.",
                ),
            ),
        ),
    },
    "15_patching": {
        1: Exercise(
            lambda place, its: (
                its.heads.recovered["head"][:, :, -1][tuple(place)] == its.heads.recovered["head"][:, :, -1].max()
            ),
            "heads.recovered['head'] has the axes layer, head and position; the last position is -1.",
        ),
        2: Exercise(
            near(lambda its: 1 - its.lost.recovered["head"][0, 1, -1], 0.005),
            "lost has the maps of noising, in which 1 means that nothing is lost.",
            (
                (
                    lambda its: its.lost.recovered["head"][0, 1, -1],
                    "That is what is left: the question is what is lost.",
                ),
                (lambda its: its.heads.recovered["head"][0, 1, -1], "That is what the head brings back (denoising)."),
            ),
        ),
        3: Exercise(
            lambda count, its: count == len(its.circuit.smallest(0.9)),
            "circuit.faithfulness has a number for 0, 1, 2, ... parts; the first that reaches 0.9 counts.",
        ),
    },
    "16_attention": {
        1: Exercise(
            lambda place, its: its.known.previous_token[tuple(place)] == its.known.previous_token.max(),
            "known.previous_token has the axes layer and head; np.unravel_index turns argmax() into the two.",
        ),
        2: Exercise(
            lambda part, its: part == max("qkv", key=its.carried),
            "Call carried with each of the three letters: where is the answer lost?",
        ),
        3: Exercise(
            lambda count, its: (
                count
                == sum(
                    its.looks.pattern(layer, head)[-1].max() >= 0.9 and abs(its.removed[layer, head]) < 0.01
                    for layer in range(2)
                    for head in range(4)
                )
            ),
            "Both must hold for one head: compare the two columns that are printed above line by line.",
        ),
    },
    "17_circuits": {
        1: Exercise(
            near(lambda its: np.mean(1 / np.arange(1, 9)), 0.0011),
            "The head stands at place 1 to 8, each as often. What is the precision if it stands at place k?",
            (
                (lambda its: 1 / 8, "That is the precision of all eight together. The list is read from the top."),
                (lambda its: 1 / 4.5, "That is the precision at the mean place. Take the mean of the precisions."),
                (lambda its: 1 / 2, "Half is what chance has of an area under a ROC curve, not of a precision."),
            ),
        ),
        2: Exercise(
            lambda count, its: (
                count
                == sum(its.pairs[i, j] < 0.5 <= min(its.pairs[[i, j], [i, j]]) for i in range(8) for j in range(i))
            ),
            "Three conditions: i < j, pairs[i, j] is below 0.5, and neither pairs[i, i] nor pairs[j, j] is.",
            (
                (
                    lambda its: (its.pairs[np.tril_indices(8, -1)] < 0.5).sum(),
                    "In most of those pairs one of the two heads takes the lead alone. Leave them out.",
                ),
                (lambda its: (its.pairs < 0.5).sum(), "That counts every pair twice, and single heads too."),
                (lambda its: 2, "Each pair stands in the matrix twice: i beside j is j beside i."),
            ),
        ),
        3: Exercise(
            lambda method, its: all(finds_heads_of(method, circuit) for circuit in ("backup", "busy_idle")),
            "It must return {'heads': numbers} of shape (layers, heads), the larger the more a head matters.",
            mistakes=(
                (
                    lambda method, its: spread(method) < 0.1,
                    "Beside a head that takes everything each head takes everything. What does it add to the other?",
                ),
                (
                    lambda method, its: not finds_heads_of(method, "busy_idle"),
                    "On busy_idle it puts a head first that carries nothing. Use values of the corrupted prompt.",
                ),
                (
                    lambda method, its: not finds_heads_of(method, "backup"),
                    "On backup it misses heads that replace each other. Take out two at a time.",
                ),
            ),
        ),
        4: Exercise(
            lambda parts, its: grade_circuit(its.sealed, parts, draws=1).f1 == 1,
            "A list of pairs, such as [(0, 1), (1, 0)]. Your method of exercise 3 takes sealed.model and a case.",
            mistakes=(
                (
                    lambda parts, its: [tuple(part) for part in parts] == [removed_with_zero(its.sealed)],
                    "That head does most when it is zero, which it never is. Use its value of the corrupted prompt.",
                ),
                (
                    lambda parts, its: grade_circuit(its.sealed, parts, draws=1).recall == 1,
                    "What matters is among them, and something else too. Naming everything always has recall 1.",
                ),
                (
                    lambda parts, its: grade_circuit(its.sealed, parts, draws=1).precision == 0,
                    "Nothing of that matters. A head that looks at one word need not move anything that is read.",
                ),
            ),
        ),
    },
}
