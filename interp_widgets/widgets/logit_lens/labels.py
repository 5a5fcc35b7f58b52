"""What the numbers of a lens are called in the controls, and at the colour bar, where there is less room."""

from __future__ import annotations

COLOR_LABELS = {
    "probability": "probability of the likeliest token",
    "entropy": "entropy",
    "kl": "KL divergence from the output",
    "target_probability": "probability of the target",
    "target_rank": "rank of the target",
}
UNITS = {
    "probability": "probability",
    "entropy": "entropy, nats",
    "kl": "KL, nats",
    "target_probability": "probability of target",
    "target_rank": "rank, 0 is best",
}
