"""The interface of lm-evaluation-harness to a model; importing it needs lm-evaluation-harness."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from interp_widgets.analysis._core.run import RunOptions
from interp_widgets.analysis.continuations import Continuation, score_continuations
from interp_widgets.models import Model
from interp_widgets.models.chat import rendered

eval_logger = logging.getLogger("lm_eval.interp_widgets")


class HarnessModel(TemplateLM):  # type: ignore[misc]
    """What `as_lm_eval` returns."""

    model: Model

    def __init__(self, model: Model, batch_size: int | None = None) -> None:
        super().__init__()
        self.model = model
        self.tokenizer = model.tokenizer
        self._batch_size = batch_size
        self._said: set[str] = set()

    # ---- the interface of TemplateLM

    @property
    def eot_token_id(self) -> int:
        """The end-of-text token, or the BOS if there is none."""
        eos = getattr(self.tokenizer, "eos_token_id", None)
        token = self.model.bos_token_id if eos is None else eos
        if token is None:
            raise ValueError(f"the tokenizer of {self.model.name} has neither an end-of-text nor a BOS token")
        return int(token)

    @property
    def prefix_token_id(self) -> int:
        """The token that precedes a text without context."""
        return self.eot_token_id if self.model.bos_token_id is None else int(self.model.bos_token_id)

    @property
    def max_length(self) -> int:
        """Maximum tokens of context and continuation together."""
        return int(self.model.n_ctx)

    @property
    def max_gen_toks(self) -> int:
        """Maximum tokens to generate if a task does not set it."""
        return min(256, self.max_length // 2)

    @property
    def tokenizer_name(self) -> str:
        """Name of the tokenizer, which the harness uses as a cache key for chat templates."""
        return str(getattr(self.tokenizer, "name_or_path", "") or self.model.name)

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """A chat rendered by the tokenizer's template.

        Where the template refuses the messages, they are rendered without the system message, as in the harness's own
        models. Where it refuses these too, what is generated for the item is no text that any task expects, and
        `loglikelihood` refuses the item: no log-likelihoods of its choices say that none of them is the answer.
        """
        without = [message for message in chat_history if message["role"] != "system"]
        try:
            return self._rendered(chat_history, add_generation_prompt)
        except ValueError as error:
            reason = error
        if 0 < len(without) < len(chat_history):
            with suppress(ValueError):
                text = self._rendered(without, add_generation_prompt)
                self._say(f"{reason}; the system message is left out")
                return text
        self._say(f"{reason}; such items count as failed, or cannot be scored")
        return _REFUSED

    def _rendered(self, messages: list[dict[str, str]], answers: bool) -> str:
        return rendered(self.tokenizer, messages, answers=answers, continues=not answers)

    def _say(self, sentence: str) -> None:
        """Log a sentence, once."""
        if sentence not in self._said:
            self._said.add(sentence)
            eval_logger.warning("%s", sentence)

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """Token ids, with a BOS by the model's policy if the text does not begin with one."""
        ids = self.model.token_lists([string])[0]
        wants = add_special_tokens if self.model.bos_token_id is not None else None
        return self.model.with_bos(ids, wants)

    def _encode_pair(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        """Ids of a context and its continuation, which are tokenized together; spaces between them belong to the
        continuation."""
        end = len(context.rstrip())
        own, following = self.model.split(context[:end], context[end:] + continuation)
        return own or [self.prefix_token_id], following

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """Log-likelihood of each continuation given its context, and whether greedy decoding would generate it.

        Raises ValueError if the chat template refuses an item.
        """
        refused = sum(_REFUSED in request.args[0] for request in requests)
        if refused:
            raise ValueError(
                f"the chat template of {self.model.name} refuses the messages of {refused} of {len(requests)} "
                "continuations, whose task would count the first choice as the model's: leave these items out of the "
                "task, or evaluate with apply_chat_template=False"
            )
        answers: list[tuple[float, bool]] = super().loglikelihood(requests, disable_tqdm=disable_tqdm)
        return answers

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, Sequence[int], Sequence[int]]], **_: Any
    ) -> list[tuple[float, bool]]:
        """Sum of the log-probabilities of each continuation, and whether greedy decoding would generate it."""
        wanted = [self._truncated(context, own) for _, context, own in requests]
        scored = score_continuations(self.model, wanted, RunOptions(batch_size=self._batch_size))
        answers = [(float(one.log_probability.sum()), one.greedy) for one in scored]
        for request, answer in zip(requests, answers, strict=True):
            if request[0] is not None:
                self.cache_hook.add_partial("loglikelihood", request[0], answer)
        return answers

    def _truncated(self, context: Sequence[int], own: Sequence[int]) -> Continuation:
        """A continuation whose context is truncated from the left if too long, as in the harness's own models."""
        room = self.max_length + 1 - len(own)
        if room < 1:
            raise ValueError(
                f"a continuation of {len(own)} tokens does not fit the context of {self.max_length} tokens"
            )
        return Continuation(tuple(context[-room:]), tuple(own))

    def loglikelihood_rolling(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[float]:
        """Log-likelihood of whole texts, in windows if a text is longer than the model's context."""
        windows = [
            [
                (None, *make_disjoint_window(window))
                for window in get_rolling_token_windows(
                    token_list=self.model.without_bos(self.tok_encode(request.args[0], add_special_tokens=False)),
                    prefix_token=self.prefix_token_id,
                    max_seq_len=self.max_length,
                    context_len=1,
                )
            ]
            for request in requests
        ]
        values = iter(self._loglikelihood_tokens([window for text in windows for window in text]))
        return [sum(next(values)[0] for _ in text) for text in windows]

    def generate_until(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[str]:
        """Generate text after each context, up to the first of the task's stop strings.

        Raises ValueError for a generation option that is not supported, such as beam search.
        """
        return [self._generate(number, *request.args) for number, request in enumerate(requests)]

    def _generate(self, number: int, context: str, options: dict[str, Any]) -> str:
        temperature, limit = _temperature(options), self._max_new_tokens(options)
        if _REFUSED in context:
            return _NO_TEXT  # an empty one is right where a question has no answer
        until = options.get("until") or []
        stops = [stop for stop in ([until] if isinstance(until, str) else until) if stop]
        ids = (self.tok_encode(context) or [self.prefix_token_id])[-(self.max_length - limit) :]
        new: list[int] = []

        def add(token: int) -> None:
            new.append(token)
            text = self.model.decode(new, skip_special=True) if stops else ""
            if any(stop in text for stop in stops):
                raise _StopStringFound

        with suppress(_StopStringFound):
            self.model.generate_ids(ids, max_new_tokens=limit, temperature=temperature, seed=number, on_token=add)
        text = self.model.decode(new, skip_special=True)
        for stop in stops:
            text = text.split(stop)[0]
        self.cache_hook.add_partial("generate_until", (context, options), text)
        return text

    def _max_new_tokens(self, options: dict[str, Any]) -> int:
        """Maximum tokens to generate, which must leave room for a context."""
        limit = int(
            next((options[name] for name in _MAX_NEW_TOKENS_NAMES if options.get(name) is not None), self.max_gen_toks)
        )
        if not 1 <= limit < self.max_length:
            raise ValueError(
                f"max_gen_toks must be in 1..{self.max_length - 1} for {self.model.name}, whose context is "
                f"{self.max_length} tokens, got {limit}: set it in the task's generation_kwargs"
            )
        return limit


_REFUSED = "\ue000the chat template refuses this item\ue000"
"""Stands for a chat that the template refuses; the harness may put text around it."""


_NO_TEXT = "\ue000"
"""What is generated for such a chat."""


class _StopStringFound(Exception):
    """Raised when a stop string has been generated."""


_MAX_NEW_TOKENS_NAMES = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
"""Names that tasks use for the maximum number of new tokens, first the harness's own."""
_SAMPLING_OPTIONS = {"top_p": 1.0, "top_k": 0, "min_p": 0.0, "typical_p": 1.0}
"""Options that apply only to sampling, with the values that have no effect."""
_IGNORED_DEFAULTS = {"num_beams": 1, "repetition_penalty": 1.0, "num_return_sequences": 1, "use_cache": True}
"""Unsupported options, with the values that have no effect."""


def _temperature(options: dict[str, Any]) -> float:
    """The temperature in a task's options, 0 for greedy; ValueError for an option that is not supported."""
    temperature = float(options.get("temperature") or 0.0) if options.get("do_sample") is not False else 0.0
    no_effect = _IGNORED_DEFAULTS | _SAMPLING_OPTIONS
    for name, value in options.items():
        if name in ("until", "do_sample", "temperature", *_MAX_NEW_TOKENS_NAMES) or value is None:
            continue
        if name in _SAMPLING_OPTIONS and temperature == 0:
            continue
        if name not in no_effect or value != no_effect[name]:
            raise ValueError(
                f"generate_until takes until, max_gen_toks, do_sample and temperature, got {name}={value!r}: leave it "
                "out of the task's generation_kwargs"
            )
    return temperature
