"""Logit lens and tuned lens: the next token predicted from every layer at every position of a prompt."""

from interp_widgets.analysis._core.cost import Cost
from interp_widgets.analysis.logit_lens.lens import logit_lens, logit_lens_cost
from interp_widgets.analysis.logit_lens.lens_result import Lens, LogitLensResult
from interp_widgets.models.translators import Translators, load_translators, save_translators
