"""Natural instructions: descriptions of word tasks in several phrasings, each with inputs and outputs of the task.

Tasks of one category (translation, linguistic, knowledge) share their task label; the phrasings of one task are one
distribution of instructions.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path

from interp_widgets.arguments import checked
from interp_widgets.atomic import named_path
from interp_widgets.data.files import existing_file, read_rows, short
from interp_widgets.data.instruction_task import InstructionInstance
from interp_widgets.data.instructions import format_prompt, phrase, phrasings, task_table

DEMO_CATEGORIES: Mapping[str, tuple[str, ...]] = {
    "translation": ("french", "spanish"),
    "linguistic": ("plural", "past", "gerund", "antonym"),
    "knowledge": ("capital", "continent", "language", "currency"),
}
"""The demo's word tasks by category."""

TEMPLATE = "{instruction} {input}"
"""Prompt template of tasks from files; the input comes last, so that its last token is read."""

FILE_TASKS: Mapping[str, tuple[str, str]] = {
    "english-french": ("translation", "Given a word in English, translate to French."),
    "english-spanish": ("translation", "Given a word in English, translate to Spanish."),
    "english-german": ("translation", "Given a word in English, translate to German."),
    "french-english": ("translation", "Given a word in French, translate to English."),
    "spanish-english": ("translation", "Given a word in Spanish, translate to English."),
    "antonym": ("linguistic", "Given an English word, output an antonym."),
    "synonym": ("linguistic", "Given an English word, output a synonym."),
    "singular-plural": ("linguistic", "Given an English noun in singular form, output the plural form."),
    "present-past": ("linguistic", "Given an English verb in present tense, output the past tense."),
    "capitalize": ("linguistic", "Given an English word, output it with a capital letter."),
    "country-capital": ("knowledge", "Given a name of a country, output the name of the capital city."),
    "landmark-country": ("knowledge", "Given a name of a landmark, output the country it is in."),
    "person-occupation": ("knowledge", "Given a name of a person, output the occupation."),
    "product-company": ("knowledge", "Given a name of a product, output the company that makes it."),
}
"""Category and task description by file name."""

PARAPHRASES = (
    "{task}",
    "Your task: {task}",
    "Please do this. {task}",
    "Here is what to do. {task}",
    "Follow the instruction. {task}",
    "{task} Answer in a word.",
    "{task} The word is:",
    "Instruction: {task} Input:",
)
"""Phrasings of a task from a file."""


@checked
def demo_instructions(
    *, phrasings_per_task: int = 8, inputs: int = 5, seed: int = 0
) -> tuple[InstructionInstance, ...]:
    """The demo's word tasks as natural instructions: ten tasks of three categories, in several phrasings.

    The prompts are those that the tuned demo model was trained to answer, with phrasings and inputs drawn at random.

    Args:
        phrasings_per_task: instructions per task, at most 70.
        inputs: number of inputs per task; every phrasing is combined with each of them.
        seed: of the draw.

    Raises:
        ValueError: fewer than one phrasing or input, or more than a task has.

    Source: "Transformer-based Causal Language Models Perform Clustering", §3.4, appendix D.

    Example:
        >>> instances = demo_instructions(phrasings_per_task=2, inputs=2)
        >>> len(instances), instances[0].task, instances[0].distribution
        (40, 'translation', 'french')
        >>> instances[0].prompt.endswith("Response:")
        True
    """
    rng = random.Random(seed)
    instances = []
    for category, names in DEMO_CATEGORIES.items():
        for name in names:
            known_phrasings = [*phrasings(name, "train"), *phrasings(name, "held_out")]
            rows = task_table(name)
            _check_count("phrasings_per_task", phrasings_per_task, len(known_phrasings), name)
            _check_count("inputs", inputs, len(rows), name)
            chosen = [rows[row] for row in sorted(rng.sample(range(len(rows)), inputs))]
            for phrasing in rng.sample(known_phrasings, phrasings_per_task):
                words, _ = phrase(name, phrasing)
                instances += [
                    InstructionInstance(format_prompt(words, x), " " + y, category, name, f"{x}→{y}") for x, y in chosen
                ]
    return tuple(instances)


@checked
def read_instructions(
    folder: str | Path,
    tasks: Mapping[str, tuple[str, str]] | None = None,
    *,
    paraphrases: Sequence[str] = PARAPHRASES,
    template: str = TEMPLATE,
    inputs: int = 10,
    single_word: bool = True,
    seed: int = 0,
) -> tuple[InstructionInstance, ...]:
    """Read word tasks of a folder of JSON files, ``{"input": ..., "output": ...}`` each, as natural instructions.

    Args:
        folder: a folder with a file ``NAME.json`` per task.
        tasks: file name to category and task description; by default the known names that exist.
        paraphrases: phrasings with ``{task}`` for the description; those of one task are one distribution.
        template: prompt template with ``{instruction}`` and ``{input}``.
        inputs: number of inputs drawn from each file.
        single_word: use only inputs and outputs of one word, as in the paper.
        seed: of the draw.

    Raises:
        FileNotFoundError: a folder or file that is not there.
        ValueError: a row without texts under ``input`` and ``output``, a template or paraphrase without its
            placeholders, fewer inputs than requested.

    Source: "Transformer-based Causal Language Models Perform Clustering", §3.4, appendix D.

    Example:
        >>> import json, tempfile
        >>> from pathlib import Path
        >>> folder = Path(tempfile.mkdtemp())
        >>> rows = [{"input": "cat", "output": "cats"}, {"input": "mouse", "output": "mice"}]
        >>> _ = (folder / "plural.json").write_text(json.dumps(rows))
        >>> words = {"plural": ("linguistic", "Write the plural.")}
        >>> instances = read_instructions(folder, words, paraphrases=["{task}"], inputs=2)
        >>> [instance.prompt for instance in instances]
        ['Write the plural. cat', 'Write the plural. mouse']
    """
    source = named_path(folder, "folder")
    if not source.is_dir():
        raise FileNotFoundError(f"there is no folder of tasks at {source}: check the path")
    if "{instruction}" not in template or "{input}" not in template:
        raise ValueError(f"template must have {{instruction}} and {{input}} in it, got {template!r}")
    if not paraphrases or any("{task}" not in paraphrase for paraphrase in paraphrases):
        raise ValueError(f"paraphrases must be texts with {{task}} in them, got {list(paraphrases)!r}")
    if tasks is None:
        tasks = {name: FILE_TASKS[name] for name in FILE_TASKS if (source / f"{name}.json").is_file()}
        if not tasks:
            raise ValueError(f"{source} has no file of a known name ({', '.join(FILE_TASKS)}): say which with tasks=")
    rng, instances = random.Random(seed), []
    for name, (category, words) in tasks.items():
        file = existing_file(source / f"{name}.json", f"the task {name}")
        rows = _pairs(file, single_word)
        _check_count("inputs", inputs, len(rows), f"{name} of {file}")
        chosen = [rows[row] for row in sorted(rng.sample(range(len(rows)), inputs))]
        for paraphrase in paraphrases:
            instruction = paraphrase.replace("{task}", words)
            for x, y in chosen:
                prompt = template.replace("{instruction}", instruction).replace("{input}", x)
                instances.append(InstructionInstance(prompt, " " + y, category, name, f"{x}→{y}"))
    return tuple(instances)


def _pairs(path: Path, single_word: bool) -> list[tuple[str, str]]:
    """Inputs and outputs of a file, each input once."""
    pairs: dict[str, str] = {}
    for number, row in enumerate(read_rows(path, "mapping", suffixes=[".json"])):
        x, y = row.get("input"), row.get("output")
        if not isinstance(x, str) or not isinstance(y, str) or not x.strip() or not y.strip():
            raise ValueError(
                f"mapping {number} of {path} must have texts under 'input' and 'output', got {short(dict(row))}"
            )
        if not single_word or (len(x.split()) == 1 and len(y.split()) == 1):
            pairs.setdefault(x.strip(), y.strip())
    return list(pairs.items())


def _check_count(name: str, count: int, most: int, task: str) -> None:
    if not 1 <= count <= most:
        raise ValueError(f"{name} must be from 1 to {most} for the task {task}, got {count}")
