"""Where the test data that several projects share lies, and what to do where it does not."""

import os
from pathlib import Path

import pytest

SHARED = Path(
    os.environ.get("BRIDGE_SHARED", Path(__file__).resolve().parents[2] / "shared")
).resolve()

if not SHARED.is_dir() and os.environ.get("CI"):
    raise FileNotFoundError(f"{SHARED} is missing; in CI a test that needs it must not be skipped")

needs_shared = pytest.mark.skipif(
    not SHARED.is_dir(),
    reason=f"the shared test data is not at {SHARED}; set BRIDGE_SHARED to where it is",
)
