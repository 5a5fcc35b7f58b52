"""An endpoint is asked over HTTP in the chat-completions protocol: answers, refusals, silence, and a key that stays."""

from __future__ import annotations

import errno
import gzip
import itertools
import json
import logging
import os
import pickle
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from interp_widgets.data.annotators import Annotation, Annotator, EndpointAnnotator, conversation, endpoint
from tests.data.chat_server import GOOD, KEY, Server, completion, refuse, send
from tests.waiting import LIMIT, beat

WORDS = ["January", "May", "Monday"]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("TEST_KEY", KEY)
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    found = Server()
    yield found
    found.close()


class Clock:
    """The time of the annotator: it stands still until a test moves it, or the annotator sleeps."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, moved: Callable[[], float] = lambda: 0.0) -> None:
        self.slept: list[float] = []
        self._moved = moved
        monkeypatch.setattr(endpoint, "time", self)

    def monotonic(self) -> float:
        return self._moved() + sum(self.slept)

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


def asking(server: Server, cache: Path | None = None, **options: Any) -> EndpointAnnotator:
    options = {"key_variable": "TEST_KEY", "pause": 0, "timeout": LIMIT, "retries": 2, **options}
    return EndpointAnnotator("a-model", base_url=server.url, cache=cache, **options)


@pytest.mark.seconds
def test_a_good_answer_is_asked_for_in_the_protocol(server: Server) -> None:
    server.replies = [GOOD]
    annotator = asking(server)
    found = annotator.annotate(WORDS)
    assert found == Annotation("dates", ("writing", "translation"), "semantics", "a-model")
    (request,) = server.requests
    assert (request["path"], request["model"], request["temperature"]) == ("/v1/chat/completions", "a-model", 0)
    assert request["key"] == f"Bearer {KEY}"
    roles = [message["role"] for message in request["messages"]]
    assert roles == ["system", *["user", "assistant"] * 5, "user"]
    assert request["messages"][-1]["content"] == "Words: January, May, Monday."
    assert isinstance(annotator, Annotator)
    assert annotator.name == "a-model"


def test_the_worked_examples_are_answers_that_can_be_read() -> None:
    for message in conversation.messages("some words"):
        if message["role"] == "assistant":
            conversation.read_answer(message["content"])


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('```json\n{"description": "dates.", "scenarios": [], "level": "semantic"}\n```', ("dates", (), "semantics")),
        ('Here: {"description": "verbs", "scenarios": ["None"], "level": null}', ("verbs", (), None)),
        ('{"description": "Cannot Tell", "scenarios": ["writing"], "level": "syntax"}', ("", (), None)),
        ('{"description": "", "scenarios": [], "level": null}', ("", (), None)),
    ],
)
def test_answers_in_a_wrapping_are_read(server: Server, text: str, found: tuple[Any, ...]) -> None:
    server.replies = [text]
    note = asking(server).annotate(WORDS)
    assert (note.description, note.scenarios, note.level) == found
    assert not note.failure
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("nonsense", "reason"),
    [
        ("These words are months.", "no JSON object in 'These words are months.'"),
        ('{"description": "dates", "scenarios": "writing", "level": null}', "scenarios is not a list"),
        ('{"description": "dates", "scenarios": ["cooking"], "level": null}', "unknown scenario 'cooking'"),
        ('{"description": "dates", "scenarios": [], "level": "meaning"}', "unknown level 'meaning'"),
        ('{"scenarios": []}', "no description"),
        ("[1, 2]", "no description"),
        ('{"description": "dates"', "no JSON object"),
        (None, "the reply has no text"),
    ],
)
def test_nonsense_is_asked_again_and_then_cannot_be_told(server: Server, nonsense: Any, reason: str) -> None:
    bad = lambda handler: send(handler, 200, completion(nonsense, "a-model"))
    server.replies = [bad, bad, GOOD]
    assert asking(server).annotate(WORDS).description == "dates"
    assert len(server.requests) == 3
    assert "not the requested JSON" in server.requests[1]["messages"][-1]["content"]
    server.replies = [bad]
    failed = asking(server).annotate(WORDS)
    assert failed.cannot_tell
    assert reason in failed.failure
    assert len(server.requests) == 6


@pytest.mark.parametrize(
    "reply", [lambda h: send(h, 200, {"choices": []}), lambda h: send(h, 200, b"<html>"), lambda h: send(h, 200, [])]
)
def test_replies_that_are_no_completion_fail_in_words(server: Server, reply: Any) -> None:
    server.replies = [reply]
    failed = asking(server, retries=1).annotate(WORDS)
    assert failed.cannot_tell
    assert failed.failure.startswith(f"a-model at {server.url}: its ")
    assert len(server.requests) == 2


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_busy_server_is_asked_again(server: Server, status: int) -> None:
    server.replies = [refuse(status, "busy", {"retry-after": "0.01"}), GOOD]
    assert asking(server).annotate(WORDS).description == "dates"
    assert len(server.requests) == 2
    server.replies = [refuse(status, "busy")]
    failed = asking(server).annotate(WORDS)
    assert failed.cannot_tell
    assert f"HTTP {status}: " in failed.failure
    assert "busy" in failed.failure
    assert len(server.requests) == 5


def test_a_wrong_key_is_not_tried_again_and_not_told(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = "sk-another-secret-98765"
    monkeypatch.setenv("TEST_KEY", wrong)
    server.replies = [GOOD]
    failed = asking(server).annotate(WORDS)
    assert failed.failure.endswith("HTTP 401: the endpoint refuses the key in the environment variable TEST_KEY")
    assert wrong[:6] not in failed.failure  # though the server had put it into its message
    assert len(server.requests) == 1


def test_a_silent_server_is_left_after_the_time_out(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    Clock(monkeypatch, lambda: 2 * LIMIT * len(server.requests))  # the time is over when a request has arrived
    release = threading.Event()
    server.replies = [lambda handler: release.wait(LIMIT)]
    try:
        failed = asking(server, retries=1).annotate(WORDS)
    finally:
        release.set()
    assert failed.failure == f"a-model at {server.url}: no reply within {LIMIT} seconds"
    assert len(server.requests) == 2


def test_a_server_that_is_not_there(server: Server) -> None:
    annotator = asking(server)
    server.close()
    failed = annotator.annotate(WORDS)
    assert "no connection" in failed.failure
    assert failed.cannot_tell


def test_answers_are_kept_and_not_asked_for_twice(server: Server, tmp_path: Path) -> None:
    server.replies = [GOOD]
    cache = tmp_path / "answers"
    first = asking(server, cache).annotate(WORDS)
    assert asking(server, cache).annotate(WORDS) == first
    assert len(server.requests) == 1
    asking(server, cache).annotate(WORDS[::-1])  # other words, another model: other questions
    EndpointAnnotator("b", base_url=server.url, cache=cache, key_variable="TEST_KEY").annotate(WORDS)
    assert len(server.requests) == 3
    files = sorted(cache.iterdir())
    assert [len(file.stem) for file in files] == [64] * 3
    files[0].write_text("half an ans")
    files[1].write_bytes(b"\xff\xfe")
    files[2].write_text('{"description": "dates", "scenarios": ["cooking"], "level": null}')
    assert asking(server, cache).annotate(WORDS) == first
    assert len(server.requests) == 4


def test_failures_and_answers_that_hold_the_key_are_not_kept_as_such(server: Server, tmp_path: Path) -> None:
    server.replies = [refuse(500, "busy")]
    asking(server, tmp_path, retries=0).annotate(WORDS)
    assert list(tmp_path.iterdir()) == []
    server.replies = [GOOD.replace("dates", f"dates {KEY}")]
    assert asking(server, tmp_path).annotate(WORDS).description == "dates ***"
    assert all(KEY not in file.read_text() for file in tmp_path.iterdir())


def test_a_redirect_to_another_host_does_not_take_the_key_along(server: Server) -> None:
    elsewhere = Server()
    elsewhere.replies = [GOOD]
    there = elsewhere.url.replace("127.0.0.1", "localhost") + "/chat/completions"
    server.replies = [refuse(307, "moved", {"Location": there})]
    try:
        failure = asking(server).annotate(WORDS).failure
    finally:
        elsewhere.close()
    assert [request["key"] for request in server.requests] == [f"Bearer {KEY}"]
    assert [request["key"] for request in elsewhere.requests] == [None]
    assert "HTTP 401" in failure


@pytest.mark.parametrize("before", range(60, 130, 7))
def test_a_key_is_hidden_before_a_message_is_cut(server: Server, before: int) -> None:
    server.replies = [refuse(403, "x" * before + KEY)]
    failure = asking(server).annotate(WORDS).failure
    assert "HTTP 403: " in failure
    assert "sk-" not in failure


def test_the_key_is_nowhere_but_in_the_request(
    server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    server.replies = [refuse(500, f"your key {KEY} is fine, but I am not"), refuse(403, f"no {KEY}")]
    annotator = asking(server, tmp_path)
    failed = annotator.annotate(WORDS)
    server.replies = [GOOD]
    told = annotator.annotate(WORDS)
    assert {request["key"] for request in server.requests} == {f"Bearer {KEY}"}  # the control: it was sent
    everywhere = [repr(annotator), str(vars(annotator)), repr(failed), repr(told), caplog.text, *capfd.readouterr()]
    everywhere += [file.name + file.read_text() for file in tmp_path.iterdir()]
    assert len(everywhere) == 8
    assert not [text for text in everywhere if KEY in text or "secret" in text]
    assert caplog.text  # the control: there was something to see


def test_cancelling_between_attempts(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    server.replies = [refuse(500, "busy")]

    def check() -> None:
        if clock.slept:  # the pause after the first attempt has begun
            raise InterruptedError("cancelled")

    with pytest.raises(InterruptedError):
        asking(server, pause=20).annotate(WORDS, check=check)
    assert len(server.requests) == 1
    assert sum(clock.slept) < 1  # most of the pause was not waited for


def test_a_server_asks_to_wait(monkeypatch: pytest.MonkeyPatch, server: Server) -> None:
    waits: list[float] = []
    monkeypatch.setattr(endpoint, "_sleep", lambda seconds, check: waits.append(seconds))
    ask = [{"retry-after": text} for text in ("7", "900", "Fri, 31 Dec 1999 23:59:59 GMT", "-3")]
    server.replies = [*(refuse(429, "busy", headers) for headers in ask), GOOD]
    assert asking(server, retries=4, pause=1).annotate(WORDS).description == "dates"
    assert waits == [7, 30, 4, 8]


def test_the_pause_is_waited_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    calls: list[float] = []
    endpoint._sleep(0.25, lambda: calls.append(clock.monotonic()))
    assert calls == pytest.approx([0, 0.1, 0.2])
    assert sum(clock.slept) == pytest.approx(0.25)


def test_a_server_of_ones_own_needs_no_key(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TEST_KEY")
    server.replies = [GOOD]
    asking(server).annotate(WORDS)
    assert server.requests[0]["key"] == "Bearer none"
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    with pytest.raises(ValueError, match="the environment variable TEST_KEY is empty: put the endpoint's key there"):
        EndpointAnnotator("gpt", key_variable="TEST_KEY", cache=None).annotate(WORDS)


@pytest.mark.parametrize("key", ["", "x", "none", "writing"])
def test_placeholders_for_a_key_are_no_secret_to_hide_in_answers(
    server: Server, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.setenv("TEST_KEY", key)
    server.key = key or "none"
    server.replies = ['{"description": "writing none x", "scenarios": ["none"], "level": null}']
    found = asking(server).annotate(WORDS)
    assert (found.description, found.failure) == ("writing none x", "")


def test_an_annotator_can_be_sent_to_another_process(server: Server) -> None:
    server.replies = [GOOD]
    annotator = asking(server)
    found = annotator.annotate(WORDS)
    data = pickle.dumps(annotator)
    assert KEY.encode() not in data
    assert pickle.loads(data).annotate(WORDS) == found


def test_without_the_package_the_extra_is_named(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openai", None)
    with pytest.raises(ImportError, match=r"pip install 'interp_widgets\[annotate\]'"):
        asking(server).annotate(WORDS)


def test_the_cache_of_a_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert EndpointAnnotator("m").cache == tmp_path / "interp_widgets" / "annotations"
    assert list(tmp_path.iterdir()) == []


IMPOSSIBLE = [
    "http://host/v1\0", "http://host\n/v1", "http://ho\tst/v1", "http://host /v1", "http://host/\ud800", "http://[::1/v1",
    "http://host:99999/v1", "http://host:0/v1", "http://host:x/v1", "http://:80/v1", "http:///v1", "http://a..b/v1",
    f"http://{'a' * 70}.org", "http://host/v1#secret", "http://host\\@secret/v1", "ftp://host/v1", "http://host/\x85",
    "http://host/\u2028",
]  # fmt: skip


@pytest.mark.parametrize("address", ["http://\u2603.example/v1", "http://[v1.x]/v1", f"http://host/{'x' * 70_000}"])
def test_an_address_that_the_client_refuses_is_a_failure_in_words(server: Server, address: str) -> None:
    annotator = EndpointAnnotator("m", base_url=address, key_variable="TEST_KEY", cache=None)
    assert "no request can be sent to this address (" in annotator.annotate(WORDS).failure


@pytest.mark.parametrize(
    "key", [f"{KEY}\nx", f"{KEY}\0", f"{KEY} \x7f", f"{KEY}é", f"a\r\nX-Header: {KEY}", f"{KEY}\u2028x"]
)
def test_a_key_that_no_header_can_have_is_not_sent_and_not_shown(
    server: Server, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.setattr(os, "environ", {**os.environ, "TEST_KEY": key})  # a NUL cannot be put there in another way
    with pytest.raises(ValueError, match="the environment variable TEST_KEY holds a line break or another") as caught:
        asking(server).annotate(WORDS)
    shown = "".join(traceback.format_exception(caught.value))
    assert "sk-secret" not in shown
    assert not server.requests


def test_words_that_cannot_be_sent(server: Server, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="words must be valid Unicode"):
        asking(server, tmp_path).annotate(["a", "b\ud800"])
    assert not server.requests


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"base_url": "http://me:secret@host/v1"}, "without user name or key"),
        ({"base_url": "https://host/v1?key=secret"}, "without user name or key"),
        ({"base_url": "localhost:8000"}, "base_url must be a plain address such as"),
        *(({"base_url": address}, "base_url must be a plain address such as") for address in IMPOSSIBLE),
        ({"model": "a\nb"}, r"model must be the name of a model at the endpoint, got 'a\\nb'"),
        ({"model": "a\ud800"}, r"model must be the name of a model at the endpoint, got 'a\\ud800'"),
        ({"key_variable": ""}, "key_variable must be the name of an environment variable"),
        ({"key_variable": "KEY\ud800"}, "key_variable must be the name of an environment variable"),
        ({"cache": "a\0b"}, r"cache must be a name that a file can have, got 'a\\x00b'"),
        ({"timeout": float("nan")}, "timeout must be a number, got nan"),
        ({"timeout": float("inf")}, "timeout must be above 0"),
        ({"pause": float("nan")}, "pause must be a number, got nan"),
        ({"model": " "}, "model must be the name of a model"),
        ({"timeout": 0}, "timeout must be above 0"),
        ({"retries": -1}, "retries and pause 0 or more, .* got 60, -1, 1 and 4"),
    ],
)
def test_bad_settings_are_one_clear_sentence(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        EndpointAnnotator(**{"model": "m", **options})
    assert "secret" not in str(caught.value)


def chunked(handler: Any) -> None:
    handler.send_response(200)
    handler.send_header("Content-Type", "application/json")
    handler.end_headers()


@pytest.mark.parametrize("head", [True, False])
def test_the_timeout_is_for_the_whole_reply(server: Server, monkeypatch: pytest.MonkeyPatch, head: bool) -> None:
    """The server sends a little again and again, so that no part of its reply takes long, and never ends."""
    under_way, closed = threading.Event(), threading.Event()
    Clock(monkeypatch, lambda: 2 * LIMIT if under_way.is_set() else 0)  # the time is over in the middle of the reply

    def drip(handler: Any) -> None:
        parts = itertools.repeat(b"X-Header: x\r\n" if head else b" ")
        try:
            if head:
                handler.wfile.write(b"HTTP/1.1 200 OK\r\n")
            else:
                chunked(handler)
            for number, part in enumerate(parts):
                handler.wfile.write(part)
                if number == 3:
                    under_way.set()
                beat()
        except OSError:
            closed.set()

    server.replies = [drip]
    failed = asking(server, retries=0).annotate(WORDS)
    assert failed.failure.endswith(f"no reply within {LIMIT} seconds")
    assert closed.wait(LIMIT), "the connection must be closed"


def test_a_request_under_way_can_be_cancelled(server: Server) -> None:
    asked, over = threading.Event(), threading.Event()
    server.replies = [lambda handler: (asked.set(), over.wait(LIMIT))]

    def check() -> None:
        if asked.is_set():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        asking(server).annotate(WORDS, check=check)
    over.set()


def test_a_reply_is_read_up_to_a_bound(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "_LONGEST_REPLY", 5000)
    closed = threading.Event()

    def endless(handler: Any) -> None:
        chunked(handler)
        try:
            while True:
                handler.wfile.write(b" " * 100_000)
        except OSError:
            closed.set()

    server.replies = [endless]
    assert asking(server).annotate(WORDS).failure.endswith("its reply is longer than 5,000 bytes")
    assert closed.wait(LIMIT), "the connection must be closed"
    packed = gzip.compress(json.dumps(completion(GOOD, "a-model")).encode())
    server.replies = [lambda handler: send(handler, 200, packed, {"Content-Encoding": "gzip"})]
    assert asking(server).annotate(WORDS).failure.endswith("its reply is compressed, which was not asked for")
    assert len(server.requests) == 2


def test_nested_too_deeply(server: Server, tmp_path: Path) -> None:
    deep = '{"description": ' + "[" * 100_000 + "]" * 100_000 + "}"
    server.replies = [deep]
    assert "no JSON object in" in asking(server, retries=0).annotate(WORDS).failure
    server.replies = [lambda handler: send(handler, 200, b"[" * 100_000)]
    assert asking(server, retries=0).annotate(WORDS).failure.endswith("(it is nested too deeply)")
    server.replies = [GOOD]
    annotator = asking(server, cache=tmp_path)
    found = annotator.annotate(WORDS)
    (cached,) = tmp_path.iterdir()
    cached.write_text(deep)
    assert annotator.annotate(WORDS) == found, "a damaged answer in the cache is asked for again"


@pytest.mark.parametrize(
    ("description", "reason"),
    [("x" * 2001, "a description of 2,001 characters"), ("a\ud800", "half a surrogate pair")],
)
def test_descriptions_that_nobody_can_show_or_save(server: Server, description: str, reason: str) -> None:
    server.replies = [json.dumps({"description": description, "scenarios": [], "level": None})]
    assert reason in asking(server, retries=0).annotate(WORDS).failure


def test_a_cache_that_cannot_be_written_is_told_before_anything_is_asked(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.replies = [GOOD]
    (tmp_path / "file").touch()
    for cache in (tmp_path / "file" / "cache", tmp_path / ("x" * 300)):
        with pytest.raises(OSError, match=r"the answers cannot be kept in .*: give another folder as cache="):
            asking(server, cache=cache).annotate(WORDS)
    assert not server.requests
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(errno.ENOSPC, "No space left on device")))
    with pytest.raises(OSError, match=r"the answers cannot be kept in .* \(No space left on device\)"):
        asking(server, cache=tmp_path / "cache").annotate(WORDS)
    assert list((tmp_path / "cache").iterdir()) == []
