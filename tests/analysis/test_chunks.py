"""The chunk loop covers everything once, hears a cancel, and halves chunks when memory runs out."""

from __future__ import annotations

import pytest
import torch

from interp_widgets.analysis._core.chunks import ChunkLog, chunk_size, is_out_of_memory, run_chunks


class TooMuch:
    """Work that runs out of memory above ``most`` items."""

    def __init__(self, most: int, error: Exception) -> None:
        self.most, self.error = most, error
        self.done: list[int] = []
        self.tries: list[int] = []

    def __call__(self, start: int, stop: int) -> None:
        self.tries.append(stop - start)
        if stop - start > self.most:
            raise self.error
        self.done += range(start, stop)


OUT_OF_MEMORY = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    RuntimeError("[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory"),
    RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 12 bytes."),
    MemoryError(),
]


@pytest.mark.slow
@pytest.mark.parametrize("error", OUT_OF_MEMORY, ids=lambda error: type(error).__name__)
def test_out_of_memory_halves_the_chunk_and_goes_on(error: Exception) -> None:
    work = TooMuch(3, error)
    log = run_chunks(20, 16, work)
    assert work.done == list(range(20))  # everything once and in order
    assert work.tries[:4] == [16, 8, 4, 2]  # then never again more than went through
    assert max(work.tries[3:]) == 2
    assert (log.largest, log.halvings) == (2, 3)


def test_the_limit_is_remembered_by_the_next_loop() -> None:
    log = run_chunks(8, 8, TooMuch(4, MemoryError()))
    work = TooMuch(4, MemoryError())
    run_chunks(8, 8, work, log=log)
    assert work.tries == [4, 4]


@pytest.mark.seconds
def test_a_chunk_of_one_that_does_not_fit_is_one_clear_sentence() -> None:
    with pytest.raises(MemoryError, match=r"^one sequence of 9 tokens does not fit .* ask for less .*free memory"):
        run_chunks(5, 4, TooMuch(0, MemoryError("no room")), what="sequence of 9 tokens")


def test_other_errors_pass_through() -> None:
    with pytest.raises(RuntimeError, match="shapes do not match"):
        run_chunks(5, 4, TooMuch(0, RuntimeError("shapes do not match")))


def test_sizes_may_depend_on_the_start() -> None:
    seen: list[tuple[int, int]] = []
    run_chunks(10, lambda start: 1 + start // 2, lambda start, stop: seen.append((start, stop)))
    assert seen == [(0, 1), (1, 2), (2, 4), (4, 7), (7, 10)]


def test_a_cancel_is_heard_before_the_next_chunk() -> None:
    class Stop(Exception):
        pass

    done: list[int] = []

    def check() -> None:
        if len(done) == 2:
            raise Stop

    with pytest.raises(Stop):
        run_chunks(10, 2, lambda start, stop: done.append(start), check=check)
    assert done == [0, 2]


def test_progress_counts_what_is_done() -> None:
    told: list[int] = []
    run_chunks(7, 3, lambda start, stop: None, after=told.append, log=ChunkLog())
    assert told == [3, 6, 7]


@pytest.mark.parametrize(
    ("per_item", "free", "options", "size"),
    [
        (1e6, 100e6, {"most": 8}, 8),
        (1e6, 10e6, {"most": 8}, 6),
        (1e9, 10e6, {"most": 8}, 1),
        (1e9, 10e6, {"most": 8, "batch_size": 5}, 5),
        (0.0, 10e6, {"most": 0}, 1),
    ],
)
def test_chunk_sizes(per_item: float, free: float, options: dict[str, int], size: int) -> None:
    assert chunk_size(per_item, int(free), **options) == size


def test_which_errors_are_out_of_memory() -> None:
    assert all(is_out_of_memory(error) for error in OUT_OF_MEMORY)
    assert not is_out_of_memory(ValueError("not enough memory"))
    assert not is_out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
