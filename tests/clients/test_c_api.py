"""A C program on LiteRT's C API runs our files, and prints what we checked."""

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bridge.targets.tflite import TFLITE
from tests.clients.artifacts import EXAMPLES, make
from tests.clients.environment import SECONDS

pytestmark = pytest.mark.skipif(
    shutil.which("cc") is None or shutil.which("make") is None,
    reason="there is no C compiler (cc) or no make on the PATH",
)


@pytest.fixture(scope="module")
def detect(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("litert_c") / "detect"
    made = subprocess.run(
        ["make", "-C", EXAMPLES / "litert_c", f"OUT={program}", f"PYTHON={sys.executable}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stderr
    return program


def _run(*command: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)


@pytest.mark.parametrize("form", ["detections", "postprocess"])
def test_a_c_program_finds_what_we_checked(form: str, detect: Path, tmp_path: Path) -> None:
    made = make(form, tmp_path)
    image = tmp_path / "scene.raw"
    made.scene.tofile(image)
    done = _run(detect, made.path, image)
    assert done.returncode == 0, done.stderr
    found = np.array([line.split() for line in done.stdout.splitlines()], np.float64)
    with TFLITE.open(made.path) as session:
        expected = session.run({"images": made.scene})
    count = int(expected["num_detections"][0])
    assert count >= 3
    columns = [expected[f"detection_{name}"][0, :count] for name in ("classes", "scores", "boxes")]
    rows = np.column_stack(columns).astype(np.float64)
    np.testing.assert_allclose(found, rows, rtol=1e-5, atol=1e-6)


def test_it_says_what_is_wrong(detect: Path, tmp_path: Path) -> None:
    made = make("detections", tmp_path)
    image = tmp_path / "short.raw"
    image.write_bytes(b"short")
    done = _run(detect, made.path, image)
    assert done.returncode == 1
    assert "does not hold the 76800 bytes" in done.stderr
    done = _run(detect, tmp_path / "nowhere.tflite", image)
    assert done.returncode == 1
    assert "reading the model fails" in done.stderr
