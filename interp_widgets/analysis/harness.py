"""`as_lm_eval`: evaluate a model with lm-evaluation-harness, with any edits or hooks applied."""

from __future__ import annotations

from typing import Any

from interp_widgets.arguments import checked
from interp_widgets.models import Model


@checked
def as_lm_eval(model: Model, *, batch_size: int | None = None) -> Any:
    """Wrap a model for lm-evaluation-harness (as its ``TemplateLM``), to run any of its tasks.

    The harness uses the model's hooks and weights at the time it runs, so run it inside the ``with`` block of an
    ablation or an edit to evaluate that. Needs the extra ``lm-eval`` (``pip install 'interp-widgets[lm-eval]'``).

    Args:
        model: what `load_model` returns.
        batch_size: most rows in one pass; a row holds one sequence, or several that share a prefix or are short. By
            default chosen by cost and memory.

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
