"""What the choices of the saliency explorer are called."""

from __future__ import annotations

METHOD_LABELS = {
    "exact": "exact: embedding set to zero",
    "first_order": "first order: gradient × embedding",
    "integrated_gradients": "integrated gradients",
    "random": "random: baseline",
}
TARGET_LABELS = {
    "probability": "probability",
    "log_prob": "log-probability",
    "logit": "logit",
    "logit_difference": "logit difference to a foil",
}
VALUE_LABELS = {"score": "scores 0 to L", "importance": "importance"}
WRITER_LABELS = {"A": "A", "B": "B"}
