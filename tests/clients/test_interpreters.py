"""Both Python runtimes run every form by the names of its signature, to the same numbers."""

import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from bridge.targets.tflite import TFLITE
from tests.clients.artifacts import FORMS, make
from tests.clients.environment import FOLDER, lines_of

RUNTIMES = [
    "ai_edge_litert",
    pytest.param(
        "tensorflow",
        marks=[
            pytest.mark.slow,
            pytest.mark.skipif(
                find_spec("tensorflow") is None, reason="tensorflow is not installed: make setup"
            ),
        ],
    ),
]


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_runtime_gives_what_we_checked(runtime: str, tmp_path: Path) -> None:
    artifacts = []
    for form in FORMS:
        (tmp_path / form).mkdir()
        artifacts.append(make(form, tmp_path / form))
    feeds, program = tmp_path / "feeds.npz", FOLDER / "run_signature.py"
    np.savez(feeds, images=artifacts[0].scene)
    paths = [made.path for made in artifacts]
    for told, made in zip(
        lines_of([sys.executable, program, runtime, feeds, *paths]), artifacts, strict=True
    ):
        assert told["signature"] == "serving_default"
        for side, ports in (("inputs", made.manifest.inputs), ("outputs", made.manifest.outputs)):
            assert told[side] == {port.name: [port.dtype, list(port.shape)] for port in ports}
        with TFLITE.open(made.path) as session:
            expected = session.run({"images": made.scene})
        assert int(expected["num_detections"][0]) >= 3
        with np.load(f"{made.path}.npz") as found:
            assert set(found.files) == set(expected)
            for name, array in expected.items():
                wanted = np.asarray(array, np.float64)
                np.testing.assert_allclose(found[name], wanted, rtol=1e-5, atol=1e-6, err_msg=name)
