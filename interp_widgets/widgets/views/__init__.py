"""Browser views: token strip, two aligned texts, heat map, thumbnails, table, text box and the host of Bokeh figures.

A panel made of one, as in CONTRIBUTING:

Example:
    >>> from typing import Annotated
    >>> from interp_widgets import Bounds, LayerByPosition, Panel, field
    >>> def norms(model, *, prompt):
    ...     ids, names = model.tokens(prompt), [f"blocks.{layer}.hook_resid_pre" for layer in range(model.n_layers)]
    ...     states = model.run(ids, capture=names).activations
    ...     return LayerByPosition([states[name][0].norm(dim=-1) for name in names], model.token_strings(ids), "norm")
    >>> class StreamNorms(Panel):
    ...     title, analysis = "Norms of the residual stream", staticmethod(norms)
    ...     prompt = field(str, label="Prompt", required="type a prompt")
    ...     largest = field(Annotated[float, Bounds(1, 100)], 20.0, label="Full colour at", redraws=True)
    ...
    ...     def build(self):
    ...         super().build()  # the controls of the fields
    ...         self.heat = Heatmap(row_name="layer", column_name="token", value_label="norm")
    ...         self.plot.children = [self.heat]
    ...
    ...     def draw(self, results, request):  # one result per model; `self.shown` is "A", "B" or "difference"
    ...         both, end = self.shown == "difference", self.largest
    ...         drawn = results[1].minus(results[0]) if both else self.stored()
    ...         self.heat.set_matrix(drawn.values, columns=drawn.tokens, vmin=-end * both, vmax=end, signed=both)
    ...
    ...     def stored(self):
    ...         return self.results[self.shown == "B"]
    ...
    ...     def frame(self):
    ...         return self.stored().to_frame()
    ...
    ...     def scene(self):
    ...         return self.heat.scene()
    >>> panel = StreamNorms(model, prompt="Paris is in the country of")
    >>> panel.heat.shape == list(panel.result.values.shape), panel.heat.vmax
    (True, 20.0)
    >>> panel.close()
    >>> panel = StreamNorms(pair, prompt="Paris is in the country of", view="difference")
    >>> panel.heat.vmin, bool(panel.heat.matrix.any())
    (-20.0, True)
    >>> panel.close()
"""

from __future__ import annotations

from interp_widgets.widgets.views.aligned_tokens import AlignedTokens
from interp_widgets.widgets.views.bokeh_figure import BokehFigure
from interp_widgets.widgets.views.heatmap import Heatmap
from interp_widgets.widgets.views.table import Table
from interp_widgets.widgets.views.text_box import TextBox
from interp_widgets.widgets.views.thumbnails import Thumbnails
from interp_widgets.widgets.views.token_strip import TokenStrip

__all__ = ["AlignedTokens", "BokehFigure", "Heatmap", "Table", "TextBox", "Thumbnails", "TokenStrip"]
