"""What the choices of the FFN concept browser are called."""

from __future__ import annotations

SIDES = {
    "sides": "each side for itself",
    "both": "both sides together",
    "+": "the positive side",
    "-": "the negative side",
}
SHARES = {"level": "linguistic levels", "scenario": "task scenarios"}
ANNOTATORS = {"rules": "rules, offline", "endpoint": "a language model at an endpoint"}
SCOPES = {"layer": "this layer", "all": "all layers"}
