"""`sweep`: any analysis over many items."""

from __future__ import annotations

import itertools
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from interp_widgets.analysis._core.checks import check_range
from interp_widgets.analysis._core.result import provenance
from interp_widgets.analysis._core.run import RunOptions, partial_is_due
from interp_widgets.arguments import checked
from interp_widgets.atomic import named_path

from .backends import Done, check_backend, run_items
from .call import Call
from .identity import header_of, model_of
from .items import Item, number_items, read_items
from .remote import InvalidRow
from .result import SweepResult, result_of
from .store import Folder, Memory, name_clash

_PARTIALS = 8
_MAX_INVALID_ROWS = 3
"""Invalid results at the beginning after which a sweep stops."""


@checked
def sweep(
    function: Callable[..., Any],
    items: Any,
    *,
    arguments: Sequence[str] | Mapping[str, str] | None = None,
    measure: Callable[[Any], Any] | None = None,
    backend: Any = None,
    out: str | Path | None = None,
    limit: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    check: Callable[[], None] | None = None,
    on_partial: Callable[[SweepResult], None] | None = None,
) -> SweepResult:
    """Run a function on every item of a data set and collect one row per item.

    An item that fails gets a row with its error, whatever it raises; the others continue. With ``out`` every row is on
    disk within about a second, and the same call again runs only the items that are missing or failed. If a worker
    process dies, at most the items that it was running are lost, and they are run again. A file of rows that was
    damaged is set aside with a warning, and its rows are computed again.

    Args:
        function: called with each item. Bind a model and options with `functools.partial`, such as
            ``partial(logit_lens, model, target=" Paris")``. What it returns becomes the row: the `measures` of a
            result, the entries of a mapping, or one number or text as ``value``.
        items: any iterable, a pandas DataFrame, a Hugging Face data set, or a file (.csv,
            .json, .jsonl, .parquet; .txt with an item per line). Rows are mappings of column to value.
        arguments: which columns of a row the function takes, ``["prompt", "target"]``, or argument to column,
            ``{"prompt": "question"}``. By default it is called with the whole row.
        measure: turns what the function returns into a row, if you want other numbers than its `measures`.
        backend: None for this process; an int for that many worker processes; or any executor with the
            `submit` of `concurrent.futures.Executor`, such as Dask's client (a local cluster, SLURM, Kubernetes). Every
            process loads a model once, from the same source as here.
        out: folder for the rows (Parquet) and a header that identifies the sweep. One folder holds one function with
            its model, options and other dependencies; a call that differs in these raises ValueError. One sweep at a
            time writes into it: an equal call waits until that has ended, then runs what is left.
        limit: run at most this many items, from the first.
        progress: called with (done, total) items; the total is the number done if the length is not known.
        check: called between items; raises to cancel. Finished rows are kept.
        on_partial: called with the result so far, a few times before the end, if the number of items is known.

    Returns:
        A `SweepResult` with the rows in the order of the items.

    Raises:
        ValueError: no items, ``out`` with another sweep or other files, a model that another process cannot load, or
            a measure with the name of a column of the data.
        TypeError: items that are not iterable, or results that cannot become a row.
        RuntimeError: a backend that accepts no more items or has had no worker for a minute; rows that were removed or
            damaged while the sweep ran.

    Example:
        >>> from functools import partial
        >>> prompts = ["The Eiffel Tower is in the city of", "The capital of Italy is", ""]
        >>> result = sweep(partial(logit_lens, model), prompts)
        >>> result.to_frame()[["item", "top_token", "commit_layer"]].head(2)
                                         item top_token  commit_layer
        0  The Eiffel Tower is in the city of     Paris           1.0
        1             The capital of Italy is      Rome           1.0
        >>> result.errors[2]
        'PromptError: the prompt holds only special tokens, which have no words to look at: add some text'
    """
    check_backend(backend)
    if limit is not None:
        check_range("limit", limit)
    run = RunOptions(progress, check)
    todo, total = read_items(items)
    numbers = number_items(todo, limit)
    first = next(numbers, None)
    if first is None:
        raise ValueError("items must have at least one item, got none")
    total = total if limit is None or total is None else min(total, limit)
    call = Call(function, arguments, measure)
    facts = provenance(model_of(call), function=call.name)
    folder = None if out is None else named_path(out, "out")
    store = Memory() if folder is None else Folder(folder, header_of(call), facts)
    hashes: list[str] = []  # of the items so far
    kept = 0

    def unfinished(done: Mapping[int, str]) -> Iterator[Item]:
        nonlocal kept
        for item in itertools.chain([first], numbers):
            hashes.append(item.hash)
            if done.get(item.row) == item.hash:
                kept += 1
            else:
                yield item

    with store.owned(run.stop_if_cancelled), _interrupts() as stop_if_interrupted:
        done = store.finished()
        try:
            results = run_items(call, unfinished(done), backend, run.stop_if_cancelled)
            for number, (item, row, error, seconds) in enumerate(_stop_without_rows(results, made=bool(done)), start=1):
                stop_if_interrupted()
                store.add(item, row, error, seconds)
                so_far = number + kept
                run.report(so_far, total or so_far)
                if on_partial is not None and partial_is_due(so_far - 1, so_far, total or 0, _PARTIALS):
                    store.write()
                    on_partial(result_of(store.rows(), store.columns, partial=True, provenance=facts))
        finally:
            store.write()
        store.finish()
        frame = store.rows()
    frame = frame[frame["row"] < len(hashes)]
    made = zip(frame["row"].astype(int), frame["hash"], strict=True)
    lost = len(hashes) - sum(hashes[row] == digest for row, digest in made)
    if lost:
        raise RuntimeError(
            f"{lost} of {len(hashes)} rows have been lost from {folder}, where a file was damaged or removed "
            "while the sweep ran: run the same line again to compute them"
        )
    return result_of(frame, store.columns, folder=None if folder is None else str(folder), provenance=facts)


@contextmanager
def _interrupts() -> Iterator[Callable[[], None]]:
    """Context manager with a function that raises KeyboardInterrupt if Ctrl+C was pressed inside.

    An item that Ctrl+C interrupts may catch the exception or turn it into another one.
    """
    before, pressed = signal.getsignal(signal.SIGINT), False

    def stop_if_interrupted() -> None:
        if pressed:
            raise KeyboardInterrupt

    if not callable(before) or threading.current_thread() is not threading.main_thread():
        yield stop_if_interrupted
        return
    usual: Callable[[int, Any], Any] = before

    def note(number: int, frame: Any) -> None:
        nonlocal pressed
        pressed = True
        usual(number, frame)

    signal.signal(signal.SIGINT, note)
    try:
        yield stop_if_interrupted
    finally:
        if signal.getsignal(signal.SIGINT) is note:
            signal.signal(signal.SIGINT, before)


def _stop_without_rows(results: Iterator[Done], *, made: bool) -> Iterator[Done]:
    """Yield the results; raise InvalidRow if the first ones cannot become rows and no row was ``made`` before.

    A measure with the name of a column raises ValueError if no row was made before, and is an error of its row later.
    """
    invalid: list[Done] = []
    for result in results:
        item, row, error, seconds = result
        if clash := name_clash(item, row):
            if not made:
                raise ValueError(clash)
            error = f"ValueError: {clash}"
            result = item, {}, error, seconds
        if error.startswith(f"{InvalidRow.__name__}: ") and not made:
            invalid.append(result)
            if len(invalid) == _MAX_INVALID_ROWS:
                break
        else:
            made = made or not error
            if made:
                yield from invalid
                invalid = []
            yield result
    if invalid:
        raise InvalidRow(invalid[0][2].partition(": ")[2])
