"""Whether two maps of directions, computed on two processors, are the same map."""

from __future__ import annotations

from scipy.spatial.distance import pdist
from scipy.stats import spearmanr

from interp_widgets.analysis.concepts import ConceptMap


def unlike_maps(first: ConceptMap, second: ConceptMap, path: str) -> list[str]:
    """UMAP and t-SNE multiply rounding: on another processor points lie elsewhere, but alike and as well."""
    faults = [] if first.names == second.names and second.method == first.method else [path]
    faults += [] if abs(first.recall - second.recall) < 0.05 else [f"{path}.recall"]
    return faults + ([] if spearmanr(pdist(first.xy), pdist(second.xy)).statistic > 0.7 else [f"{path}.xy"])
