"""`ablated_text`: what a model writes, with and without some ablations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from interp_widgets.analysis._core.prompts import read_prompt
from interp_widgets.analysis._core.result import Result, provenance, record, with_axes
from interp_widgets.analysis._core.run import RunOptions
from interp_widgets.analysis._core.tables import DataFrame, table
from interp_widgets.analysis.ablation.contexts import Ablation, ablation, as_list
from interp_widgets.arguments import checked
from interp_widgets.models import Model
from interp_widgets.models.chat import PromptInput


@record
class AblatedTextResult(Result):
    """Two continuations of one prompt: one by the model as it is, one with ablations."""

    plain: Sequence[int] = with_axes("plain")
    """Ids of the tokens that the model writes without the ablations."""

    plain_tokens: Sequence[str] = with_axes("plain")
    """Readable tokens."""

    ablated: Sequence[int] = with_axes("ablated")
    """Ids of the tokens that the model writes with the ablations."""

    ablated_tokens: Sequence[str] = with_axes("ablated")
    """Readable tokens."""

    prompt_tokens: Sequence[str] = with_axes("positions")
    """Readable tokens of the prompt, without the BOS."""

    ablations: Sequence[Ablation] = with_axes("ablations")
    """The ablations that were applied."""

    def to_frame(self) -> DataFrame:
        """One row per token: whether it was written with the ablations, its position in that text, and the token."""
        texts = (self.plain_tokens, self.ablated_tokens)
        ablated = [text is texts[1] for text in texts for _ in text]
        positions = [position for text in texts for position in range(len(text))]
        return table({"ablated": ablated}, {"position": positions, "token": [*texts[0], *texts[1]]})


@checked
def ablated_text(
    model: Model,
    prompt: PromptInput,
    ablations: Iterable[Ablation] | Ablation,
    *,
    max_new_tokens: int = 20,
    temperature: float = 0.0,
    seed: int = 0,
    prepend_bos: bool | None = None,
    progress: Callable[[int, int], None] | None = None,
    check: Callable[[], None] | None = None,
) -> AblatedTextResult:
    """Continue a prompt twice: with the model as it is, and with some ablations.

    Args:
        model: what `load_model` returns.
        prompt: text, token ids (then nothing is added) or the messages of a chat (`chat_prompt`).
        ablations: `Ablation` objects; those without a position act on written tokens too.
        max_new_tokens: most tokens of each text.
        temperature: 0 writes the likeliest tokens, above 0 samples.
        seed: of the sampling; both texts start from it.
        prepend_bos: overrides the model's BOS policy for a text.
        progress: called with (tokens written, most tokens that can be written).
        check: called between tokens; raises to cancel.

    Raises:
        ValueError: an empty or too long prompt, or what `ablation` and `Model.generate` refuse.

    Example:
        >>> texts = ablated_text(model, "The Eiffel Tower is in the city of", Ablation("attn", 0), max_new_tokens=1)
        >>> texts.plain_tokens, texts.plain == texts.ablated
        ((' Paris',), False)
    """
    read, listed = read_prompt(model, prompt, prepend_bos=prepend_bos), as_list(ablations)
    run = RunOptions(progress, check)

    def text(taken_out: Sequence[Ablation], part: RunOptions) -> list[int]:
        written: list[int] = []

        def report(token: int) -> None:
            written.append(token)
            part.report(len(written), max_new_tokens)

        with ablation(model, taken_out):
            return model.generate_ids(
                list(read.ids), max_new_tokens=max_new_tokens, temperature=temperature, seed=seed, check=check,
                on_token=report,
            )  # fmt: skip

    plain, ablated = text([], run.part(0, 2)), text(listed, run.part(1, 2))
    return AblatedTextResult(
        plain=plain,
        plain_tokens=model.token_strings(plain),
        ablated=ablated,
        ablated_tokens=model.token_strings(ablated),
        prompt_tokens=read.tokens(),
        ablations=listed,
        provenance=provenance(
            model.provenance(), max_new_tokens=max_new_tokens, temperature=temperature, seed=seed, bos=read.offset == 1
        ),
    )
