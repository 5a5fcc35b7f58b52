"""Annotators: what a list of words has in common, according to the user, to rules, or to a language model."""

from interp_widgets.data.annotators.annotation import LEVELS, SCENARIOS, Annotation, Annotator, UserAnnotator
from interp_widgets.data.annotators.endpoint import EndpointAnnotator
from interp_widgets.data.annotators.rules import RuleAnnotator

__all__ = [
    "LEVELS",
    "SCENARIOS",
    "Annotation",
    "Annotator",
    "EndpointAnnotator",
    "RuleAnnotator",
    "UserAnnotator",
]
