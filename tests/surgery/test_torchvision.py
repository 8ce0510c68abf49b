"""torchvision's detectors at full size: static, and bit-identical to the export they came from."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from bridge import static_nms, surgery
from bridge.model import Array, load
from bridge.options import Options
from bridge.pytorch import Exporter
from bridge.static_model import StaticModel
from bridge.verify.golden import session_of
from scripts.export_torchvision import DETECTORS, Detector

ROOT = Path(__file__).resolve().parents[2]
# Where exports are kept between runs; they are the same for the same versions of torch.
CACHE = Path(os.environ.get("BRIDGE_TORCHVISION", ROOT / "build" / "torchvision"))
# The dynamo exporter takes minutes for each of the others.
ALWAYS = ("ssdlite320_mobilenet_v3_large", "fasterrcnn_mobilenet_v3_large_320_fpn")
ALL = "BRIDGE_ALL_TORCHVISION"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def _cases() -> Iterator[object]:
    for detector in DETECTORS:
        for exporter in Exporter:
            always = exporter is Exporter.TORCHSCRIPT or detector.name in ALWAYS
            skipped = pytest.mark.skipif(
                not always and ALL not in os.environ,
                reason=f"its export takes minutes; set {ALL}=1 to run it",
            )
            name = f"{detector.name}-{exporter}"
            yield pytest.param(detector, exporter, id=name, marks=skipped)


def exported(detector: Detector, exporter: Exporter) -> Path:
    """The export in the cache; made in a process of its own, which gives torch's memory back."""
    path = detector.file(CACHE, exporter)
    if not path.exists():
        command = [sys.executable, "-m", "scripts.export_torchvision", str(CACHE)]
        subprocess.run(
            [*command, "--only", detector.name, "--exporter", exporter], cwd=ROOT, check=True
        )
    return path


def _pictures(size: int) -> dict[str, NDArray[np.float32]]:
    """From none to more detections than a model returns, depending on the model."""
    rng = np.random.default_rng(5)
    rows, columns = np.mgrid[0:size, 0:size] / size
    made = {
        "even noise": rng.random((3, size, size)),
        "strong noise": rng.normal(size=(3, size, size)),
        "faint noise": 0.45 + 0.01 * rng.random((3, size, size)),
        "waves": 0.5 + 0.5 * np.sin(40 * np.stack([rows, columns, rows * columns])),
        "grey": np.full((3, size, size), 0.45),
        "white": np.ones((3, size, size)),
    }
    return {name: picture[None].astype(np.float32) for name, picture in made.items()}


@pytest.mark.parametrize(("detector", "exporter"), _cases())
def test_the_static_model_equals_the_export(detector: Detector, exporter: Exporter) -> None:
    source = load(exported(detector, exporter))
    static = surgery.run(source.model, Options()).static
    _assert_static(static)
    judge = session_of(source.model.SerializeToString())
    candidate = session_of(static_nms.inline(static.model).SerializeToString())
    names = [output.name for output in judge.get_outputs()]
    padded_names = [output.name for output in candidate.get_outputs()]
    counts = []
    for picture in _pictures(detector.size).values():
        feeds = {"images": picture}
        expected = dict(zip(names, judge.run(names, feeds), strict=True))
        found = dict(zip(padded_names, candidate.run(padded_names, feeds), strict=True))
        counts.append(_assert_rows(static, expected, found))
    assert min(counts) < max(counts), "the pictures do not differ in what is found"
    assert max(counts) > 0


def _assert_rows(
    static: StaticModel, expected: Mapping[str, Array], found: Mapping[str, Array]
) -> int:
    """Bit-identical first rows, zeros behind them, the right count; returns it."""
    assert {output.name for output in static.padded} == set(expected)
    real = 0
    for output in static.padded:
        (rows,) = output.rows
        assert rows.axis == 0
        real = int(found[rows.count][0])
        first, rest = found[output.name][:real], found[output.name][real:]
        assert first.dtype == expected[output.name].dtype
        np.testing.assert_array_equal(first, expected[output.name], err_msg=output.name)
        assert not rest.any(), f"{output.name} has padding that is not zero"
    return real


def _assert_static(static: StaticModel) -> None:
    graph = static.model.graph
    for value in (*graph.input, *graph.value_info, *graph.output):
        dims = value.type.tensor_type.shape.dim
        assert all(dim.HasField("dim_value") for dim in dims), f"{value.name} is dynamic"
    dynamic = {"If", "Loop", "Scan", "NonZero", "NonMaxSuppression"}
    assert not dynamic & {node.op_type for node in graph.node}
    onnx.checker.check_model(static_nms.inline(static.model))
