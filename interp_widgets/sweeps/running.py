"""`sweep`: any analysis over many items."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from interp_widgets.analysis._core.checks import check_range
from interp_widgets.analysis._core.result import provenance
from interp_widgets.analysis._core.run import RunOptions, partial_is_due
from interp_widgets.arguments import checked

from .backends import Done, check_backend, run_items
from .call import Call
from .identity import header_of, model_of
from .items import Item, numbered, read_items
from .remote import NoRow
from .result import SweepResult, result_of
from .store import Folder, Memory

_PARTIALS = 8
_NO_ROWS = 3
"""So many results of which no row can be made end a sweep that has made no row yet."""


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
    """Run a function on every item of a data set, and keep a row of each.

    An item that fails is kept with its error, and the others go on. With ``out`` every row is on disk within about a
    second; the same call again then does what is missing and what failed, and no more. A process that dies loses the
    items that it had under way at most, and these are done again.

    Args:
        function: called with an item. Give a model and options with `functools.partial`, such as
            ``partial(logit_lens, model, target=" Paris")``. What it returns becomes the row: the `measures` of a
            result, the entries of a mapping, or one number or text as ``value``.
        items: a list or anything else to loop over, a pandas DataFrame, a data set of Hugging Face, or a file (.csv,
            .json, .jsonl, .parquet; .txt with an item per line). Rows are mappings of column to value.
        arguments: which columns of a row the function takes, ``["prompt", "target"]``, or as which of its arguments,
            ``{"prompt": "question"}``. By default it is called with the whole row.
        measure: makes the row of what the function returns, where a table of its main numbers is not what you want.
        backend: None for this process; a number for so many processes of the sweep's own; or any executor with the
            `submit` of `concurrent.futures.Executor`, such as Dask's client (a local cluster, SLURM, Kubernetes). Every
            process loads a model once, from where it was loaded here.
        out: the folder to write to: Parquet files, and what the sweep is of. A folder is of one function with what it
            uses, such as a model and options; with another one it is refused.
        limit: most items, from the first.
        progress: called with (done, total) items; the total is the number done where the length is not known.
        check: called between items; raises to cancel. What is done is kept.
        on_partial: called with what there is so far, a few times before the end where their number is known.

    Returns:
        A `SweepResult` with the rows in the order of the items.

    Raises:
        ValueError: no item, ``out`` with another sweep or other files, a model that another process cannot load, or
            a column of the data that is called as one that is measured.
        TypeError: items that cannot be looped over, or a result of which no row can be made.

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
    numbers = numbered(todo, limit)
    first = next(numbers, None)
    if first is None:
        raise ValueError("items must have at least one item, got none")
    total = total if limit is None or total is None else min(total, limit)
    call = Call(function, arguments, measure)
    facts = provenance(model_of(call), function=call.name)
    folder = None if out is None else Path(out).expanduser()
    store = Memory() if folder is None else Folder(folder, header_of(call), facts)
    done, count, kept = store.finished(), 0, 0

    def unfinished() -> Iterator[Item]:
        nonlocal count, kept
        for item in itertools.chain([first], numbers):
            count += 1
            if done.get(item.row) == item.hash:
                kept += 1
            else:
                yield item

    try:
        results = run_items(call, unfinished(), backend, run.stop_if_cancelled)
        for number, (item, row, error, seconds) in enumerate(_with_rows(results, made=bool(done)), start=1):
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
    return result_of(
        frame[frame["row"] < count], store.columns, folder=None if folder is None else str(folder), provenance=facts
    )


def _with_rows(results: Iterator[Done], *, made: bool) -> Iterator[Done]:
    """The results; NoRow where no row can be made of the first ones, and was ``made`` of none before."""
    held: list[Done] = []
    for result in results:
        error = result[2]
        if error.startswith(f"{NoRow.__name__}: ") and not made:
            held.append(result)
            if len(held) == _NO_ROWS:
                break
        else:
            made = made or not error
            if made:
                yield from held
                held = []
            yield result
    if held:
        raise NoRow(held[0][2].partition(": ")[2])
