"""Charts of how alike layers are: CKA with control models by layer, and texts in the plane."""

from .boxes import TaskBoxes as TaskBoxes
from .projection import ProjectionChart as ProjectionChart
