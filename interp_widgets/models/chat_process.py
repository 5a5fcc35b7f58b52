"""Chat templates rendered in a process of their own, with a limit of time, memory and length.

A template comes with a model and is a program: transformers runs it in a sandbox, from which it cannot reach anything,
but in which it can compute for hours and fill the memory. The process is started when a chat is first written, serves
all later ones, and is replaced when a template has exceeded a limit.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

SECONDS = 3.0
"""Most processor time for one chat."""
MEGABYTES = 512
"""Most memory for one chat."""
LONGEST = 16 * 2**20
"""Most characters of a chat."""

_POLL = 0.02
_ENVIRONMENT = ("PATH", "SYSTEMROOT", "TZ", "HOME", "USERPROFILE", "TMPDIR", "TEMP")
"""Variables that the process sees; no key of an account is among them."""


class TemplateFailure(ValueError):
    """What a template did instead of writing a chat, as the end of a sentence; `line` is in the template."""

    def __init__(self, kind: str, reason: str, line: int | None = None) -> None:
        super().__init__(reason)
        self.kind = kind
        """``syntax``, ``refused`` by the template itself, ``error``, or ``limit``."""
        self.line = line


class Renderer:
    """The process that renders chats, one at a time."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Start anew, as after a fork, which would share the pipes of its parent's process."""
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._answers: queue.SimpleQueue[str] = queue.SimpleQueue()

    def render(
        self,
        template: str,
        messages: Sequence[Mapping[str, str]],
        *,
        special_tokens: Mapping[str, Any],
        add_generation_prompt: bool,
        continue_final_message: bool = False,
    ) -> str:
        """The chat as ``tokenizer.apply_chat_template`` writes it; `TemplateFailure` if the template fails."""
        request = {
            "conversations": [[dict(message) for message in messages]],
            "chat_template": template,
            "add_generation_prompt": add_generation_prompt,
            "continue_final_message": continue_final_message,
            **special_tokens,
        }
        with self._lock:
            answer = json.loads(self._ask(json.dumps(request)))
        if "text" in answer:
            return str(answer["text"])
        raise TemplateFailure(answer["kind"], answer["reason"], answer["line"])

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):  # what was not read is lost with the process
                        pipe.close()

    def _ask(self, request: str) -> str:
        try:
            process = self._started()
            if process.stdin is None:
                raise RuntimeError("the process that writes chats has no input")
            process.stdin.write(request + "\n")
            process.stdin.flush()
            return self._answer(psutil.Process(process.pid))
        except BaseException:  # also an interrupt: an answer that comes later would be taken for the next chat's
            self.close()
            raise

    def _started(self) -> subprocess.Popen[str]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        self.close()
        answers = self._answers = queue.SimpleQueue()
        program = str(Path(__file__).with_name("chat_render.py"))
        environment = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-X", "utf8", program],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, encoding="utf8",
            env=environment | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        )  # fmt: skip
        self._process = process

        def read() -> None:
            if process.stdout is not None:
                with contextlib.suppress(ValueError, OSError):  # closed while it was read
                    for line in process.stdout:
                        answers.put(line)
            answers.put("")

        threading.Thread(target=read, name="chat templates", daemon=True).start()
        if process.stdin is not None:
            process.stdin.write(json.dumps({"path": sys.path, "longest": LONGEST, "seconds": SECONDS}) + "\n")
            process.stdin.flush()
        if not answers.get():
            raise RuntimeError("the process that writes chats did not start: check that transformers and jinja2 work")
        return process

    def _answer(self, process: psutil.Process) -> str:
        """The process's answer; `TemplateFailure` when it exceeds a limit or has ended."""
        try:
            before = process.cpu_times()
            size = process.memory_info().rss
            while True:
                try:
                    answer = self._answers.get(timeout=_POLL)
                except queue.Empty:
                    now = process.cpu_times()
                    if now.user + now.system - before.user - before.system > SECONDS:
                        raise TemplateFailure("limit", f"it takes more than {SECONDS:g} seconds") from None
                    if process.memory_info().rss - size > MEGABYTES * 2**20:
                        raise TemplateFailure("limit", f"it takes more than {MEGABYTES} MB of memory") from None
                    continue
                if answer:
                    return answer
                break
        except psutil.NoSuchProcess:
            answer = self._answers.get()
            if answer:
                return answer
        raise TemplateFailure("limit", "it ended the process that writes chats")


RENDERER = Renderer()
"""The renderer of this process."""


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=RENDERER.reset)
atexit.register(RENDERER.close)
