"""What the choices of the token decomposition explorer are called."""

from __future__ import annotations

COLOR_LABELS = {
    "probability": "probability of the part's top token",
    "norm_share": "share of the parts' norms",
    "target_probability": "probability of the target",
    "target_logit": "share of the target's logit",
}
BAR_LABELS = {"logit": "share of the final logit", "norm": "share of the norms at the last layer", "none": "none"}
BIASES_LABELS = {"separate": "a part of their own", "spread": "spread over the tokens"}
LENS_LABELS = {"own": "each part by its own scale", "frozen": "all by the stream's scale"}
