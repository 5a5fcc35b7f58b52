"""`ModelPair`: two models with the same vocabulary, and how to load them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
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
            raise ValueError(f"{start}: id {index} is {base} in {self.base.name} and {tuned} in {self.tuned.name}")
        if self.base.d_vocab != self.tuned.d_vocab:
            raise ValueError(
                f"{start}: {self.base.name} has {self.base.d_vocab} entries, {self.tuned.name} has {self.tuned.d_vocab}"
            )

    def __iter__(self) -> Iterator[Model]:
        return iter((self.base, self.tuned))


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
