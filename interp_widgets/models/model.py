"""`Model`: the model type of all analyses, with tokens, hooks, weights and generation."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Hashable, Iterable, Sequence
from importlib import metadata
from typing import Any

import torch
from torch import Tensor

from interp_widgets.arguments import checked
from interp_widgets.version import __version__

from . import engine, generation, tokens
from .chat import Chat, ChatText, Messages, PromptInput, is_chat, write_chat
from .network import Backend, Network
from .profile import PROBE, ModelProfile, ReadText, profile_of, vocabulary_words
from .self_check import SelfCheck
from .state import facts, note_loaded

_version = functools.cache(metadata.version)  # reads a file each time


class Model(Network):
    """A language model with its tokenizer, as returned by `load_model`.

    Beginning-of-sequence (BOS) policy: text gets a BOS exactly if the model's own tokenizer adds one (LLaMA, Mistral
    and Gemma do; GPT-2, Qwen and GPT-NeoX do not), and a TransformerLens model given by the user keeps its
    ``cfg.default_prepend_bos``. `prepend_bos` holds the policy; every method that takes text can override it. Token ids
    are used unchanged, and for a list of messages the tokenizer's chat template decides (see `chat`). The model reads
    the BOS, but results leave it out of their axes.

    Sizes: n_layers, n_heads, n_kv_heads (key/value heads, n_heads unless they are shared), d_model, d_head, d_mlp,
    d_vocab, n_ctx (positions). `source` is the argument for loading the model again: a demo name, folder or hub name;
    None for a model from memory. `shares_weights`: whether the transformers or TransformerLens model that it was made
    from shares its weights, so that an in-place edit of one edits both. `lock` is held while the model computes, so
    that a run in a cell and a widget's run never see each other's hooks.

    Example:
        >>> model.n_layers, model.d_model, model.prepend_bos
        (6, 192, True)
        >>> ids = model.tokens("Paris is in")
        >>> model.token_strings(ids)
        ('<|bos|>', 'P', 'aris', ' is', ' in')
        >>> run = model.run(ids, capture="blocks.3.hook_resid_post")
        >>> run.logits.shape, run.activations["blocks.3.hook_resid_post"].shape
        (torch.Size([1, 5, 4096]), torch.Size([1, 5, 192]))
    """

    def __init__(
        self,
        tl_model: Any,
        *,
        name: str,
        backend: Backend,
        self_check: SelfCheck,
        source: str | None = None,
        tokenizer: Any = None,
        processed: bool = False,
        prepend_bos: bool = False,
        stop_ids: Iterable[int] = (),
        parameters: int | None = None,
        shares_weights: bool = False,
        allow_mismatch: bool = False,
    ) -> None:
        super().__init__(
            tl_model,
            name=name,
            backend=backend,
            processed=processed,
            bos_token_id=None if tokenizer is None else tokenizer.bos_token_id,
            prepend_bos=prepend_bos,
            parameters=parameters,
            caches=self_check.caches,
        )
        self.source = source
        self.allow_mismatch = allow_mismatch
        """Whether it was loaded although the weights in its files are not those that its config declares."""
        self.shares_weights = shares_weights
        self.self_check = self_check
        self.tokenizer = tokenizer
        self.eos_token_id: int | None = None if tokenizer is None else tokenizer.eos_token_id
        self._stop_ids = frozenset(stop_ids) | ({self.eos_token_id} if self.eos_token_id is not None else set())
        self._vocabulary_read: tuple[Any, Hashable, tokens.Vocabulary] = (None, None, tokens.Vocabulary())
        self._words_read: tuple[Any, Hashable, tuple[str, ...]] = (None, None, ())
        self._last_profile: ModelProfile | None = None
        self._said_bos = False
        note_loaded(self)

    def __repr__(self) -> str:
        size = f"{self.n_layers} layers, d_model {self.d_model}, {self.parameter_count / 1e6:.1f}M parameters"
        kind = f"{str(self.dtype).removeprefix('torch.')} on {self.device}"
        shared = ", weights shared" if self.shares_weights else ""
        return f"Model({self.name!r}, {size}, {self.backend}, {kind}{shared})"

    @property
    def _vocabulary(self) -> tokens.Vocabulary:
        """How the tokenizer writes text now: tokens may have been added since the last look."""
        before, key, vocabulary = self._vocabulary_read
        if self.tokenizer is None:
            return tokens.Vocabulary()
        now = tokens.Vocabulary.key(self.tokenizer)
        if before is not self.tokenizer or key != now:
            vocabulary = tokens.Vocabulary.of(self.tokenizer)
            self._vocabulary_read = self.tokenizer, now, vocabulary
        return vocabulary

    def provenance(self) -> dict[str, str | int | float | bool]:
        """Everything needed to repeat a computation: model, weights, backend, dtype, device and versions.

        ``tokenizer`` and ``chat_template`` are hashes, ``adds_bos`` says whether a text gets a BOS. If the model
        differs from the loaded one in more than its weights (hooks, modules, functions, settings, buffers), ``edited``
        describes the difference, and ``edit_key`` identifies it.
        """
        packages = {"torch": "torch", "transformer_lens": "transformer-lens", "transformers": "transformers"}
        values: dict[str, str | int | float | bool] = {
            "model": self.name,
            **facts(self),
            "device": str(self.device),
            "shares_weights": self.shares_weights,
        }
        values |= {key: _version(package) for key, package in packages.items()}
        values["interp_widgets"] = __version__
        return values

    @property
    def profile(self) -> ModelProfile:
        """What a short pass measures of the model in its present state: attention sink, norms of the residual stream,
        what is common to all logits, seconds of a pass, words of the vocabulary; kept until the state changes."""
        self._last_profile = profile_of(self, self._read_probe, self.single_token_words)
        return self._last_profile

    @property
    def last_profile(self) -> ModelProfile | None:
        """`profile` as last measured, which may be that of an earlier state; None before it was asked for. Does not
        wait for a model that computes."""
        return self._last_profile

    def _read_probe(self) -> ReadText:
        if self.tokenizer is None:
            ids = torch.randint(
                self.d_vocab, (len(PROBE.split()),), generator=torch.Generator().manual_seed(0)
            ).tolist()
        else:
            (ids,) = tokens.token_lists(self.tokenizer, [PROBE])
        return ReadText(tuple(ids), self.bos_token_id, self.chat_template is not None)

    def single_token_words(self) -> tuple[str, ...]:
        """The words that are single tokens of the vocabulary, each with its leading space, in the order of their ids,
        which is about that of their frequency: tokens of a space and at least two letters. Some are the beginnings of
        longer words. Empty without a tokenizer."""
        if self.tokenizer is None:
            return ()
        before, key, words = self._words_read
        now = tokens.Vocabulary.key(self.tokenizer)
        if before is not self.tokenizer or key != now:
            ids = range(min(self.d_vocab, len(self.tokenizer)))
            special = self._vocabulary.special
            strings = tokens.single_token_strings(self.tokenizer, ids, self._vocabulary)
            words = vocabulary_words(strings, [token in special for token in ids])
            self._words_read = self.tokenizer, now, words
        return words

    # ---- text and tokens

    def _no_such_token(self, token: int) -> str:
        if self.tokenizer is None or not self.d_vocab <= token < len(self.tokenizer):
            return super()._no_such_token(token)
        written = self.tokenizer.convert_ids_to_tokens(token)
        return (
            f"the tokenizer has tokens that the model does not: {written!r} is token {token}, but {self.name} knows "
            f"only 0..{self.d_vocab - 1}; leave it out of the text, or load a model "
            "whose embedding has been resized for it"
        )

    def _need_tokenizer(self) -> Any:
        if self.tokenizer is None:
            raise ValueError(
                f"{self.name} was loaded without a tokenizer: give token ids instead of text, "
                "or load it with load_model(..., tokenizer=...)"
            )
        return self.tokenizer

    def _read(self, texts: Sequence[str]) -> list[list[int]]:
        lists = tokens.token_lists(self._need_tokenizer(), texts)
        for ids in lists:
            self._check_known(ids)
        return lists

    def _check_known(self, ids: Sequence[int]) -> None:
        """Raise a ValueError if a text has a token that only the tokenizer knows."""
        if max(ids, default=0) >= self.d_vocab:
            raise ValueError(self._no_such_token(max(ids)))

    @property
    def chat_template(self) -> str | None:
        """The Jinja template that writes a list of messages as text; None for a model without one."""
        template = None if self.tokenizer is None else self.tokenizer.chat_template
        return template if isinstance(template, str | None) else template.get("default")

    @checked
    def chat(self, messages: Messages) -> Chat:
        """Messages ``{"role": ..., "content": ...}`` as the tokenizer's template writes them, with the opening of the
        model's answer: ``tokenizer.apply_chat_template(messages, add_generation_prompt=True)``.

        Raises ValueError for bad messages, messages that the template refuses or omits, or a model without a template.
        """
        return write_chat(self._need_tokenizer(), messages, self.name)

    @checked
    def tokens(self, text: str | Messages, *, prepend_bos: bool | None = None) -> list[int]:
        """Token ids of a text, with a BOS by the model's policy or by ``prepend_bos``, or of a list of messages as
        `chat` writes them, where the template decides about the BOS.

        Special tokens written in the text, such as ``</s>``, are read as special tokens.
        """
        written, prepend_bos = self._written(text, prepend_bos)
        (ids,) = self._read([written])
        return self.with_bos(ids, prepend_bos)

    @checked
    def with_bos(self, ids: Sequence[int], prepend_bos: bool | None = None) -> list[int]:
        """Ids of a text with a BOS in front, by the model's policy or by ``prepend_bos``.

        A text that already begins with its BOS, such as decoded ids or a rendered chat, gets no second one; the first
        time, a warning says so.
        """
        front = self.prepend_bos if prepend_bos is None else prepend_bos
        if front and self.bos_token_id is None:
            raise ValueError(f"prepend_bos=True, but the tokenizer of {self.name} has no BOS token; leave it out")
        if not front or self.bos_token_id is None:
            return list(ids)
        return [self.bos_token_id, *self.without_bos(ids)]

    @checked
    def without_bos(self, ids: Sequence[int]) -> list[int]:
        """Ids of a text without the BOS that it begins with, if it does; the first time, a warning says so."""
        if not self.begins_with_bos(ids):
            return list(ids)
        if not self._said_bos:
            self._said_bos = True
            warnings.warn(self.own_bos_note, stacklevel=2)
        return list(ids[1:])

    @checked
    def begins_with_bos(self, ids: Sequence[int]) -> bool:
        """Whether ids begin with the model's BOS."""
        return self.bos_token_id is not None and len(ids) > 0 and ids[0] == self.bos_token_id

    @checked
    def is_end(self, text: str) -> bool:
        """Whether a text is nothing but one of the tokens at which the model ends its text."""
        return self.tokenizer is not None and text.strip() in {self.decode([token]).strip() for token in self._stop_ids}

    @property
    def own_bos_note(self) -> str:
        """The sentence about a text that brings its own BOS."""
        return (
            f"the text already begins with {self.tokenizer.bos_token!r}, the beginning-of-sequence token of "
            f"{self.name}, so no second one is put in front of it"
        )

    def _written(self, prompt: str | Messages, prepend_bos: bool | None) -> tuple[str, bool | None]:
        """A prompt as text, and whether it gets a BOS; in a chat the template decides."""
        if isinstance(prompt, str) and not isinstance(prompt, ChatText):
            return prompt, prepend_bos
        if prepend_bos is not None:
            raise ValueError(
                "prepend_bos is for text: in a list of messages the chat template writes the BOS; leave it out"
            )
        return str(prompt) if isinstance(prompt, ChatText) else self.chat(prompt).text, False

    @checked
    def token_lists(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of many texts at once, each as from `tokens` without a BOS."""
        return self._read(texts) if len(texts) else []

    @checked
    def split(
        self,
        prompt: PromptInput | Tensor,
        response: str | Tensor | Sequence[int] | None,
        *,
        prepend_bos: bool | None = None,
    ) -> tuple[list[int], list[int]]:
        """Prompt ids and response ids.

        Two texts are tokenized together and cut where the prompt ends, so that the model reads exactly the text; a
        token that reaches across the cut belongs to the response. Ids are used unchanged, without a BOS, and a response
        text after prompt ids is tokenized as their continuation. The messages of a chat become the text that `chat`
        writes.
        """
        if isinstance(prompt, str) or is_chat(prompt):
            text, prepend_bos = self._written(prompt, prepend_bos)
            if isinstance(response, str):
                ids, spans = tokens.encoded(self._need_tokenizer(), text + response)
                self._check_known(ids)
                cut = tokens.tokens_before(spans, len(text))
                return self.with_bos(ids[:cut], prepend_bos), ids[cut:]
            (ids,) = self._read([text])
            prompt_ids = self.with_bos(ids, prepend_bos)
        else:
            prompt_ids = self._checked_ids(prompt)  # type: ignore[arg-type]
            if isinstance(response, str):
                continued = tokens.following(self._need_tokenizer(), prompt_ids, response, self._vocabulary)
                self._check_known(continued)
                return prompt_ids, continued
        return prompt_ids, [] if response is None else self._checked_ids(response)

    @checked
    def token_strings(self, ids: Tensor | Sequence[int]) -> tuple[str, ...]:
        """One readable string per id, with leading spaces; special tokens are written out.

        A character that spans several tokens is shown at the first; tokens with only its later bytes are shown as
        ``⋯``. The joined strings without ``⋯`` are the text.
        """
        checked_ids = self._checked_ids(ids)
        if self.tokenizer is None:
            return tuple(f"[{i}]" for i in checked_ids)
        return tokens.token_strings(self.tokenizer, checked_ids, self._vocabulary)

    @checked
    def single_token_strings(self, ids: Tensor | Sequence[int]) -> tuple[str, ...]:
        """`token_strings` of every id separately, for ids that are no sequence, such as the likeliest next tokens."""
        checked_ids = self._checked_ids(ids)
        if self.tokenizer is None:
            return tuple(f"[{i}]" for i in checked_ids)
        return tokens.single_token_strings(self.tokenizer, checked_ids, self._vocabulary)

    @checked
    def token_spans(self, text: str) -> list[tuple[int, int]]:
        """Character span [start, end) in ``text`` of each of its tokens, without the BOS."""
        return tokens.encoded(self._need_tokenizer(), text)[1]

    @checked
    def is_special(self, ids: Tensor | Sequence[int]) -> list[bool]:
        """Whether each id is a special token (BOS, EOS, padding, or one added as special)."""
        special = self._vocabulary.special
        return [i in special for i in self._checked_ids(ids)]

    @checked
    def decode(self, ids: Tensor | Sequence[int], *, skip_special: bool = False) -> str:
        """The text of token ids; special tokens are written out unless ``skip_special``."""
        tokenizer = self._need_tokenizer()
        return tokens.decode(tokenizer, self._checked_ids(ids), self._vocabulary, skip_special=skip_special)

    # ---- writing text

    @checked
    def generate(
        self,
        prompt: PromptInput | Tensor,
        *,
        max_new_tokens: int = 40,
        temperature: float = 0.0,
        seed: int = 0,
        prepend_bos: bool | None = None,
        keep_end: bool = False,
        check: Callable[[], None] | None = None,
        on_token: Callable[[int], None] | None = None,
    ) -> str:
        """The text that the model generates after a prompt; options as in `generate_ids`."""
        ids, _ = self.split(prompt, None, prepend_bos=prepend_bos)
        new = self.generate_ids(
            ids, max_new_tokens=max_new_tokens, temperature=temperature, seed=seed, keep_end=keep_end, check=check,
            on_token=on_token,
        )  # fmt: skip
        # SentencePiece decoders drop a leading space, so the continuation is cut from the decoded full text
        before, whole = self.decode(ids), self.decode([*ids, *new])
        return whole[len(before) :] if whole.startswith(before) else self.decode(new)

    @checked
    def generate_ids(
        self,
        ids: Tensor | Sequence[int],
        *,
        max_new_tokens: int = 40,
        temperature: float = 0.0,
        seed: int = 0,
        keep_end: bool = False,
        check: Callable[[], None] | None = None,
        on_token: Callable[[int], None] | None = None,
    ) -> list[int]:
        """Token ids that follow ``ids``, without the prompt.

        Args:
            ids: the prompt, at least one token.
            max_new_tokens: most tokens to write; prompt and these together must fit ``n_ctx``.
            temperature: 0 takes the likeliest token; above 0 samples from softmax(logits / temperature).
            seed: of the sampling; the same seed gives the same text.
            keep_end: if the model ends at once, give its end token, such as ``</s>``, instead of nothing. Elsewhere
                the end token is left out.
            check: called before every token; raises to cancel.
            on_token: called with every new token id.

        Both are called without the model's lock: other threads may use the model between two tokens. If one edits it
        (`ModelEdit.apply`, `top_k`), a ValueError says so.
        """
        prompt = self._checked_ids(ids)
        if not prompt:
            raise ValueError("the prompt holds no token: write at least one word, or give a BOS token")
        if max_new_tokens < 1:
            raise ValueError(f"max_new_tokens must be at least 1, got {max_new_tokens}")
        if not temperature >= 0:
            raise ValueError(f"temperature must be 0 (greedy) or above, got {temperature}")
        room = self.n_ctx - len(prompt)
        if max_new_tokens > room:
            advice = f"ask for at most {room}, or shorten the prompt" if room > 0 else "shorten the prompt"
            raise ValueError(
                f"{len(prompt)} prompt tokens and {max_new_tokens} new ones do not fit the model's context "
                f"of {self.n_ctx} tokens: {advice}"
            )
        return generation.generate_ids(
            generation.stepper(self),
            prompt,
            device=self.device,
            max_new_tokens=max_new_tokens,
            temperature=float(temperature),
            seed=seed,
            stop=self._stop_ids,
            keep_end=keep_end,
            check=check,
            on_token=on_token,
        )

    # ---- the fast engine

    @checked
    def prefix(self, embeddings: Tensor) -> engine.Prefix:
        """Keys and values of the first positions, computed once; see `interp_widgets.models.engine.prefix`."""
        return engine.prefix(self, embeddings)

    @checked
    def forward(
        self, embeddings: Tensor, *, positions: slice | Tensor | None = None, prefix: engine.Prefix | None = None
    ) -> Tensor:
        """Logits (batch, positions, d_vocab) from token embeddings (batch, tokens, d_model); see
        `interp_widgets.models.engine.forward`."""
        if isinstance(positions, Tensor):
            _check_positions(positions, embeddings)
        return engine.forward(self, embeddings, positions=positions, prefix=prefix)


def _check_positions(positions: Tensor, embeddings: Tensor) -> None:
    if positions.is_floating_point() or positions.is_complex() or positions.dtype == torch.bool or positions.ndim != 1:
        kind = f"{positions.dtype} of shape {tuple(positions.shape)}"
        raise ValueError(f"positions must be a slice or an integer tensor (n,), got {kind}")
    tokens = embeddings.shape[1] if embeddings.ndim == 3 else 0
    wrong = next((int(i) for i in positions.tolist() if not -tokens <= i < tokens), None)
    if wrong is not None and tokens:
        raise ValueError(f"positions must be in {-tokens}..{tokens - 1} for these {tokens} tokens, got {wrong}")
