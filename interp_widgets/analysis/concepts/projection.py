"""Concepts in a prompt: projections of every token, and sparse decomposition of a state into concept directions."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import ArrayLike

from interp_widgets.analysis._core.arrays import Floats, float64
from interp_widgets.analysis._core.checks import check_choice, check_finite, check_range, index
from interp_widgets.analysis._core.prompts import read_prompt
from interp_widgets.analysis._core.result import Result, provenance, record, with_axes
from interp_widgets.analysis._core.run import RunOptions
from interp_widgets.analysis._core.tensors import to_numpy
from interp_widgets.analysis._core.top_k import top_k_indices
from interp_widgets.analysis.concepts.concept_set import ConceptSet
from interp_widgets.analysis.hidden_states import last_states
from interp_widgets.arguments import checked
from interp_widgets.models import Model
from interp_widgets.models.chat import PromptInput
from interp_widgets.models.engine import residual_streams

if TYPE_CHECKING:
    import pandas as pd

Solver = Literal["omp", "elastic_net"]


@record
class ConceptReading(Result):
    """Projection of each token's hidden state on each concept's direction.

    Example:
        >>> few = [c for c in demo_concepts() if c.name in ("Paris", "London", "red", "blue")]
        >>> reading = read_prompt_concepts(model, concept_directions(model, few, layer=3), "Anna lives in Paris.")
        >>> reading.projection.shape, reading.strongest(-1, 1)[0][0]
        ((7, 4), 'Paris')
    """

    tokens: Sequence[str] = with_axes("positions")
    """Readable tokens, without a BOS."""

    names: Sequence[str] = with_axes("concepts")
    """Names."""

    projection: Floats = with_axes("positions", "concepts")
    """Projection of the residual stream, minus the set's center, on each unit direction."""

    layer: int
    """Which residual stream, as in :class:`ConceptSet`."""

    sink: bool = False
    """Whether the first token carries the model's attention sink: its state is far from all others, whatever it means.
    """

    def strongest(self, position: int, k: int = 5) -> list[tuple[str, float]]:
        """The ``k`` concepts with the largest projection at a token, and their projections; largest first.

        The position counts from 0, or from the end where it is negative; ValueError outside of the prompt.
        """
        row = self.projection[index(position, len(self.tokens), "position", f"prompt of {len(self.tokens)} tokens")]
        return [(self.names[i], float(row[i])) for i in top_k_indices(row, k)]

    def to_frame(self) -> pd.DataFrame:
        """One row per token, one column per concept."""
        import pandas as pd

        return pd.DataFrame(self.projection, columns=list(self.names), index=pd.Index(self.tokens, name="token"))


@checked
def read_prompt_concepts(
    model: Model,
    concepts: ConceptSet,
    prompt: PromptInput,
    *,
    names: Sequence[str] | None = None,
    other_weights: bool = False,
    prepend_bos: bool | None = None,
    check: Callable[[], None] | None = None,
) -> ConceptReading:
    """The projection of every token's hidden state on the directions of a set.

    The directions come from the last token of a template. Other tokens, such as the concept's word itself, may
    represent the concept along other directions: compare one concept across prompts at the same position rather than
    different concepts at one token.

    Args:
        model: the model that the set was computed from.
        concepts: from `concept_directions`.
        prompt: text, token ids (then nothing is added) or the messages of a chat (`chat_prompt`).
        names: some of the set's concepts; all by default.
        other_weights: accept another model of the same sizes, such as the tuned one of a pair.
        prepend_bos: overrides the model's BOS policy for a text.
        check: called before the pass; raises to cancel.

    Raises:
        ValueError: an empty or too long prompt, a concept that is not in the set, another model's set, hidden states
            that are not finite.

    Source: Representation Engineering (Zou et al. 2023), section 3.1, "representation reading".

    Example:
        >>> few = [c for c in demo_concepts() if c.name in ("Paris", "London", "red", "blue")]
        >>> concepts = concept_directions(model, few, layer=3)
        >>> reading = read_prompt_concepts(model, concepts, "Anna lives in Paris.")
        >>> [name for name, _ in reading.strongest(-1, 2)]
        ['Paris', 'blue']
    """
    model.capabilities.require("residual_stream", "read_prompt_concepts")
    concepts.check(model, other_weights=other_weights)
    tokens = read_prompt(model, prompt, prepend_bos=prepend_bos)
    chosen = range(len(concepts.names)) if names is None else [concepts.index(name) for name in names]
    RunOptions(check=check).stop_if_cancelled()
    states = to_numpy(residual_streams(model, tokens.fed_ids()[0])[concepts.layer, tokens.offset :])
    check_finite(states, lambda position, _: f"the hidden state at position {position}")
    return ConceptReading(
        tokens=tokens.tokens(),
        names=[concepts.names[i] for i in chosen],
        projection=(states - concepts.center) @ concepts.directions[list(chosen)].T,
        layer=concepts.layer,
        sink=tokens.first_is_sink,
        provenance=provenance(model.provenance(), layer=concepts.layer, method=concepts.method, bos=tokens.offset == 1),
    )


@record
class SparseReading(Result):
    """A hidden state as a weighted sum of few concept directions and a residual."""

    names: Sequence[str] = with_axes("used")
    """Concepts with a weight, the largest absolute weight first."""

    weights: Floats = with_axes("used")
    """Weight of each unit direction, in the residual stream's units."""

    error: float
    """Norm of the residual over the norm of the state minus the set's center; 0 if the sum equals the state."""

    solver: str
    """"omp" or "elastic_net"."""


@checked
def decompose_state(
    state: ArrayLike,
    concepts: ConceptSet,
    *,
    solver: Solver = "omp",
    n_concepts: int = 10,
    alpha: float = 0.01,
    l1_ratio: float = 0.95,
) -> SparseReading:
    """Write a hidden state (d_model,), minus the set's center, as a sum of few concept directions.

    ``omp``: orthogonal matching pursuit with ``n_concepts`` directions. ``elastic_net``: penalised least squares; the
    penalty is ``alpha`` times the state's largest projection over d_model, so that it does not depend on the state's
    norm.

    Args:
        state: (d_model,) a residual stream such as `last_states` gives, at the set's layer.
        concepts: from `concept_directions`.
        solver: "omp" or "elastic_net".
        n_concepts: most directions of ``omp``; not used by ``elastic_net``.
        alpha: strength of the penalty of ``elastic_net``, above 0; a larger one selects fewer directions.
        l1_ratio: share of the L1 penalty, 0..1; the rest is the L2 penalty.

    Raises:
        ValueError: a state of another width or not finite, an unknown solver, an option out of range.

    Source: PaCE: Parsimonious Concept Engineering for Large Language Models (Luo et al. 2024), section 3.3.

    Example:
        >>> few = [c for c in demo_concepts() if c.name in ("Paris", "London", "red", "blue")]
        >>> concepts = concept_directions(model, few, layer=3)
        >>> state = last_states(model, ["Anna lives in Paris."], 3)[0, 0]
        >>> [round(decompose_state(state, concepts, n_concepts=n).error, 2) for n in (1, 2, 3)]
        [0.96, 0.93, 0.93]
    """
    target = float64(state)
    if target.shape != (concepts.d_model,) or not np.isfinite(target).all():
        raise ValueError(f"state must be {concepts.d_model} finite numbers for this set, got shape {target.shape}")
    check_choice("solver", solver, Solver)
    check_range("n_concepts", n_concepts, most=min(len(concepts.names), concepts.d_model), owner="this set")
    target = target - concepts.center
    atoms = np.asarray(concepts.directions, dtype=np.float64).T
    weights = _omp(atoms, target, n_concepts) if solver == "omp" else _elastic_net(atoms, target, alpha, l1_ratio)
    length = float(np.linalg.norm(target))
    used = [i for i in top_k_indices(weights, by_size=True) if weights[i] != 0]
    return SparseReading(
        names=[concepts.names[i] for i in used],
        weights=weights[used],
        error=float(np.linalg.norm(target - atoms @ weights)) / length if length else 0.0,
        solver=solver,
        provenance=dict(concepts.provenance),
    )


@checked
def decompose_prompt(
    model: Model,
    concepts: ConceptSet,
    prompt: PromptInput,
    *,
    position: int = -1,
    solver: Solver = "omp",
    n_concepts: int = 10,
    other_weights: bool = False,
    prepend_bos: bool | None = None,
) -> SparseReading:
    """`decompose_state` of the hidden state at one token of a prompt (counted from 0 without the BOS, or negative).

    Args:
        model, concepts, prompt, other_weights, prepend_bos: as in `read_prompt_concepts`.
        position: of the token.
        solver, n_concepts: as in `decompose_state`.

    Raises:
        ValueError: what `read_prompt_concepts` and `decompose_state` refuse.

    Example:
        >>> few = [c for c in demo_concepts() if c.name in ("Paris", "London", "red", "blue")]
        >>> concepts = concept_directions(model, few, layer=3)
        >>> parts = decompose_prompt(model, concepts, "Anna lives in Paris.", n_concepts=2)
        >>> [name for name, weight in zip(parts.names, parts.weights, strict=True) if weight > 0]
        ['Paris']
    """
    concepts.check(model, other_weights=other_weights)
    state = last_states(model, [prompt], concepts.layer, positions=[position], prepend_bos=prepend_bos)[0, 0]
    return decompose_state(state, concepts, solver=solver, n_concepts=n_concepts)


def _omp(atoms: Floats, target: Floats, count: int) -> Floats:
    from sklearn.linear_model import orthogonal_mp

    with warnings.catch_warnings():
        # it warns when fewer directions suffice
        warnings.simplefilter("ignore", RuntimeWarning)
        return np.asarray(orthogonal_mp(atoms, target, n_nonzero_coefs=count))


def _elastic_net(atoms: Floats, target: Floats, alpha: float, l1_ratio: float) -> Floats:
    from sklearn.linear_model import ElasticNet

    if not alpha > 0 or not 0 <= l1_ratio <= 1:
        raise ValueError(f"alpha must be above 0 and l1_ratio in 0..1, got {alpha} and {l1_ratio}")
    highest = float(np.abs(atoms.T @ target).max()) / len(target)
    if highest == 0:
        return np.zeros(atoms.shape[1])
    net = ElasticNet(alpha=alpha * highest, l1_ratio=l1_ratio, fit_intercept=False, max_iter=20_000)
    return np.asarray(net.fit(atoms, target).coef_)
