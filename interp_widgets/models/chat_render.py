"""The program that `chat_process` runs: renders chats with transformers, one JSON line in and one out for each.

It imports neither torch nor this package, so that it starts in a fraction of a second.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import signal
import sys
import traceback
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

_DIGITS = sys.get_int_max_str_digits()
"""Most digits of a number that Python writes."""


def renderer() -> Callable[..., Any]:
    """transformers' function that renders a template, without the rest of transformers where that is possible."""
    sys.modules["torch"] = None  # type: ignore[assignment]
    spec = importlib.util.find_spec("transformers")
    root = Path(next(iter(spec.submodule_search_locations or ()))) if spec is not None else Path()
    for name, folder in (("transformers", root), ("transformers.utils", root / "utils")):
        package = types.ModuleType(name)
        package.__path__ = [str(folder)]
        sys.modules[name] = package
    from transformers.utils.chat_template_utils import render_jinja_template

    return render_jinja_template


def answer(render: Callable[..., Any], request: dict[str, Any], longest: int) -> dict[str, Any]:
    """The text of a chat, or what went wrong and where."""
    from jinja2 import TemplateError, TemplateSyntaxError

    try:
        (text,), _ = render(**request)
    except TemplateSyntaxError as error:
        return {"kind": "syntax", "reason": str(error.message), "line": error.lineno}
    except TemplateError as error:
        return {"kind": "refused", "reason": _short(error.message or type(error).__name__), "line": _line(error)}
    except MemoryError:
        return {"kind": "limit", "reason": "it takes too much memory", "line": None}
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        if "set_int_max_str_digits" in reason:
            return {
                "kind": "limit",
                "reason": f"it writes a number of more than {_DIGITS} digits",
                "line": _line(error),
            }
        if traceback.extract_tb(error.__traceback__)[-1].name == "strftime_now":
            reason = f"the format that it gives strftime_now is not valid ({reason})"
        return {"kind": "error", "reason": _short(reason), "line": _line(error)}
    if len(text) > longest:
        return {"kind": "limit", "reason": f"it writes more than {longest:,} characters", "line": None}
    return {"text": text}


def _short(reason: object) -> str:
    return " ".join(str(reason).split())[:500]


def _line(error: BaseException) -> int | None:
    """The line of the template where an error was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    return next((frame.lineno for frame in reversed(frames) if frame.filename == "<template>"), None)


def _limit_processor_time(seconds: float) -> None:
    """Let the system end this process some time after its parent should have: the parent may have ended first."""
    with contextlib.suppress(ImportError):  # on Windows there is no such limit
        import resource

        usage = resource.getrusage(resource.RUSAGE_SELF)
        hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
        soft = int(usage.ru_utime + usage.ru_stime + 3 * seconds) + 1
        resource.setrlimit(resource.RLIMIT_CPU, (soft if hard < 0 else min(soft, hard), hard))


def main() -> None:
    """Answer requests until the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt of the kernel reaches its whole process group
    answers = sys.stdout
    sys.stdout = sys.stderr
    settings = json.loads(sys.stdin.readline())
    sys.path[:] = settings["path"]
    render = renderer()
    print("{}", file=answers, flush=True)
    for line in sys.stdin:
        _limit_processor_time(settings["seconds"])
        print(json.dumps(answer(render, json.loads(line), settings["longest"])), file=answers, flush=True)


if __name__ == "__main__":
    main()
