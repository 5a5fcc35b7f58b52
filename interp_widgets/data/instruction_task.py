"""The synthetic instruction-following task: task functions, instructions from regular expressions, hard examples.

An instance is ``[instruction; x; y]``, one token per symbol: lower-case letters and digits for instructions, capitals
for inputs and outputs. The instruction alone says which task function maps x to y.
"""

from __future__ import annotations

import itertools
import json
import random
import re
import string
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from interp_widgets.arguments import checked
from interp_widgets.atomic import named_path, whole_file
from interp_widgets.data.files import parse_json, read_text, short
from interp_widgets.releases import refusal, stamped

LabelKind = Literal["task", "distribution", "distribution_mapping"]
LABEL_KINDS: tuple[LabelKind, ...] = ("task", "distribution", "distribution_mapping")
INSTRUCTION_ALPHABET = string.ascii_lowercase + string.digits
TASK_ALPHABET = string.ascii_uppercase
_FORMAT = "interp_widgets instruction task"
_VERSION = 1
_REPEATS = {"+": (1, 2), "*": (0, 2), "?": (0, 1)}
"""Fewest and most repetitions of a character for each metacharacter."""
_SHORTEST = 4
"""Fewest symbols in an instruction; shorter ones hardly identify their distribution."""
_TRIES = 400
"""Number of strings drawn from a regular expression before another one is tried."""


@dataclass(frozen=True)
class InstructionInstance:
    """One instruction with one input and output of its task, and the labels that a clustering is compared with.

    Example:
        >>> instance = InstructionInstance("Write the plural: cat", " cats", "linguistic", "plural", "cat→cats")
        >>> instance.label("distribution_mapping")
        'plural | cat→cats'
    """

    prompt: str
    """The instruction with its input, up to the beginning of the output."""
    output: str
    task: str
    distribution: str
    mapping: str

    def label(self, kind: LabelKind) -> str:
        """The label of a kind: the task, the distribution of the instruction, or distribution and mapping together."""
        if kind not in LABEL_KINDS:
            raise ValueError(f"kind must be one of {', '.join(LABEL_KINDS)}, got {kind!r}")
        return f"{self.distribution} | {self.mapping}" if kind == "distribution_mapping" else str(getattr(self, kind))


@dataclass(frozen=True)
class InstructionTaskSettings:
    """The sizes of a synthetic task; the defaults are the paper's (Table 3).

    Example:
        >>> settings = InstructionTaskSettings(tasks=20)
        >>> settings.tasks, settings.mappings
        (20, 5)
    """

    tasks: int = 50
    """Task functions besides those of the hard examples."""
    min_distributions: int = 1
    """Fewest instruction distributions of a task."""
    max_distributions: int = 6
    instructions: int = 10
    """Training instructions per distribution."""
    mappings: int = 5
    """Inputs of a task, each with its output."""
    subset_tasks: int = 5
    """Tasks in the training subset, every second one of hard examples."""
    validation_tasks: int = 10
    validation_instructions: int = 3
    """Unseen instructions per distribution of a validation task."""
    hard_tasks: int = 5
    """Number of tasks of hard examples; those with an even number keep the inputs of their source task."""
    hard_instructions: int = 3
    """Number of instructions per distribution in which one symbol is replaced."""
    task_symbols: int = 25
    instruction_symbols: int = 35
    min_metacharacters: int = 1
    """Fewest metacharacters of a regular expression."""
    max_metacharacters: int = 3
    min_characters: int = 3
    """Fewest characters that a metacharacter applies to."""
    max_characters: int = 10

    def __post_init__(self) -> None:
        """Check that such a task is possible."""
        for item in fields(self):
            value = getattr(self, item.name)
            least = 0 if item.name == "hard_tasks" else 1
            if not isinstance(value, int) or isinstance(value, bool):
                raise TypeError(f"{item.name} must be an int, got {value!r}")
            if value < least:
                raise ValueError(f"{item.name} must be {least} or more, got {value}")
        for name in ("distributions", "metacharacters", "characters"):
            low, high = getattr(self, f"min_{name}"), getattr(self, f"max_{name}")
            if low > high:
                raise ValueError(f"min_{name} must be at most max_{name}, {high}, got {low}")
        limits = {
            "task_symbols": len(TASK_ALPHABET),
            "instruction_symbols": len(INSTRUCTION_ALPHABET),
            "max_characters": self.instruction_symbols,
            "mappings": self.task_symbols,
            "hard_tasks": self.tasks,
            "hard_instructions": self.instructions,
            "validation_tasks": self.tasks,
            "subset_tasks": self.tasks + self.hard_tasks,
        }
        for name, limit in limits.items():
            if getattr(self, name) > limit:
                raise ValueError(f"{name} must be at most {limit}, got {getattr(self, name)}")
        needed = (self.tasks + self.hard_tasks) * self.mappings
        if needed > self.task_symbols**2 * 3 // 4:
            raise ValueError(
                f"{self.tasks + self.hard_tasks} tasks of {self.mappings} mappings need {needed} different mappings, "
                f"and {self.task_symbols} symbols have room for {self.task_symbols**2 * 3 // 4}: use fewer tasks or "
                "mappings, or more task_symbols"
            )


@dataclass(frozen=True)
class InstructionDistribution:
    """Instructions of one task that were drawn from one regular expression."""

    task: int
    pattern: str
    """The regular expression, in Python's notation; that of the source for hard examples."""
    instructions: tuple[str, ...]
    """Instructions for training."""
    unseen: tuple[str, ...] = ()
    """Instructions for validation."""
    source: int | None = None
    """For hard examples, the distribution whose instructions were changed by one symbol each."""


@dataclass(frozen=True)
class InstructionTask:
    """A synthetic instruction-following data set; `make_instruction_task` makes one.

    Example:
        >>> data = make_instruction_task(tasks=6, subset_tasks=3, validation_tasks=2, hard_tasks=1)
        >>> first = data.training()[0]
        >>> len(data.mappings), first.task, first.prompt[-1] == first.mapping[0]
        (7, 'task 0', True)
    """

    settings: InstructionTaskSettings
    seed: int
    mappings: tuple[tuple[tuple[str, str], ...], ...]
    """By task: its inputs, each with its output."""
    distributions: tuple[InstructionDistribution, ...]
    subset: tuple[int, ...]
    """The tasks of the training subset."""
    validation_tasks: tuple[int, ...]

    @cached_property
    def symbols(self) -> str:
        """All symbols, each one token: those of instructions, then those of inputs and outputs."""
        return INSTRUCTION_ALPHABET[: self.settings.instruction_symbols] + TASK_ALPHABET[: self.settings.task_symbols]

    @property
    def longest(self) -> int:
        """Most symbols in an instance."""
        settings = self.settings
        most = max(most for _, most in _REPEATS.values())
        return settings.max_metacharacters * settings.max_characters * most + 2

    def training(self) -> tuple[InstructionInstance, ...]:
        """Every training instruction with every mapping of its task."""
        return tuple(self._instances(range(len(self.mappings)), unseen=False))

    def training_subset(self) -> tuple[InstructionInstance, ...]:
        """The training instances of the subset's tasks: hard examples and their sources."""
        return tuple(self._instances(self.subset, unseen=False))

    def validation(self) -> tuple[InstructionInstance, ...]:
        """Instructions that are in no training instance, with every mapping of their task."""
        return tuple(self._instances(self.validation_tasks, unseen=True))

    def _instances(self, tasks: Sequence[int], *, unseen: bool) -> Iterator[InstructionInstance]:
        for number, drawn in enumerate(self.distributions):
            if drawn.task not in tasks:
                continue
            for instruction in drawn.unseen if unseen else drawn.instructions:
                for x, y in self.mappings[drawn.task]:
                    yield InstructionInstance(
                        instruction + x, y, f"task {drawn.task}", f"distribution {number}", f"{x}→{y}"
                    )

    def save(self, path: str | Path) -> Path:
        """Write the data set as JSON and return the path."""
        target = named_path(path, "path")
        content = stamped({"format": _FORMAT, "version": _VERSION, **asdict(self)})
        text = json.dumps(content, indent=1, ensure_ascii=False)
        with whole_file(target) as draft:
            draft.write_text(text + "\n", encoding="utf8")
        return target

    @classmethod
    def load(cls, path: str | Path) -> InstructionTask:
        """Read a file that `save` wrote.

        Raises FileNotFoundError, or ValueError naming the wrong field.
        """
        content = parse_json(read_text(path, "an instruction task"), str(path))
        if not isinstance(content, Mapping) or content.get("format") != _FORMAT:
            raise ValueError(f"{path} was not written by InstructionTask.save()")
        if content.get("version") != _VERSION:
            other = f"{path} has version {short(content.get('version'))}, this program reads {_VERSION}: make it again"
            raise ValueError(refusal(path, content, other))
        return _read(content, str(path))


@checked
def make_instruction_task(*, seed: int = 0, **sizes: int) -> InstructionTask:
    """Draw a synthetic instruction-following task: no mapping and no instruction belongs to two tasks.

    Instructions come from regular expressions of one to three metacharacters, each applied to three to ten characters
    (``a+b+c+``, ``a*b*c*``, ``a?b?c?``, ``(ab|c)``), several expressions per task. Hard examples are training
    instructions with one symbol replaced, which makes them instructions of a new task; every other such task has the
    inputs of the old one with other outputs. Unseen instructions are drawn from the same expressions and never trained
    on.

    Args:
        seed: of the draw.
        **sizes: fields of `InstructionTaskSettings`; the defaults are the paper's.

    Raises:
        TypeError, ValueError: a size that is unknown, not an int or not possible.

    Source: "Transformer-based Causal Language Models Perform Clustering", §2.2, appendix A, Table 3.

    Example:
        >>> data = make_instruction_task(seed=1)
        >>> len(data.mappings), len(data.validation()) == len(data.training_subset())
        (55, False)
        >>> seen = {instance.prompt for instance in data.training()}
        >>> any(instance.prompt in seen for instance in data.validation())
        False
    """
    known = [item.name for item in fields(InstructionTaskSettings)]
    unknown = [name for name in sizes if name not in known]
    if unknown:
        raise TypeError(f"{unknown[0]} is not a size of an instruction task: use {', '.join(known)}")
    settings, rng = InstructionTaskSettings(**sizes), random.Random(seed)
    symbols = TASK_ALPHABET[: settings.task_symbols]
    used: set[tuple[str, str]] = set()
    mappings = [_draw_mappings(rng, symbols, settings.mappings, used) for _ in range(settings.tasks)]
    validation = tuple(range(settings.validation_tasks))
    taken: set[str] = set()
    distributions = []
    for task in range(settings.tasks):
        for _ in range(rng.randint(settings.min_distributions, settings.max_distributions)):
            pattern, drawn = _draw_instructions(rng, settings, taken)
            unseen = drawn[settings.instructions :] if task in validation else ()
            distributions.append(InstructionDistribution(task, pattern, drawn[: settings.instructions], unseen))
    plain = tuple(distributions)
    for number in range(settings.hard_tasks):
        inputs = [x for x, _ in mappings[number]] if number % 2 == 0 else None
        mappings.append(_draw_mappings(rng, symbols, settings.mappings, used, inputs))
        for source, old in enumerate(plain):
            if old.task == number:
                chosen = rng.sample(old.instructions, settings.hard_instructions)
                swapped = tuple(_swap_symbol(rng, settings, text, taken) for text in chosen)
                distributions.append(
                    InstructionDistribution(settings.tasks + number, old.pattern, swapped, source=source)
                )
    order = [task for number in range(settings.hard_tasks) for task in (number, settings.tasks + number)]
    order += range(settings.hard_tasks, settings.tasks)
    return InstructionTask(
        settings, seed, tuple(mappings), tuple(distributions), tuple(order[: settings.subset_tasks]), validation
    )


def _draw_mappings(
    rng: random.Random,
    symbols: str,
    count: int,
    used: set[tuple[str, str]],
    inputs: Sequence[str] | None = None,
) -> tuple[tuple[str, str], ...]:
    """Mappings that no other task has; they are added to `used`."""
    full = {x for x in symbols if all((x, y) in used for y in symbols)}
    chosen = rng.sample([x for x in symbols if x not in full], count) if inputs is None else list(inputs)
    drawn = []
    for x in chosen:
        free = [y for y in symbols if (x, y) not in used]
        if not free:
            raise ValueError(f"all mappings of the input {x} are used: use fewer tasks or more task_symbols")
        drawn.append((x, rng.choice(free)))
    used.update(drawn)
    return tuple(drawn)


Piece = tuple[str, tuple[str, ...]]
"""A metacharacter and the characters it applies to."""


def _draw_pieces(rng: random.Random, settings: InstructionTaskSettings) -> list[Piece]:
    alphabet = INSTRUCTION_ALPHABET[: settings.instruction_symbols]
    count = rng.randint(settings.min_metacharacters, settings.max_metacharacters)
    pieces: list[Piece] = []
    for _ in range(count):
        characters = rng.sample(alphabet, rng.randint(settings.min_characters, settings.max_characters))
        kind = rng.choice("+*?|")
        if kind == "|":
            cuts = sorted(rng.sample(range(1, len(characters)), min(rng.randint(1, 3), len(characters) - 1)))
            bounds = [0, *cuts, len(characters)]
            words = ["".join(characters[a:b]) for a, b in itertools.pairwise(bounds)]
            pieces.append((kind, tuple(words)))
        else:
            pieces.append((kind, tuple(characters)))
    return pieces


def _pattern(pieces: Sequence[Piece]) -> str:
    return "".join(
        f"({'|'.join(parts)})" if kind == "|" else "".join(f"{part}{kind}" for part in parts) for kind, parts in pieces
    )


def _draw_string(rng: random.Random, pieces: Sequence[Piece]) -> str:
    text = ""
    for kind, parts in pieces:
        if kind == "|":
            text += rng.choice(parts)
        else:
            least, most = _REPEATS[kind]
            text += "".join(part * rng.randint(least, most) for part in parts)
    return text


def _draw_instructions(
    rng: random.Random, settings: InstructionTaskSettings, used: set[str]
) -> tuple[str, tuple[str, ...]]:
    """A regular expression with enough strings that no other distribution has, and these strings."""
    count = settings.instructions + settings.validation_instructions
    for _ in range(_TRIES):
        pieces = _draw_pieces(rng, settings)
        drawn: dict[str, None] = {}
        for _ in range(_TRIES):
            text = _draw_string(rng, pieces)
            if len(text) >= _SHORTEST and text not in used:
                drawn[text] = None
            if len(drawn) == count:
                used.update(drawn)
                return _pattern(pieces), tuple(drawn)
    raise ValueError(
        f"no regular expression of these sizes has {count} strings: use more characters or metacharacters, "
        "or fewer instructions"
    )


def _swap_symbol(rng: random.Random, settings: InstructionTaskSettings, text: str, used: set[str]) -> str:
    """A new instruction in which one symbol is replaced; it is added to `used`."""
    alphabet = INSTRUCTION_ALPHABET[: settings.instruction_symbols]
    choices = [
        text[:position] + new + text[position + 1 :]
        for position, old in enumerate(text)
        for new in alphabet
        if new != old
    ]
    free = [choice for choice in choices if choice not in used]
    if not free:
        raise ValueError(f"every change of one symbol of {text!r} is an instruction already: use fewer instructions")
    swapped = rng.choice(free)
    used.add(swapped)
    return swapped


# reading ------------------------------------------------------------------------------------------------------------


def _read(content: Mapping[str, Any], name: str) -> InstructionTask:
    settings = _read_settings(content.get("settings"), name)
    alphabet = set(INSTRUCTION_ALPHABET[: settings.instruction_symbols])
    letters = set(TASK_ALPHABET[: settings.task_symbols])
    count = settings.tasks + settings.hard_tasks
    mappings = _list(content.get("mappings"), f"mappings of {name}", count)
    owner: dict[tuple[str, str], int] = {}
    read_mappings = []
    for task, rows in enumerate(mappings):
        label = f"mappings[{task}] of {name}"
        pairs = []
        for row in _list(rows, label, settings.mappings):
            if not isinstance(row, list) or len(row) != 2 or not all(isinstance(s, str) and s in letters for s in row):
                raise ValueError(f"{label} must hold pairs of task symbols, got {short(row)}")
            pair = (row[0], row[1])
            if pair in owner:
                raise ValueError(f"{label} has the mapping {row[0]}→{row[1]}, which task {owner[pair]} has already")
            owner[pair] = task
            pairs.append(pair)
        if len({x for x, _ in pairs}) < len(pairs):
            raise ValueError(f"{label} must have different inputs, got {', '.join(x for x, _ in pairs)}")
        read_mappings.append(tuple(pairs))
    used: dict[str, int] = {}
    distributions: list[InstructionDistribution] = []
    for number, row in enumerate(_list(content.get("distributions"), f"distributions of {name}")):
        label = f"distributions[{number}] of {name}"
        if not isinstance(row, Mapping) or not isinstance(row.get("pattern"), str):
            raise ValueError(f"{label} must have a task, a pattern and instructions, got {short(row)}")
        task = _index(row.get("task"), count, f"{label}: task")
        try:
            pattern = re.compile(row["pattern"])
        except re.error as error:
            raise ValueError(
                f"{label}: pattern is not a regular expression ({error}): {short(row['pattern'])}"
            ) from error
        source = row.get("source")
        texts = {key: _list(row.get(key), f"{label}: {key}") for key in ("instructions", "unseen")}
        for key, values in texts.items():
            for text in values:
                if not isinstance(text, str) or not text or not set(text) <= alphabet:
                    raise ValueError(f"{label}: {key} must be texts of instruction symbols, got {short(text)}")
                if text in used:
                    raise ValueError(f"{label}: {key} has {text!r}, which distribution {used[text]} has already")
                if source is None and not pattern.fullmatch(text):
                    raise ValueError(f"{label}: {key} has {text!r}, which its pattern {row['pattern']} does not match")
                used[text] = number
        if source is not None:
            _check_hard(texts["instructions"], distributions, _index(source, number, f"{label}: source"), label)
        distributions.append(
            InstructionDistribution(
                task, row["pattern"], tuple(texts["instructions"]), tuple(texts["unseen"]), source=source
            )
        )
    subset = [_index(task, count, f"subset of {name}") for task in _list(content.get("subset"), f"subset of {name}")]
    rows = _list(content.get("validation_tasks"), f"validation_tasks of {name}")
    validation = [_index(task, count, f"validation_tasks of {name}") for task in rows]
    seed = content.get("seed")
    if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
        raise ValueError(f"seed of {name} must be an int >= 0, got {short(seed)}")
    return InstructionTask(settings, seed, tuple(read_mappings), tuple(distributions), tuple(subset), tuple(validation))


def _check_hard(
    texts: Sequence[str], distributions: Sequence[InstructionDistribution], source: int, label: str
) -> None:
    for text in texts:
        if not any(
            len(old) == len(text) and sum(a != b for a, b in zip(old, text, strict=True)) == 1
            for old in distributions[source].instructions
        ):
            raise ValueError(f"{label}: {text!r} is not one symbol apart from an instruction of its source, {source}")


def _read_settings(content: Any, name: str) -> InstructionTaskSettings:
    known = [item.name for item in fields(InstructionTaskSettings)]
    if not isinstance(content, Mapping) or set(content) != set(known):
        raise ValueError(f"settings of {name} must have {', '.join(known)}")
    try:
        return InstructionTaskSettings(**content)
    except (TypeError, ValueError) as error:
        raise ValueError(f"settings of {name}: {error}") from error


def _list(value: Any, label: str, count: int | None = None) -> list[Any]:
    if not isinstance(value, list) or (count is not None and len(value) != count):
        size = "" if count is None else f" of {count} entries"
        raise ValueError(f"{label} must be a list{size}, got {short(value)}")
    return value


def _index(value: Any, count: int, label: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < count:
        raise ValueError(f"{label} must be a number from 0 to {count - 1}, got {short(value)}")
    return value
