"""Reads published prompt-to-response importance matrices, with instruction masks and ratings, from one archive.

The archive is an ``.npz`` file of flattened matrices: case i is
``importance[importance_offset[i]:importance_offset[i + 1]].reshape(n_prompt[i], n_response[i])``, its instruction mask
``instruction_mask[mask_offset[i]:mask_offset[i + 1]]``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from interp_widgets.data.files import existing_file, read_arrays

_FIELDS = (
    "case_id", "model", "n_prompt", "n_response", "rating",
    "importance", "importance_offset", "instruction_mask", "mask_offset",
)  # fmt: skip
_PER_CASE = ("model", "n_prompt", "n_response", "rating", "score")


@dataclass(frozen=True, eq=False)
class AttributionRecord:
    """One published case: the importance of every prompt token for every response token, and the human rating."""

    importance: NDArray[np.generic]
    """(prompt, response) importance, already normalised to levels 0..10 where `normalised` is true."""
    mask: NDArray[np.bool_]
    """(prompt,) true at instruction tokens."""
    rating: float | None
    """Human rating of how well the response follows the instruction: 1 (not at all) to 4; None or below 1 if not rated.
    """
    model: str
    """Name of the model that wrote the response."""
    name: str
    """Name of the prompt, the same for all models."""
    score: float | None = None
    """Published instruction score of this case, if the archive has it."""
    normalised: bool = True
    """Whether `importance` holds levels 0..10 already."""

    @property
    def label(self) -> bool | None:
        """Whether the response follows the instruction: rating 2 or more; None where it was not rated."""
        return None if self.rating is None or self.rating <= 0 else self.rating >= 2


def read_importance_archive(path: str | os.PathLike[str], *, model: str | None = None) -> tuple[AttributionRecord, ...]:
    """Read the records of an archive of importance matrices, in its order; only those of `model`, if it is set.

    Raises FileNotFoundError if there is no file, ValueError if it has another layout or no such model.
    """
    source = existing_file(path, "importance matrices")
    columns = read_arrays(source, "importance matrices", names=(*_FIELDS, "score"))
    if missing := [name for name in _FIELDS if name not in columns]:
        raise ValueError(f"{source} has no {', '.join(missing)}: it is not an archive of importance matrices")
    _check_sizes(columns, source)
    records = tuple(record for record in _records(columns) if model in (None, record.model))
    if not records:
        raise ValueError(
            f"{source} has no cases of {model!r}; its models are {', '.join(sorted(set(columns['model'])))}"
        )
    return records


_KINDS = {"n_prompt": "iu", "n_response": "iu", "rating": "iuf", "importance": "iuf", "importance_offset": "iu",
          "instruction_mask": "biu", "mask_offset": "iu", "score": "iuf", "case_id": "iuU", "model": "U"}  # fmt: skip
"""Kinds of numpy's types that the columns may have."""


def _check_sizes(columns: dict[str, NDArray[Any]], source: Path) -> None:
    for name, column in columns.items():
        if column.ndim != 1 or column.dtype.kind not in _KINDS[name]:
            raise ValueError(
                f"{source} is damaged: {name} must be a list of {'texts' if name == 'model' else 'numbers'}, got "
                f"{column.dtype} of shape {column.shape}"
            )
    count = len(columns["case_id"])
    prompts, responses = columns["n_prompt"].astype(np.int64), columns["n_response"].astype(np.int64)
    fits = (
        all(len(columns[name]) == count for name in columns if name in _PER_CASE)
        and bool(np.all(prompts > 0) and np.all(responses >= 0))
        and np.array_equal(columns["importance_offset"], np.concatenate([[0], np.cumsum(prompts * responses)]))
        and np.array_equal(columns["mask_offset"], np.concatenate([[0], np.cumsum(prompts)]))
        and len(columns["importance"]) == columns["importance_offset"][-1]
        and len(columns["instruction_mask"]) == columns["mask_offset"][-1]
    )
    if not fits:
        raise ValueError(f"{source} is damaged: its offsets do not fit the sizes of its {count} cases")
    if not np.isfinite(columns["importance"]).all():
        raise ValueError(f"{source} is damaged: importance must be finite, got NaN or infinity")


def _records(columns: dict[str, NDArray[Any]]) -> Iterator[AttributionRecord]:
    cells, marks = columns["importance_offset"], columns["mask_offset"]
    for i, name in enumerate(columns["case_id"]):
        matrix = columns["importance"][cells[i] : cells[i + 1]]
        rating = float(columns["rating"][i])
        yield AttributionRecord(
            importance=matrix.reshape(columns["n_prompt"][i], columns["n_response"][i]),
            mask=columns["instruction_mask"][marks[i] : marks[i + 1]].astype(bool),
            rating=None if np.isnan(rating) else rating,
            model=str(columns["model"][i]),
            name=str(name),
            score=float(columns["score"][i]) if "score" in columns else None,
        )
