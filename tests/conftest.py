"""Shared by all tests: nothing reaches a hub, and the analyses run under jaxtyping and beartype."""

from __future__ import annotations

import os
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest
from jaxtyping import install_import_hook

install_import_hook(["interp_widgets.analysis", "interp_widgets.compute"], "beartype.beartype")

ROOT = Path(__file__).resolve().parents[1]
REFERENCE = ROOT.parent / "shared" / "data"


@pytest.fixture(scope="session")
def reference_data() -> Path:
    """Folder of published reference data beside the checkout; tests that need it skip where it is absent."""
    if not REFERENCE.is_dir():
        pytest.skip("the reference data folder ../shared/data is not beside this checkout")
    return REFERENCE
