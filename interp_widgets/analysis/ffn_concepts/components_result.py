"""The concepts of a model's MLPs: principal directions of their output weights and the words along them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from interp_widgets.analysis._core.result import Result, record

if TYPE_CHECKING:
    import pandas as pd

Sign = Literal["both", "+", "-"]
"""Which words of a direction: those of largest absolute projection, or one side's."""


@record
class FFNConceptResult(Result):
    """The principal directions of each layer's output weights, and the words with the largest projections.

    A component is one direction, 0 the one that explains most variance. Its sign is free in principle; here the word
    with the largest projection of all is on its positive side.
    Source: From Language Modeling to Instruction Following (Wu et al. 2024), section 5.2.

    Example:
        >>> found = ffn_concepts(model, rank=20, top=4)
        >>> found.words(5, 6), found.explained_variance.shape
        (('sad', 'lonely', 'tired', 'lost'), (6, 20))
        >>> found.components_with("sad")[0][:2]  # layer and component
        (5, 6)
    """

    vocabulary: Sequence[str]
    """(words,) the words; lists hold places in it."""

    layers: Sequence[int]
    """(layers,) layers of the model, rising."""

    explained_variance: NDArray[np.floating[Any]]
    """(layers, rank) share of the layer's variance that a component explains, 0..1, falling."""

    plus: NDArray[np.integer[Any]]
    """(layers, rank, top) words on the positive side, largest projection first; -1 where there are fewer."""

    plus_scores: NDArray[np.floating[Any]]
    """(layers, rank, top) their projections, above 0; NaN where there are fewer."""

    minus: NDArray[np.integer[Any]]
    """(layers, rank, top) words on the negative side, most negative projection first; -1 where there are fewer."""

    minus_scores: NDArray[np.floating[Any]]
    """(layers, rank, top) their projections, below 0; NaN where there are fewer."""

    directions: NDArray[np.floating[Any]] | None = None
    """(layers, rank, d_model) the components, each of length 1; None where they were not kept."""

    unknown: Sequence[str] = ()
    """Words that the model's tokenizer cannot write: left out of everything."""

    def __post_init__(self) -> None:
        layers, rank, top = np.asarray(self.plus).shape
        self.sequence("vocabulary")
        self.sequence("unknown")
        self.sequence("layers", layers)
        self.array("explained_variance", (layers, rank))
        for name, kind in (("plus", "int"), ("minus", "int"), ("plus_scores", "float"), ("minus_scores", "float")):
            self.array(name, (layers, rank, top), kind)
        if self.directions is not None:
            self.array("directions", (layers, rank, None))

    # ---- sizes and checks

    @property
    def rank(self) -> int:
        """Components per layer."""
        return int(self.plus.shape[1])

    @property
    def top(self) -> int:
        """Most words per list."""
        return int(self.plus.shape[2])

    def row(self, layer: int) -> int:
        """Place of a layer of the model in this result; ValueError where it was not computed."""
        if layer not in self.layers:
            raise ValueError(f"layer must be one of {', '.join(map(str, self.layers))}, as computed, got {layer}")
        return list(self.layers).index(layer)

    def _cell(self, layer: int, component: int) -> tuple[int, int]:
        if not 0 <= component < self.rank:
            raise ValueError(f"component must be in 0..{self.rank - 1}, got {component}")
        return self.row(layer), component

    # ---- what the components hold

    @property
    def cumulative(self) -> NDArray[np.floating[Any]]:
        """(layers, rank) share of the variance that a component and all before it explain."""
        found: NDArray[np.floating[Any]] = np.cumsum(self.explained_variance, axis=1)
        return found

    def scores(self, layer: int, component: int, *, sign: Sign = "both") -> list[tuple[str, float]]:
        """The words of one component with their projections (cosines: both have length 1), largest first.

        With ``sign="both"`` by absolute value; else one side only. Raises ValueError for a layer, component or sign
        that is not there.
        """
        if sign not in get_args(Sign):
            raise ValueError(f"sign must be 'both', '+' or '-', got {sign!r}")
        cell = self._cell(layer, component)
        sides = {"+": (self.plus, self.plus_scores), "-": (self.minus, self.minus_scores)}
        chosen = [sides[one] for one in ("+", "-") if sign in ("both", one)]
        places = np.concatenate([words[cell] for words, _ in chosen])
        values = np.concatenate([projections[cell] for _, projections in chosen])
        places, values = places[places >= 0], values[places >= 0]
        # ties: words in the order of the list
        order = np.lexsort((places, -np.abs(values)))[: self.top]
        return [(self.vocabulary[places[i]], float(values[i])) for i in order]

    def words(self, layer: int, component: int, *, sign: Sign = "both") -> tuple[str, ...]:
        """The words of one component, largest projection first; as `scores` without the numbers."""
        return tuple(word for word, _ in self.scores(layer, component, sign=sign))

    def components_with(self, word: str) -> list[tuple[int, int, float]]:
        """Layer, component and projection wherever a word is in the lists of `words` of either sign, largest first.

        Raises ValueError for a word that is not in the vocabulary.
        """
        if word not in self.vocabulary:
            raise ValueError(f"the word {word!r} is not in the list of {len(self.vocabulary)} words of this result")
        place = list(self.vocabulary).index(word)
        found = [
            (self.layers[row], int(component), float(scores[row, component, rank]))
            for side, scores in ((self.plus, self.plus_scores), (self.minus, self.minus_scores))
            for row, component, rank in np.argwhere(side == place)
        ]
        return sorted(found, key=lambda cell: (-abs(cell[2]), cell[0], cell[1]))

    def to_frame(self) -> pd.DataFrame:
        """One row per component: layer, component, its variance, the cumulative one, and its words of each sign."""
        import pandas as pd

        cells = [(layer, component) for layer in self.layers for component in range(self.rank)]
        table: dict[str, Any] = {
            "layer": [layer for layer, _ in cells],
            "component": [component for _, component in cells],
            "explained_variance": self.explained_variance.ravel(),
            "cumulative": self.cumulative.ravel(),
        }
        for name, sign in (("words", "both"), ("plus", "+"), ("minus", "-")):
            table[name] = [", ".join(self.words(*cell, sign=sign)) for cell in cells]  # type: ignore[arg-type]
        return pd.DataFrame(table)
