"""Which values carry the answer: those of one run put into another, and random parts as a yardstick for ablations."""

from interp_widgets.analysis.patching.activation import (
    ActivationPatchingResult,
    PatchSite,
    activation_patching,
)
