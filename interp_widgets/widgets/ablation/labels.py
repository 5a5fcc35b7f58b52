"""What the choices of the ablation panel are called."""

from __future__ import annotations

REPLACEMENT_LABELS = {
    "zero": "zero",
    "mean": "its mean over reference texts",
    "resample": "its value in a corrupted prompt",
}
METRIC_LABELS = {
    "logit": "logit of the target",
    "probability": "probability",
    "log_prob": "log-probability",
    "logit_difference": "logit difference to a foil",
    "kl": "KL divergence of all tokens",
}
