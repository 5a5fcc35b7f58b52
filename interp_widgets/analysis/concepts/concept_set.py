"""`ConceptSet`: directions of concepts at one layer of a model, their quality, and their nearest neighbours."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from interp_widgets.analysis._core.arrays import Floats
from interp_widgets.analysis._core.checks import check_range
from interp_widgets.analysis._core.result import Result, record, with_axes
from interp_widgets.analysis._core.tables import DataFrame, table
from interp_widgets.analysis._core.top_k import top_k_indices
from interp_widgets.arguments import checked
from interp_widgets.models import Model
from interp_widgets.models.state import facts
from interp_widgets.renamed import renamed


@renamed(centre="center")
@record
class ConceptSet(Result):
    """One direction per concept in the residual stream that enters a layer.

    Example:
        >>> few = [c for c in demo_concepts() if c.name in ("Paris", "London", "red", "blue")]
        >>> concepts = concept_directions(model, few, layer=3)
        >>> concepts.names, concepts.direction("red").shape
        (('Paris', 'London', 'red', 'blue'), (192,))
        >>> concepts.to_frame()[["concept", "auc", "shuffled_auc"]].round(1)
          concept  auc  shuffled_auc
        0   Paris  1.0           0.5
        1  London  1.0           0.5
        2     red  0.9           0.5
        3    blue  0.7           0.5
    """

    names: Sequence[str] = with_axes("concepts")
    """Unique names."""

    directions: Floats = with_axes("concepts", "d_model", nan=False)
    """Unit vectors; states with the concept have the larger projection."""

    layer: int
    """The residual stream entering block ``layer``; n_layers is the one before the final norm."""

    groups: Sequence[str] = with_axes("concepts")
    """Group of each concept; empty where it has none."""

    center: Floats = with_axes("d_model", nan=False, saved_as="centre")
    """Mean of the states that the directions were computed from."""

    gap: Floats = with_axes("concepts")
    """Mean projection of the concept's states minus that of all others: a natural unit of steering strength."""

    auc: Floats = with_axes("concepts")
    """Area under the ROC curve on held-out stimuli: the probability that a stimulus of the concept has a larger
    projection than one of another concept. NaN without held-out stimuli."""

    group_auc: Floats = with_axes("concepts")
    """Area under the ROC curve against stimuli of the concept's own group only; NaN without a group."""

    shuffled_auc: Floats = with_axes("concepts")
    """Control: mean `auc` of directions computed and tested with shuffled labels; NaN where it was not measured, as for
    most concepts of a large set."""

    method: str
    """How the directions were computed: "mean_difference", "pca" or "discriminant"."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(set(self.names)) < len(self.names):
            raise ValueError("two concepts of a ConceptSet have the same name: give each a different name")

    @property
    def d_model(self) -> int:
        """Width of the directions."""
        return int(self.directions.shape[1])

    def index(self, name: str) -> int:
        """The index of a concept in the set; ValueError for a name that is not in it."""
        if name not in self.names:
            import difflib

            similar = difflib.get_close_matches(name, self.names, n=3, cutoff=0.4)
            hint = (
                f"did you mean {' or '.join(map(repr, similar))}?" if similar else f"it holds {len(self.names)} others"
            )
            raise ValueError(f"there is no concept {name!r} in this set: {hint}")
        return list(self.names).index(name)

    def direction(self, name: str) -> Floats:
        """(d_model,) the unit direction of one concept."""
        return np.asarray(self.directions[self.index(name)])

    def cosine(self) -> Floats:
        """(concepts, concepts) cosine similarity of all pairs."""
        return np.asarray(self.directions @ self.directions.T)

    def made_from(self, model: Model) -> bool:
        """Whether the set was computed from this model with its current weights, modules, hooks and tokenizer.

        True where the provenance does not tell. An intervention in the calling thread, such as `ablation`, does not
        count.
        """
        return "weight_hash" not in self.provenance or self._difference(model) is None

    def check(self, model: Model, *, other_weights: bool = False) -> None:
        """Raise ValueError unless the set was made from this model; with ``other_weights`` only sizes must match."""
        if self.d_model != model.d_model or self.layer > model.n_layers:
            raise ValueError(
                f"these directions have width {self.d_model} at layer {self.layer}, {model.name} has width "
                f"{model.d_model} and {model.n_layers} layers: take a set that was made from this model"
            )
        if not other_weights and not self.made_from(model):
            raise ValueError(
                f"these directions were made from {self.provenance.get('model', 'another model')} "
                f"{self._difference(model)}: make them again from this model, or in code pass other_weights=True"
            )

    def _difference(self, model: Model) -> str | None:
        """How the set's model differs from a model of the same sizes; None if it does not."""
        now = facts(model)
        if self.provenance.get("weight_hash") != now["weight_hash"]:
            return f"with other weights than {model.name} has (another dtype or backend counts too)"
        if any(name in self.provenance and self.provenance[name] != now[name] for name in ("tokenizer", "adds_bos")):
            return f"with another tokenizer than {model.name} has (a chat template and the BOS count too)"
        if self.provenance.get("edit_key") == now.get("edit_key"):
            return None
        before = self.provenance.get("edited") if "edit_key" in self.provenance else "it was as it had been loaded"
        edited = now["edited"] if "edit_key" in now else "it is as it was loaded"
        return f"while {before}; now {edited}"

    def to_frame(self) -> DataFrame:
        """One row per concept: name, group, quality and gap."""
        columns = ("auc", "group_auc", "shuffled_auc", "gap")
        return table({"concept": self.names}, {"group": self.groups, **{name: getattr(self, name) for name in columns}})


@checked
def neighbors(concepts: ConceptSet, name: str, k: int = 10) -> list[tuple[str, float]]:
    """The ``k`` concepts whose directions have the largest cosine with that of one concept, nearest first.

    Args:
        concepts: from `concept_directions`.
        name: of a concept in the set.
        k: number of neighbours, at most all others.

    Raises:
        ValueError: a concept that is not in the set, ``k`` out of range.

    Example:
        >>> few = [c for c in demo_concepts() if c.name in ("Paris", "London", "red", "blue")]
        >>> concepts = concept_directions(model, few, layer=3)
        >>> [(name, round(cosine, 1)) for name, cosine in neighbors(concepts, "red", 2)]
        [('blue', 0.7), ('Paris', -0.5)]
    """
    check_range("k", k, most=len(concepts.names) - 1, owner="this set")
    number = concepts.index(name)
    cosine = concepts.directions @ concepts.directions[number]
    order = [i for i in top_k_indices(cosine) if i != number][:k]
    return [(concepts.names[i], float(cosine[i])) for i in order]


def neighbor_agreement(concepts: ConceptSet, k: int = 5) -> tuple[float, float]:
    """Share of the ``k`` nearest concepts that are in the same group, and the share expected by chance.

    Concepts without a group do not count but can be neighbours.
    """
    groups = np.array(concepts.groups)
    grouped = groups != ""
    if not grouped.any():
        raise ValueError("no concept of this set has a group: give the concepts groups")
    check_range("k", k, most=len(groups) - 1, owner="this set")
    cosine = concepts.cosine().copy()
    np.fill_diagonal(cosine, -np.inf)
    same = groups[:, None] == groups[None]
    share = np.take_along_axis(same, top_k_indices(cosine, k), axis=1)[grouped].mean()
    return float(share), float(((same.sum(axis=1) - 1) / (len(groups) - 1))[grouped].mean())
