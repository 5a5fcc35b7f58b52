"""Pictures without a browser, drawn by matplotlib and saved as SVG, PDF or PNG."""

from .charts import Curve, curves_scene
from .heatmap import heatmap_scene
from .scene import WIDTHS, Scene, Sheet, fitted, laid_out, render_pdf, render_png, render_svg, save_scene, stack_scenes
from .words import aligned_scene, strip_scene, table_scene

__all__ = [
    "WIDTHS", "Curve", "Scene", "Sheet", "aligned_scene", "curves_scene", "fitted", "heatmap_scene", "laid_out",
    "render_pdf", "render_png", "render_svg", "save_scene", "stack_scenes", "strip_scene", "table_scene",
]  # fmt: skip
