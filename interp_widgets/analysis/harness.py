"""`as_lm_eval`: lets lm-evaluation-harness judge a model of this package, edited or patched ones included."""

from __future__ import annotations

from typing import Any

from interp_widgets.arguments import checked
from interp_widgets.models import Model


@checked
def as_lm_eval(model: Model, *, batch_size: int | None = None) -> Any:
    """The model as lm-evaluation-harness takes one (its ``TemplateLM``), for any of its tasks.

    Hooks and weights count as they are while the harness runs, so that an ablation or an edit is judged inside its
    ``with`` block. Needs the extra ``lm-eval`` (``pip install 'interp-widgets[lm-eval]'``).

    Args:
        model: what `load_model` returns.
        batch_size: most rows in one pass, of a sequence, or of several that begin alike or are short; by default what
            work and memory allow.

    Raises:
        ImportError: lm-evaluation-harness is not installed.

    Example:
        >>> judged = as_lm_eval(base)
        >>> judged.max_length, judged.tok_encode("Paris is in")[:1]
        (512, [0])
    """
    try:
        from interp_widgets.analysis.harness_model import HarnessModel
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != "lm_eval":
            raise
        raise ImportError(
            "as_lm_eval needs lm-evaluation-harness: run pip install 'interp-widgets[lm-eval]'"
        ) from error
    return HarnessModel(model, batch_size)
