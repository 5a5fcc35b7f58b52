"""An annotator that asks a language model behind any endpoint that speaks OpenAI's chat completions."""

from __future__ import annotations

import errno
import functools
import hashlib
import importlib
import json
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from interp_widgets.arguments import checked
from interp_widgets.atomic import named_path, whole_file
from interp_widgets.data.annotators.annotation import Annotation
from interp_widgets.data.annotators.conversation import NonsenseError, messages, read_answer, short
from interp_widgets.data.files import cache_folder, is_unicode

OPENAI = "https://api.openai.com/v1"
_NO_KEY = "none"
"""The key sent to servers that need none."""
_SHORTEST_KEY = 8
_LONGEST_WAIT = 30.0
_LONGEST_REPLY = 1_000_000
"""Bytes of a reply; the requested JSON has a few hundred."""
_FORMAT = 1
"""Version of the cached answers; part of their hash."""


@checked
class EndpointAnnotator:
    """Asks a language model what words have in common, through OpenAI's chat completions protocol.

    It works with OpenAI and every server that speaks its protocol (vLLM, llama.cpp, Ollama, ...). The temperature is 0;
    answers are cached on disk. The key is read from the environment at each call and is not stored. Requests that time
    out, fail on the server or return something other than the requested JSON are sent again; after the last attempt the
    annotation is empty and its ``failure`` says why.

    Args:
        model: name of the model at the endpoint.
        base_url: address of the endpoint, such as "http://localhost:8000/v1"; OPENAI_BASE_URL or OpenAI's by default.
        key_variable: name of the environment variable with the key. Your own server may need none.
        cache: folder of the cached answers; "default" for this user's, None for no cache.
        timeout: seconds from sending a request to the end of its reply.
        retries: how often a failed request is sent again.
        pause: seconds before the first retry, doubled each time.
        parallel: requests that `annotate_concepts` sends at the same time.

    Raises:
        ImportError: the `openai` package is missing at the first request: install interp_widgets[annotate].
        ValueError: an option is out of range, or the address has a user name in it.
        OSError: the cache cannot be written to.

    Source: From Language Modeling to Instruction Following (Wu et al. 2024), appendix D.1, whose three prompts
    (the concept, the tasks, the linguistic level) are joined here.

    Example:
        >>> EndpointAnnotator("llama-3", base_url="http://localhost:8000/v1")
        EndpointAnnotator('llama-3', 'http://localhost:8000/v1')
    """

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        key_variable: str = "OPENAI_API_KEY",
        cache: str | os.PathLike[str] | None = "default",
        timeout: float = 60,
        retries: int = 3,
        pause: float = 1,
        parallel: int = 4,
    ) -> None:
        self.base_url = (base_url or os.environ.get("OPENAI_BASE_URL") or OPENAI).rstrip("/")
        if not _is_plain_address(self.base_url):
            raise ValueError(
                "base_url must be a plain address such as 'http://localhost:8000/v1', without user name or key: "
                "put the key into an environment variable"
            )
        if not model.strip() or not model.isprintable():
            got = ascii(model) if model.strip() else "an empty str"
            raise ValueError(f"model must be the name of a model at the endpoint, got {got}")
        if not key_variable.strip() or not key_variable.isprintable():
            raise ValueError("key_variable must be the name of an environment variable")
        if not (0 < timeout < math.inf and 0 <= pause < math.inf) or retries < 0 or parallel < 1:
            raise ValueError(
                f"timeout must be above 0, retries and pause 0 or more, parallel 1 or more, "
                f"got {timeout}, {retries}, {pause} and {parallel}"
            )
        self.model, self.key_variable = model, key_variable
        self.timeout, self.retries, self.pause = timeout, retries, pause
        self.parallel = parallel
        self._idle: list[Any] = []
        self.cache = default_cache() if cache == "default" else None if cache is None else named_path(cache, "cache")

    def __repr__(self) -> str:
        return f"EndpointAnnotator({self.model!r}, {self.base_url!r})"

    @property
    def name(self) -> str:
        """The model's name."""
        return self.model

    def annotate(self, words: Sequence[str], *, check: Callable[[], None] | None = None) -> Annotation:
        """The model's annotation of these words; empty, with a reason in ``failure``, if it gives no answer."""
        question = ", ".join(words)
        if not is_unicode(question):
            raise ValueError("words must be valid Unicode, but one of them has one half of a surrogate pair")
        path = self._path(question)
        if path is not None:
            _check_cache(path.parent)
        cached = None if path is None else _read(path)
        if cached is not None:
            return self._annotation(cached)
        try:
            answer = self._ask(question, check)
        except _Failed as failed:
            return Annotation(source=self.name, failure=str(failed))
        if path is not None:
            _write(path, answer)
        return self._annotation(answer)

    def _annotation(self, answer: dict[str, Any]) -> Annotation:
        return Annotation(answer["description"], tuple(answer["scenarios"]), answer["level"], self.name)

    def _path(self, question: str) -> Path | None:
        """The file of the cached answer to a question."""
        if self.cache is None:
            return None
        request = json.dumps([_FORMAT, self.base_url, self.model, messages(question)], ensure_ascii=False)
        return self.cache / f"{hashlib.sha256(request.encode()).hexdigest()}.json"

    # ---- the conversation

    def _ask(self, question: str, check: Callable[[], None] | None) -> dict[str, Any]:
        """The model's answer, checked; _Failed after the last attempt."""
        openai = _openai()
        key = self._key()
        hide = functools.partial(_redacted, key=key)
        conversation = messages(question)
        attempt = 0
        while True:
            wait, final = self.pause * 2**attempt, attempt == self.retries
            try:
                return read_answer(hide(_content(self._reply(openai, key, conversation, check))))
            except NonsenseError as error:
                reason, wait = f"its answer is not the requested JSON: {error}", 0.0
                again = f"That was not the requested JSON: {error}. Answer with the JSON object only."
                conversation = [*messages(question), {"role": "user", "content": again}]
            except openai.APIStatusError as error:
                reason = self._refusal(error.status_code, hide(error.message))
                wait = max(wait, _asked_to_wait(error))
                # another attempt cannot repair a wrong key, model or request
                final = final or (error.status_code < 500 and error.status_code not in (408, 409, 429))
            except (openai.APITimeoutError, _TimedOut):
                reason = f"no reply within {self.timeout:g} seconds"
            except _Unusable as error:
                reason, final = str(error), True
            except openai.APIConnectionError as error:
                reason = f"no connection ({short(hide(str(error.__cause__ or error)))})"
            except (openai.APIError, ValueError) as error:
                reason = f"its reply is not a chat completion ({short(hide(str(error)))})"
            except RecursionError:
                reason = "its reply is not a chat completion (it is nested too deeply)"
            if final:
                raise _Failed(f"{self.model} at {self.base_url}: {reason}") from None
            _sleep(wait, check)
            attempt += 1

    def _refusal(self, status: int, message: str) -> str:
        if status == 401:  # the server's own message quotes a part of the key
            return f"HTTP 401: the endpoint refuses the key in the environment variable {self.key_variable}"
        return f"HTTP {status}: {short(message.removeprefix(f'Error code: {status} - '))}"

    def _key(self) -> str:
        key = os.environ.get(self.key_variable, "").strip()
        if not key and self.base_url == OPENAI:
            raise ValueError(f"the environment variable {self.key_variable} is empty: put the endpoint's key there")
        if not (key.isascii() and key.isprintable()):
            raise ValueError(
                f"the environment variable {self.key_variable} holds a line break or another character that no key "
                "has: put the endpoint's key there, and nothing else"
            )
        return key or _NO_KEY

    def _reply(
        self, openai: Any, key: str, conversation: list[dict[str, str]], check: Callable[[], None] | None
    ) -> Any:
        """The reply to one request, with its last byte; _TimedOut after `timeout` seconds."""
        connections = self._idle.pop() if self._idle else _connections(openai)
        # `_ask` retries, not the client, so that it can be cancelled and also retries unusable answers
        try:
            client = openai.OpenAI(
                api_key=key, base_url=self.base_url, timeout=self.timeout, max_retries=0, http_client=connections
            )
        except _http(openai).InvalidURL as error:
            raise _Unusable(f"no request can be sent to this address ({short(str(error))})") from error
        ended: list[Any] = []

        def send() -> None:
            try:
                reply = client.chat.completions.create(model=self.model, messages=conversation, temperature=0)
                ended.append(lambda: reply)
            except BaseException as error:
                wrapped = isinstance(error.__cause__, _Unusable)  # as some versions of the client do
                ended.append(error.__cause__ if wrapped else error)

        # in a thread of its own: the client's timeout is for each part of a reply, and it cannot be cancelled
        thread, until = threading.Thread(target=send, daemon=True), time.monotonic() + self.timeout
        thread.start()
        try:
            while not ended:
                if check is not None:
                    check()
                if (left := until - time.monotonic()) <= 0:
                    raise _TimedOut
                thread.join(min(left, 0.05))
        except BaseException:
            connections.close()  # which ends the thread
            raise
        self._idle.append(connections)
        if isinstance(ended[0], BaseException):
            raise ended[0]
        return ended[0]()

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_idle": []}


def _is_plain_address(address: str) -> bool:
    """Whether a web address has a host, and neither a user, a query, a fragment nor characters that none may have."""
    if not address.isprintable() or any(map(str.isspace, address)):  # urlsplit leaves line breaks and tabs out
        return False
    try:
        parts = urlsplit(address)
        host = parts.hostname or ""
        return bool(
            parts.scheme in ("http", "https")
            and host.encode("idna")
            and parts.port != 0
            and not any(mark in address for mark in "@?#\\")
        )
    except ValueError:  # brackets that do not match, a port that is none, a host with a part that is empty or too long
        return False


def _connections(openai: Any) -> Any:
    """A client without the key that reads at most `_LONGEST_REPLY`; cached, because opening one takes longer than many
    requests."""
    kind, http = openai.DefaultHttpxClient, _http(openai)

    class SizeLimitedStream(http.SyncByteStream):  # type: ignore[misc, name-defined]
        """A reply stream that raises an error if it exceeds the size limit."""

        def __init__(self, stream: Any) -> None:
            self._stream = stream

        def __iter__(self) -> Iterator[bytes]:
            size = 0
            for part in self._stream:
                size += len(part)
                if size > _LONGEST_REPLY:
                    raise _Unusable(f"its reply is longer than {_LONGEST_REPLY:,} bytes")
                yield part

        def close(self) -> None:
            self._stream.close()

    def limit_size(response: Any) -> None:
        if response.headers.get("content-encoding", "identity") != "identity":
            raise _Unusable("its reply is compressed, which was not asked for")  # a little may become very much
        response.stream = SizeLimitedStream(response.stream)

    return kind(headers={"Accept-Encoding": "identity"}, event_hooks={"response": [limit_size]})


def _http(openai: Any) -> Any:
    """The package that openai sends its requests with: httpx, or what it has in its place."""
    return importlib.import_module(openai.DefaultHttpxClient.__mro__[1].__module__.partition(".")[0])


def _openai() -> Any:
    try:
        import openai
    except ImportError as error:
        raise ImportError(
            "asking an endpoint needs the openai package: pip install 'interp_widgets[annotate]'"
        ) from error
    return openai


def _redacted(text: str, key: str) -> str:
    """A message of the server without the key; placeholders such as "x" or "none" stay."""
    return text if key == _NO_KEY or len(key) < _SHORTEST_KEY else text.replace(key, "***")


class _TimedOut(Exception):
    """A reply is not complete in time."""


class _Unusable(Exception):
    """A reply that is not read, and why."""


class _Failed(Exception):
    """No usable answer after the last attempt; the message says why and does not contain the key."""


def default_cache() -> Path:
    """The user's folder of cached answers."""
    return cache_folder("annotations")


def _content(reply: Any) -> str:
    """The text of a chat completion; some servers omit parts of the protocol."""
    choices = getattr(reply, "choices", None)
    text = getattr(getattr(choices[0], "message", None), "content", None) if choices else None
    if not isinstance(text, str):
        raise NonsenseError("the reply has no text")
    return text


def _asked_to_wait(error: Any) -> float:
    """Seconds that the server asks to wait, at most `_LONGEST_WAIT`."""
    try:
        seconds = float(error.response.headers.get("retry-after", "0"))
    except ValueError:  # the header may also be a date
        return 0.0
    return min(max(seconds, 0.0), _LONGEST_WAIT)


def _sleep(seconds: float, check: Callable[[], None] | None) -> None:
    """Wait in short steps, so that it can be cancelled."""
    until = time.monotonic() + min(seconds, _LONGEST_WAIT)
    while (left := until - time.monotonic()) > 0:
        if check is not None:
            check()
        time.sleep(min(left, 0.1))


def _read(path: Path) -> dict[str, Any] | None:
    """A cached answer; None where there is none or it cannot be read."""
    try:
        return read_answer(path.read_text(encoding="utf8"))
    except (OSError, UnicodeDecodeError, NonsenseError):
        return None


def _check_cache(folder: Path) -> None:
    """Create the cache folder; an OSError, before any request, if it cannot be written to."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, "Permission denied")
    except OSError as error:
        raise _no_cache(folder, error) from error


def _write(path: Path, answer: dict[str, Any]) -> None:
    """Cache an answer."""
    try:
        with whole_file(path) as draft:
            draft.write_text(json.dumps(answer, ensure_ascii=False), encoding="utf8")
    except OSError as error:
        raise _no_cache(path.parent, error) from error


def _no_cache(folder: Path, error: OSError) -> OSError:
    reason = os.strerror(error.errno) if error.errno else error
    return OSError(
        f"the answers cannot be kept in {folder} ({reason}): give another folder as cache=, or cache=None to keep none"
    )
