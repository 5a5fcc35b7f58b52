"""What other libraries log and warn of while a model is loaded: users see what is about numbers, and nothing else."""

from __future__ import annotations

import contextlib
import logging
import re
import warnings
from collections.abc import Iterator
from contextvars import ContextVar

LIBRARIES = (
    "accelerate", "bitsandbytes", "compressed_tensors", "huggingface_hub", "peft", "safetensors", "tokenizers", "torch",
    "torchao", "transformer_lens", "transformers",
)  # fmt: skip
_ABOUT_NUMBERS = re.compile(
    r"incorrect|wrong|unexpected behav|inconsisten|mismatch|not match|different values|corrupt|newly initialized"
    r"|invalid|must (be|have|not)\b|missing required|overflow|precision|unstable|can't be done|stay un\w+|will mix",
    re.IGNORECASE,
)
_NOT_ABOUT_NUMBERS = re.compile(r"LOAD REPORT|deprecated|generation flags", re.IGNORECASE)
"""The report of weights is checked by itself (`hub_files`); texts are generated with this package's own options."""
_issued: ContextVar[list[str] | None] = ContextVar("issued", default=None)
"""Where messages about numbers are collected until a load ends; None outside of `collected`."""


@contextlib.contextmanager
def collected() -> Iterator[None]:
    """Context manager at whose end each message about numbers is issued once, as a UserWarning.

    After an error nothing is issued, since the error says what is wrong.
    """
    messages: list[str] = []
    token = _issued.set(messages)
    try:
        yield
    finally:
        _issued.reset(token)
    for message in dict.fromkeys(messages):
        warnings.warn(message, UserWarning, stacklevel=4)


def issue(message: str) -> None:
    """Warn of something that changes numbers: at the end of `collected`, or at once outside of it."""
    messages = _issued.get()
    if messages is None:
        warnings.warn(message, UserWarning, stacklevel=2)
    else:
        messages.append(message)


@contextlib.contextmanager
def quiet(name: str) -> Iterator[list[str]]:
    """Context manager in which these libraries log and warn of nothing; at its end what is about numbers is issued,
    preceded by the model's name.

    Yields the list of all their messages so far. Messages of other packages are shown as ever.
    """
    from transformers.utils import logging as transformers_logging

    messages: list[str] = []
    hidden = _Hidden(messages)
    loggers = (logging.getLogger(), *map(logging.getLogger, LIBRARIES))
    handlers = {id(each): each for logger in loggers for each in logger.handlers}
    handlers |= {} if logging.lastResort is None else {id(logging.lastResort): logging.lastResort}
    bars = transformers_logging.is_progress_bar_enabled()
    level = transformers_logging.get_verbosity()  # TransformerLens, once it is imported, hides warnings for good
    with warnings.catch_warnings(record=True) as recorded:
        warnings.simplefilter("always")
        transformers_logging.disable_progress_bar()
        transformers_logging.set_verbosity_warning()
        for handler in handlers.values():
            handler.addFilter(hidden)
        try:
            yield messages
        finally:
            for handler in handlers.values():
                handler.removeFilter(hidden)
            if transformers_logging.get_verbosity() == logging.WARNING:
                transformers_logging.set_verbosity(level)
            if bars:
                transformers_logging.enable_progress_bar()
    for warning in recorded:
        if _is_of_library(warning.filename):
            messages.append(str(warning.message))
        else:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    for message in messages:
        if _ABOUT_NUMBERS.search(message) and not _NOT_ABOUT_NUMBERS.search(message):
            issue(f"{name}: {' '.join(message.split())}")


class _Hidden(logging.Filter):
    """Takes the messages of libraries below the level of errors out of what a handler writes, and collects them."""

    def __init__(self, messages: list[str]) -> None:
        super().__init__()
        self.messages = messages
        self._last: logging.LogRecord | None = None

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno >= logging.ERROR:
            return True
        package = record.name.partition(".")[0]  # TransformerLens logs to the root logger
        if package not in LIBRARIES and not (package == "root" and _is_of_library(record.pathname)):
            return True
        if record.levelno >= logging.WARNING and record is not self._last:  # several handlers see one record
            self._last = record
            self.messages.append(record.getMessage())
        return False


def _is_of_library(path: str) -> bool:
    """Whether a file belongs to these libraries or to this package, which calls them."""
    return any(part in (*LIBRARIES, "interp_widgets") for part in re.split(r"[/\\]", path))
