"""Annotators: descriptions of what a list of words has in common, by the user, by rules, or by a language model."""

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
