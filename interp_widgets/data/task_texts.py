"""Tasks as lists of texts with reference answers, for comparing layers task by task."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from interp_widgets.arguments import checked
from interp_widgets.data import world
from interp_widgets.data import world_tables as t
from interp_widgets.data.instructions import format_prompt, instruction_cases, tasks
from interp_widgets.data.world import stable_hash

CLUSTERS = {
    "word forms": ("plural", "past", "gerund", "antonym"),
    "translation": ("french", "spanish"),
    "facts": ("capital", "continent", "language", "currency", "city", "creator"),
    "sequences": ("first", "last", "count", "repeat", "reverse", "odd"),
    "reasoning": ("sum", "kind"),
    "writing": ("job", "how_to", "country", "story", "list"),
}
"""The demo's tasks by cluster."""

UNSEEN = {
    "singular": (
        "give the singular of the word", "write the singular form of this word", "change the plural to the singular",
        "make this word singular",
    ),
    "present": (
        "give the present tense of the verb", "put this verb into the present", "turn the verb into its present form",
        "say the verb in the present tense",
    ),
    "english": (
        "translate the word from French into English", "say this French word in English",
        "give the English for the French word", "put this French word into English",
    ),
    "country_of": (
        "name the country of this capital", "say which country has this capital",
        "give the country whose capital this is", "tell me the country that this capital belongs to",
    ),
    "second": (
        "give the second word", "write the second of these words", "say which word is second",
        "repeat the second word only",
    ),
}  # fmt: skip
"""Tasks that the demo's tuned model was not tuned on: the demo's tables reversed, and the second word of several."""


@dataclass(frozen=True)
class TaskTexts:
    """A task: prompts, reference answers, and the cluster of the task.

    Example:
        >>> task = TaskTexts("plural", ("Plural of cat:", "Plural of dog:"), (" cats", " dogs"), cluster="word forms")
        >>> task.name, len(task.texts), task.unseen
        ('plural', 2, False)
    """

    name: str
    """Unique name."""
    texts: Sequence[str]
    """Texts, each up to the beginning of the answer."""
    responses: Sequence[str] = ()
    """Answers, one per text, with a leading space; needed to tune a control model, else empty."""
    cluster: str = ""
    """Cluster of the task, such as "translation"; empty for none."""
    unseen: bool = False
    """Whether the tuned model was not tuned on this task."""

    def __post_init__(self) -> None:
        for field in ("texts", "responses"):
            values = getattr(self, field)
            if isinstance(values, str) or not all(isinstance(text, str) and text for text in values):
                raise ValueError(f"task {self.name!r}: {field} must be a list of str that are not empty")
            object.__setattr__(self, field, tuple(values))
        if not self.name or not self.texts:
            raise ValueError(f"a task needs a name and texts, got name {self.name!r} and {len(self.texts)} texts")
        if self.responses and len(self.responses) != len(self.texts):
            raise ValueError(
                f"task {self.name!r}: responses must be one per text, {len(self.texts)}, got {len(self.responses)}"
            )


@checked
def demo_task_texts(
    texts: int = 100, *, names: Sequence[str] | None = None, unseen: bool = True, seed: int = 0
) -> tuple[TaskTexts, ...]:
    """The demo's instruction tasks, the same number of different texts each, phrased as in training.

    The tasks are those that the tuned demo model was tuned on, with inputs and contexts drawn from its training split,
    and five that it was not tuned on (`unseen`): singular of a plural, present of a past, English of French, the
    country of a capital, the second word of several. A task with fewer different texts has all of them.

    Args:
        texts: most texts per task.
        names: only these tasks; by default all.
        unseen: whether to add the tasks that the model was not tuned on.
        seed: of the draw.

    Raises:
        ValueError: fewer than 4 texts, or a name that no task has.

    Example:
        >>> every = demo_task_texts(8)
        >>> len(every), sum(task.unseen for task in every), every[0].name, every[0].cluster
        (27, 5, 'plural', 'word forms')
    """
    if texts < 4:
        raise ValueError(f"texts must be 4 or more, which a comparison needs, got {texts}")
    cluster_of = {task: cluster for cluster, members in CLUSTERS.items() for task in members}
    known = [*tasks(), *(UNSEEN if unseen else ())]
    chosen = known if names is None else list(names)
    if wrong := [name for name in chosen if name not in known]:
        raise ValueError(f"names must be of {', '.join(known)}, got {wrong[0]!r}")
    task_texts = []
    drawn: dict[str, dict[str, str]] = {}
    if any(name not in UNSEEN for name in chosen):
        for case in instruction_cases("train", 3 * texts * len(tasks()), seed=seed):
            drawn.setdefault(case.task, {}).setdefault(case.prompt, case.response)
    for name in chosen:
        if name in UNSEEN:
            pairs = _unseen_pairs(name, texts, seed)
            cluster = "unseen"
        else:
            pairs, cluster = list(drawn[name].items())[:texts], cluster_of[name]
        task_texts.append(
            TaskTexts(name, [text for text, _ in pairs], [answer for _, answer in pairs], cluster, name in UNSEEN)
        )
    return tuple(task_texts)


def _unseen_pairs(name: str, count: int, seed: int) -> list[tuple[str, str]]:
    """Different texts of a task that is not in the tuning data, with their responses."""
    rng = random.Random(stable_hash("unseen", name, seed))
    if name == "second":
        words = sorted(set(t.ANTONYMS) | set(t.PLURALS))
        sequences = [rng.sample(words, rng.randint(2, 4)) for _ in range(9 * count)]
        inputs = [(" ".join(sequence), sequence[1]) for sequence in sequences]
    else:
        inputs = sorted(_reversed_table(name).items())
    every = [
        (format_prompt(wrapper.replace("{C}", core[0].upper() + core[1:]).replace("{c}", core), value), f" {answer}")
        for core in UNSEEN[name]
        for wrapper in t.WRAPPERS
        for value, answer in inputs
    ]
    return rng.sample(every, min(count, len(every)))


def _reversed_table(name: str) -> dict[str, str]:
    """Inputs and answers of an unseen task, for inputs with a single answer."""
    if name == "country_of":
        pairs = [(fact.object, fact.subject) for fact in world.facts() if fact.relation == "capital"]
    else:
        table = t.TABLES[{"singular": "plural", "present": "past", "english": "French"}[name]]
        pairs = [(answer, value) for value, answer in table.items()]
    seen = [value for value, _ in pairs]
    return {value: answer for value, answer in pairs if seen.count(value) == 1 and value != answer}
