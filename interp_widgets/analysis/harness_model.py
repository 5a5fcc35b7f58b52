"""A model of this package behind the interface of lm-evaluation-harness, which has to be installed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from interp_widgets.analysis._core.run import RunOptions
from interp_widgets.analysis.continuations import Continuation, score_continuations
from interp_widgets.models import Model


class HarnessModel(TemplateLM):  # type: ignore[misc]
    """What `as_lm_eval` returns."""

    model: Model

    def __init__(self, model: Model, batch_size: int | None = None) -> None:
        super().__init__()
        self.model = model
        self.tokenizer = model.tokenizer
        self._batch_size = batch_size

    # ---- what the harness asks of a model

    @property
    def eot_token_id(self) -> int:
        """The token that ends a text, or the one that begins it where there is none."""
        eos = getattr(self.tokenizer, "eos_token_id", None)
        token = self.model.bos_token_id if eos is None else eos
        if token is None:
            raise ValueError(f"the tokenizer of {self.model.name} has neither an end-of-text nor a BOS token")
        return int(token)

    @property
    def prefix_token_id(self) -> int:
        """What stands before a text without a context."""
        return self.eot_token_id if self.model.bos_token_id is None else int(self.model.bos_token_id)

    @property
    def max_length(self) -> int:
        """Most tokens of context and continuation together."""
        return int(self.model.n_ctx)

    @property
    def max_gen_toks(self) -> int:
        """Most tokens that are written where a task does not say."""
        return min(256, self.max_length // 2)

    @property
    def tokenizer_name(self) -> str:
        """Names the tokenizer where the harness keeps what it has made of a chat."""
        return str(getattr(self.tokenizer, "name_or_path", "") or self.model.name)

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """The text of a chat, by the tokenizer's own template."""
        return str(
            self.tokenizer.apply_chat_template(
                chat_history,
                tokenize=False,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=not add_generation_prompt,
            )
        )

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """Token ids, with a BOS by the model's policy unless the text begins with one."""
        ids = self.model.token_lists([string])[0]
        bos = self.model.bos_token_id
        wants = self.model.prepend_bos if add_special_tokens is None else add_special_tokens
        return [bos, *ids] if wants and bos is not None and ids[:1] != [bos] else ids

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, Sequence[int], Sequence[int]]], **_: Any
    ) -> list[tuple[float, bool]]:
        """Sum of the log-probabilities of each continuation, and whether it is what greedy decoding would write."""
        wanted = [self._cut(context, own) for _, context, own in requests]
        scored = score_continuations(self.model, wanted, RunOptions(batch_size=self._batch_size))
        answers = [(float(one.log_probability.sum()), one.greedy) for one in scored]
        for request, answer in zip(requests, answers, strict=True):
            if request[0] is not None:
                self.cache_hook.add_partial("loglikelihood", request[0], answer)
        return answers

    def _cut(self, context: Sequence[int], own: Sequence[int]) -> Continuation:
        """A context that is too long loses its beginning, as in the harness's own models."""
        room = self.max_length + 1 - len(own)
        if room < 1:
            raise ValueError(
                f"a continuation of {len(own)} tokens does not fit the context of {self.max_length} tokens"
            )
        return Continuation(tuple(context[-room:]), tuple(own))

    def loglikelihood_rolling(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[float]:
        """Log-likelihood of whole texts, in windows where one is longer than the model's context."""
        windows = [
            [
                (None, *make_disjoint_window(window))
                for window in get_rolling_token_windows(
                    token_list=self.tok_encode(request.args[0], add_special_tokens=False),
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
        """What the model writes after each context, up to the first of the task's stop strings."""
        texts = []
        for request in requests:
            context, options = request.args
            most = int(options.get("max_gen_toks", self.max_gen_toks))
            ids = self.tok_encode(context)[-max(1, self.max_length - most) :]
            new = self.model.generate_ids(
                ids,
                max_new_tokens=min(most, self.max_length - len(ids)),
                temperature=float(options.get("temperature", 0.0)) if options.get("do_sample") else 0.0,
            )
            text = self.model.decode(new, skip_special=True)
            stops = options.get("until") or []
            for stop in [stops] if isinstance(stops, str) else stops:
                text = text.split(stop)[0] if stop else text
            texts.append(text)
            self.cache_hook.add_partial("generate_until", (context, options), text)
        return texts
