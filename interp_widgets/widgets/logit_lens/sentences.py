"""The lens at one position in a sentence, and at one cell in a line."""

from __future__ import annotations

import numpy as np

from interp_widgets.analysis.logit_lens import LogitLensResult
from interp_widgets.figures.labels import power_of_ten, visible


def quoted(token: str) -> str:
    """A token in quotes, with its spaces marked."""
    return f"“{visible(token)}”"


def format_probability(value: float) -> str:
    """A probability; small ones as powers of ten.

    >>> format_probability(0.40161), format_probability(3.2e-9), format_probability(0.0)
    ('0.402', '3×10⁻⁹', '0')
    """
    if value >= 0.001 or value == 0:
        return f"{value:.3f}" if value else "0"
    return power_of_ten(value)


def row_name(result: LogitLensResult, row: int) -> str:
    """``layer 3``, or ``the output`` for the last row."""
    return "the output" if row == result.n_layers else f"layer {row}"


def describe_prediction(result: LogitLensResult, column: int) -> str:
    """How the prediction at one position came about: its commit layer, and what became of the target."""
    at = f"After {quoted(result.tokens[column])} ({column}): "
    if not result.computed[column]:
        return at + "not computed yet."
    final = result.token_text(int(result.top_token[-1, column]))
    commit = int(result.commit_layer[column])
    if commit == 0:
        settled = "is the likeliest token from layer 0, the embeddings, on"
    elif commit == result.n_layers:
        settled = "becomes the likeliest token only at the output"
    else:
        settled = f"becomes the likeliest token at layer {commit} and stays"
    sure = format_probability(result.probability[-1, column])
    return f"{at}{quoted(final)} ({sure}) {settled}. {_target(result, column)}".strip()


def _target(result: LogitLensResult, column: int) -> str:
    if result.target_rank is None or result.target_probability is None or result.target_token is None:
        return ""
    ranks = result.target_rank[:, column]
    lost = np.flatnonzero(result.interference[:, column]).tolist() if result.interference is not None else []
    name = f"the target {quoted(result.target_token)}"
    if lost:
        where = ", ".join(f"likeliest at {row_name(result, row - 1)}, lost at {row_name(result, row)}" for row in lost)
        sentence = f"Interference: {name} is {where}"
    elif ranks.min() == 0:
        return ""
    else:
        best = f"its best rank is {ranks.min():,} at {row_name(result, int(ranks.argmin()))}"
        sentence = f"{name[0].upper()}{name[1:]} is never the likeliest: {best}"
    if ranks[-1] > 0 and (lost or ranks.argmin() != result.n_layers):
        sentence += f"; it ends at rank {ranks[-1]:,}"
    return sentence + "."


def cell_line(result: LogitLensResult, row: int, column: int) -> str:
    """The numbers of one cell."""
    if not result.computed[column]:
        return "not computed yet"
    parts = [f"entropy {result.entropy[row, column]:.2f} nats", f"KL to output {result.kl[row, column]:.2f} nats"]
    if result.final_rank[row, column]:
        final = quoted(result.token_text(int(result.top_token[-1, column])))
        parts.insert(0, f"final word {final} rank {result.final_rank[row, column]:,}")
    if result.target_rank is not None and result.target_probability is not None and result.target_token is not None:
        rank, chance = result.target_rank[row, column], format_probability(result.target_probability[row, column])
        parts.insert(0, f"target {quoted(result.target_token)} rank {rank:,} ({chance})")
    return " · ".join(parts)
