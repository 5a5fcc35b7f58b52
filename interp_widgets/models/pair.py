"""`ModelPair`: two models with the same vocabulary, and how to load them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from ..arguments import checked
from .hub_files import first_difference
from .loading import load_model
from .model import Model


@checked
@dataclass(frozen=True)
class ModelPair:
    """Two models with the same vocabulary, such as a language model before and after instruction tuning.

    Example:
        >>> pair.base.name, pair.tuned.name
        ('demo-base', 'demo-tuned')
        >>> prompt = "Instruction: Name the capital of France.\\nResponse:"
        >>> pair.base.generate(prompt, max_new_tokens=3), pair.tuned.generate(prompt, max_new_tokens=3)
        (' Helsinki\\nVietnam', ' Paris')
    """

    base: Model
    """The model before."""
    tuned: Model
    """The model after."""

    def __post_init__(self) -> None:
        start = "the two models must share one vocabulary"
        tokenizers = self.base.tokenizer, self.tuned.tokenizer
        different = None if None in tokenizers else first_difference(*tokenizers)
        if different is not None:
            index, *tokens = different
            base, tuned = ("nothing" if token is None else repr(token) for token in tokens)
            first, second = distinct_names(self)
            raise ValueError(f"{start}: id {index} is {base} in {first} and {tuned} in {second}")
        if self.base.d_vocab != self.tuned.d_vocab:
            first, second = distinct_names(self)
            raise ValueError(f"{start}: {first} has {self.base.d_vocab} entries, {second} has {self.tuned.d_vocab}")

    def __iter__(self) -> Iterator[Model]:
        return iter((self.base, self.tuned))


def distinct_names(models: Iterable[Any]) -> list[str]:
    """The names of models, those of one name completed by what differs: parent folders, else dtype, edits and so on.

    >>> distinct_names(load_demo_pair())
    ['demo-base', 'demo-tuned']
    """
    models = list(models)
    names = [str(getattr(model, "name", "") or type(model).__name__) for model in models]
    for name in {name for name in names if names.count(name) > 1}:
        group = [i for i, other in enumerate(names) if other == name]
        for i, label in zip(group, _completed(name, [models[i] for i in group]), strict=True):
            names[i] = label
    return names


def _completed(name: str, models: Sequence[Any]) -> list[str]:
    """The name that these models share, for each of them completed by what differs among them."""
    paths = [PurePath(str(getattr(model, "source", None) or "")).parts for model in models]
    for count in range(1, max(map(len, paths)) + 1 if all(paths) else 1):
        ends = [path[-count:] for path in paths]
        if len(set(ends)) == len(ends):
            if all(end[-1] == name for end in ends):
                return ["/".join(end) for end in ends]
            return [f"{name} ({'/'.join(end)[:12]})" for end in ends]  # of the hub's cache: revisions
    facts = [_facts(model) for model in models]
    different = [
        [fact for fact, others in zip(own, zip(*facts, strict=True), strict=True) if len(set(others)) > 1]
        for own in facts
    ]
    return [f"{name} ({', '.join(own)})" if own else name for own in different]


def _facts(model: Any) -> tuple[str, ...]:
    edits = ", ".join(getattr(model, "edits", ()))
    return (
        "from memory" if getattr(model, "source", None) is None else "from a folder",
        str(getattr(model, "dtype", "")).removeprefix("torch."),
        str(getattr(model, "backend", "")),
        str(getattr(model, "device", "")),
        "processed" if getattr(model, "processed", False) else "not processed",
        f"edited: {edits}" if edits else "not edited",
    )


def load_pair(base: str | Path | Any, tuned: str | Path | Any, **options: Any) -> ModelPair:
    """Load two models with the same vocabulary and the same options; see `load_model`.

    Args:
        base: the model before, as for `load_model`.
        tuned: the model after.
        options: of `load_model`, for both.

    Raises:
        ValueError: as `load_model`, or for two different vocabularies.

    Example:
        >>> pair = load_pair("demo-base", "demo-tuned")
        >>> pair.base.d_vocab == pair.tuned.d_vocab, pair.base.weight_hash == pair.tuned.weight_hash
        (True, False)
    """
    return ModelPair(load_model(base, **options), load_model(tuned, **options))


def load_demo_pair(**options: Any) -> ModelPair:
    """The two shipped models: ``demo-base`` and, instruction-tuned from it, ``demo-tuned``; options as `load_model`.

    Example:
        >>> pair = load_demo_pair()
        >>> [(each.name, each.n_layers, each.d_model) for each in pair]
        [('demo-base', 6, 192), ('demo-tuned', 6, 192)]
        >>> pair.tuned.generate("Instruction: Name the capital of France.\\nResponse:", max_new_tokens=3)
        ' Paris'
    """
    return load_pair("demo-base", "demo-tuned", **options)
