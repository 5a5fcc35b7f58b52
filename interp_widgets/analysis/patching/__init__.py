"""Which values carry the answer: those of one run put into another, and random parts as a yardstick for ablations."""

from interp_widgets.analysis.patching.activation import (
    ActivationPatchingResult,
    PatchSite,
    activation_patching,
    activation_patching_cost,
)
from interp_widgets.analysis.patching.circuit import (
    CircuitFaithfulness,
    CircuitPart,
    CircuitResult,
    circuit_faithfulness,
    greedy_circuit,
    greedy_circuit_cost,
)
from interp_widgets.analysis.patching.edges import EdgeAttributionResult, edge_attribution, edge_attribution_cost
from interp_widgets.analysis.patching.null import AblationNullResult, ablation_null
from interp_widgets.analysis.patching.pairs import Direction
from interp_widgets.analysis.patching.paths import PathPatchingResult, path_patching, path_patching_cost
from interp_widgets.analysis.patching.prediction import PatchedPrediction, patched_prediction
