"""Similarity of layers: of two models, within one model, and of a model with models tuned on one task each (MOSSA)."""

from .cka import linear_cka as linear_cka
from .cka import minibatch_cka as minibatch_cka
from .cka import rbf_cka as rbf_cka
from .mossa import MossaResult as MossaResult
from .mossa import TaskCorrelations as TaskCorrelations
from .mossa import mossa as mossa
from .mossa import mossa_sections as mossa_sections
from .mossa import task_correlations as task_correlations
from .projections import LayerProjections as LayerProjections
from .projections import layer_projections as layer_projections
from .readability import Readability as Readability
from .readability import readability as readability
from .sections import LayerSections as LayerSections
from .sections import layer_sections as layer_sections
from .similarity import LayerSimilarity as LayerSimilarity
from .similarity import layer_similarity as layer_similarity
