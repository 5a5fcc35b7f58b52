"""A server on this machine that speaks OpenAI's chat completions, for tests of the annotators that ask one."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

KEY = "sk-secret-0123456789abcdef"
GOOD = '{"description": "dates", "scenarios": ["writing", "translation"], "level": "semantics"}'


class Server:
    """A chat-completions server on this machine, which answers as told and notes what it is asked."""

    def __init__(self, key: str = KEY) -> None:
        self.key = key
        self.replies: list[Any] = []
        """One per request, the last one again and again: a text, or a function of the handler."""
        self.requests: list[dict[str, Any]] = []
        """Those that have arrived whole, in order."""
        self._turn = threading.Lock()
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with server._turn:  # requests may come at the same time
                    server.requests.append({"path": self.path, "key": self.headers["Authorization"], **body})
                    reply = server.replies.pop(0) if len(server.replies) > 1 else server.replies[0]
                if self.headers["Authorization"] != f"Bearer {server.key}":
                    reply = refuse(401, f"Incorrect API key provided: {self.headers['Authorization']}")
                send(self, 200, completion(reply, body["model"])) if isinstance(reply, str) else reply(self)

            def log_message(self, *_: Any) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}/v1"

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


def completion(text: str | None, model: str) -> dict[str, Any]:
    message = {"role": "assistant", "content": text}
    return {
        "id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": model,
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
    }  # fmt: skip


def send(handler: BaseHTTPRequestHandler, status: int, body: Any, headers: dict[str, str] | None = None) -> None:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    handler.send_response(status)
    for name, value in {"Content-Type": "application/json", **(headers or {})}.items():
        handler.send_header(name, value)
    handler.send_header("Content-Length", str(len(data)))
    handler.end_headers()
    handler.wfile.write(data)


def refuse(status: int, message: str, headers: dict[str, str] | None = None) -> Any:
    body = {"error": {"message": message, "type": "error", "param": None, "code": None}}
    return lambda handler: send(handler, status, body, headers)
