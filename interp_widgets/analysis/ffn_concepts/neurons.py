"""`neuron_tokens`: the tokens that single MLP neurons write for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from interp_widgets.analysis.chunks import ChunkLog, run_chunks
from interp_widgets.analysis.largest import Largest
from interp_widgets.analysis.result import Result, provenance, record
from interp_widgets.analysis.tensors import as_array, check_finite, to_numpy, wide
from interp_widgets.arguments import checked
from interp_widgets.models import Model
from interp_widgets.models.devices import device_kind

if TYPE_CHECKING:
    import pandas as pd

_NUMBERS = {"cpu": 2**22, "accelerator": 2**28}
_FLOPS = {"cpu": 1e10, "accelerator": 1e13}


@record
class NeuronTokenResult(Result):
    """The tokens whose logits each neuron of one layer raises most, and lowers most, per unit of its activation.

    Source: Explainability in Large Language Models (Luo 2024), section 2.2.2 and appendix D.2.

    Example:
        >>> found = neuron_tokens(model, layer=5, neurons=[53, 79], top=3)
        >>> [token for token, _ in found.tokens(79)]
        [' school', ' feeling', ' Gallery']
    """

    layer: int
    """Layer of the model."""

    neurons: Sequence[int]
    """(neurons,) their numbers in the layer."""

    promoted: NDArray[np.integer[Any]]
    """(neurons, top) ids of the tokens with the largest score, best first."""

    promoted_scores: NDArray[np.floating[Any]]
    """(neurons, top) their scores: value vector, times the final norm's weight, times the token's unembedding."""

    suppressed: NDArray[np.integer[Any]]
    """(neurons, top) ids of the tokens with the smallest score, smallest first."""

    suppressed_scores: NDArray[np.floating[Any]]
    """(neurons, top) their scores."""

    norms: NDArray[np.floating[Any]]
    """(neurons,) length of each value vector."""

    names: Mapping[Any, str]
    """Readable text of every token id above, by id (whole numbers)."""

    def __post_init__(self) -> None:
        n, top = np.asarray(self.promoted).shape
        self.sequence("neurons", n)
        for name in ("promoted", "suppressed"):
            self.array(name, (n, top), "int")
            self.array(f"{name}_scores", (n, top))
        self.array("norms", (n,))
        object.__setattr__(self, "names", {int(key): str(text) for key, text in self.names.items()})

    def tokens(self, neuron: int, *, suppressed: bool = False) -> list[tuple[str, float]]:
        """Readable tokens of one neuron with their scores, strongest first; ValueError for one not computed."""
        if neuron not in self.neurons:
            raise ValueError(f"neuron {neuron} of layer {self.layer} is not among the {len(self.neurons)} computed")
        row = list(self.neurons).index(neuron)
        ids, scores = (self.suppressed, self.suppressed_scores) if suppressed else (self.promoted, self.promoted_scores)
        return [(self.names[i], s) for i, s in zip(ids[row].tolist(), scores[row].tolist(), strict=True)]

    def to_frame(self) -> pd.DataFrame:
        """One row per neuron: length of its value vector, promoted and suppressed tokens."""
        import pandas as pd

        texts = {
            name: [" ".join(self.names[i] for i in row) for row in getattr(self, name).tolist()]
            for name in ("promoted", "suppressed")
        }
        return pd.DataFrame({"neuron": list(self.neurons), "norm": self.norms, **texts})


@checked
@torch.no_grad()
def neuron_tokens(
    model: Model,
    *,
    layer: int,
    neurons: Sequence[int] | None = None,
    top: int = 10,
    progress: Callable[[int, int], None] | None = None,
    check: Callable[[], None] | None = None,
) -> NeuronTokenResult:
    """The tokens that each neuron's value vector promotes, and those it suppresses.

    The value vector of a neuron is its row of the MLP's output weights. A token's score is the value vector times the
    final norm's weight (centred first where the norm is a LayerNorm) times the token's unembedding: what one unit of
    activation adds to the logit, up to the positive scale that the final norm divides by on a prompt. Where a model
    norms the MLP's output too (Gemma 2), that norm's weight multiplies as well.

    Args:
        model: what `load_model` returns.
        layer: of the model.
        neurons: numbers of neurons in the layer; default: all.
        top: tokens on either side.
        progress: called with (done, total) tokens of the vocabulary.
        check: called between tiles of the vocabulary; raises to cancel.

    Raises:
        ValueError: a layer, neuron or option out of range, weights that are not finite.

    Source: Explainability in Large Language Models: Pathways to Refinement and Alignment (Luo 2024), section 2.2.2 and
    appendix D.2.

    Example:
        >>> found = neuron_tokens(model, layer=5, neurons=[53], top=3)
        >>> [(token, round(score, 1)) for token, score in found.tokens(53)]
        [(' Bizet', 0.8), (' Portugal', 0.7), (' Pakistan', 0.7)]
    """
    if top < 1:
        raise ValueError(f"top must be 1 or more, got {top}")
    values, chosen = value_vectors(model, layer, neurons)
    table = model.weight("W_U")
    promoted, suppressed = Largest(min(top, table.shape[1])), Largest(min(top, table.shape[1]))
    through = (values - values.mean(-1, keepdim=True)) if model.normalization == "LayerNorm" else values
    through = through * wide(model.weight("ln_final_w"))
    kind = device_kind(table.device)
    size = min(_NUMBERS[kind] / len(through), _FLOPS[kind] / (2 * through.numel()))
    log = ChunkLog()

    def work(start: int, stop: int) -> None:
        scores = through @ table[:, start:stop].to(through.dtype)
        promoted.add(scores, start)
        suppressed.add(-scores, start)

    after = None if progress is None else lambda done: progress(done, table.shape[1])
    run_chunks(table.shape[1], max(int(size), top), work, what="token", log=log, check=check, after=after)
    check_finite(f"the scores of neurons of layer {layer}", promoted.values)  # NaN counts as the largest
    check_finite(f"the scores of neurons of layer {layer}", suppressed.values)
    places = as_array(torch.stack([promoted.places, suppressed.places]))
    told = {"layer": layer, "top": top, "neurons": len(chosen), "chunk_halvings": log.halvings}
    return NeuronTokenResult(
        layer=layer,
        neurons=chosen,
        promoted=places[0],
        promoted_scores=to_numpy(promoted.values),
        suppressed=places[1],
        suppressed_scores=to_numpy(-suppressed.values),
        norms=to_numpy(values.norm(dim=-1)),
        # one by one: tokens that stand beside each other are read as one text
        names={token: model.token_strings([token])[0] for token in np.unique(places).tolist()},
        provenance=provenance(model.provenance(), **told),
    )


def chosen_neurons(model: Model, neurons: Sequence[int] | None) -> tuple[int, ...]:
    """The neurons asked for; all where none are named. ValueError for one that is not there or named twice."""
    if neurons is None:
        return tuple(range(model.d_mlp))
    wrong = next((neuron for neuron in neurons if not 0 <= neuron < model.d_mlp), None)
    if wrong is not None:
        raise ValueError(f"neurons must be in 0..{model.d_mlp - 1} for this model, got {wrong}")
    if len(neurons) == 0 or len(set(neurons)) != len(neurons):
        raise ValueError(f"neurons must be different numbers, at least one, got {list(neurons)}")
    return tuple(int(neuron) for neuron in neurons)


def value_vectors(
    model: Model, layer: int, neurons: Sequence[int] | None, *, normed: bool = True
) -> tuple[Tensor, tuple[int, ...]]:
    """Value vectors (neurons, d_model) in float32 or wider and the neurons' numbers.

    With ``normed``, times the weight of the norm after the MLP where the model has one.
    """
    values = wide(model.weight("W_out", layer))
    chosen = chosen_neurons(model, neurons)
    values = values[torch.tensor(chosen, device=values.device)]
    if normed and norms_output(model, layer):
        values = values * wide(model.weight("ln2_post_w", layer))
    return values, chosen


def norms_output(model: Model, layer: int) -> bool:
    """Whether a norm stands between the MLP and the residual stream, as in Gemma 2."""
    return f"blocks.{layer}.ln2_post.hook_scale" in model.hook_names
