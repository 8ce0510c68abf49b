"""Whole models: every export and case, and real detectors, against onnxruntime on the file."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from PIL import Image

from bridge.errors import UnsupportedModelError
from bridge.model import load
from bridge.static_model import StaticModel
from bridge.surgery.normalise import normalise
from bridge.surgery.static import make_static
from tests.shared import SHARED, needs_shared
from tests.surgery.judge import compiled
from tests.surgery.static.held import Feeds, assert_same_rows, assert_well_formed

pytestmark = needs_shared

type Array = NDArray[Any]

EXPORTS = sorted(path.stem for path in (SHARED / "exports").glob("*.onnx"))
CASES = sorted(path.stem for path in (SHARED / "cases").glob("*.onnx"))
REFUSED = "case_trt_efficient_nms"


def _stored(path: Path, model: onnx.ModelProto) -> list[dict[str, Array]]:
    held = np.load(path.with_suffix(".npz"))
    if "input_names" in held.files:
        names = [str(name) for name in held["input_names"]]
        return [
            {name: held[f"s{k}_in_{i}"] for i, name in enumerate(names)}
            for k in range(int(held["n_sets"]))
        ]
    constants = {tensor.name for tensor in model.graph.initializer}
    inputs = [value.name for value in model.graph.input if value.name not in constants]
    return [{name: held[f"in{k}"] for k, name in enumerate(inputs)}]


def _varied(feeds: Mapping[str, Array]) -> list[dict[str, Array]]:
    """The same, shuffled, noise, nothing at all, far more and far less than usual."""
    rng = np.random.default_rng(5)

    def each(change: Callable[[Array], Array]) -> dict[str, Array]:
        return {
            name: change(np.nan_to_num(array, posinf=1e6).astype(np.float64)).astype(array.dtype)
            if array.dtype.kind == "f"
            else array
            for name, array in feeds.items()
        }

    return [
        each(lambda a: rng.permutation(a.reshape(-1)).reshape(a.shape)),
        each(lambda a: rng.standard_normal(a.shape) * (a.std() + 1e-3)),
        each(np.zeros_like),
        each(lambda a: np.zeros_like(a) - 100),
        each(lambda a: a * 3),
        each(lambda a: a * 0.2),
    ]


def _shapes(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> dict[str, tuple[int, ...]]:
    """The stored shapes of inputs with a free dimension."""
    return {
        value.name: feeds[value.name].shape
        for value in model.graph.input
        if value.name in feeds
        and not all(dim.HasField("dim_value") for dim in value.type.tensor_type.shape.dim)
    }


def _held(
    source: onnx.ModelProto,
    sets: Sequence[Feeds],
    *,
    shapes: Mapping[str, Sequence[int]],
    freeze: Mapping[str, Array] | None = None,
    max_detections: int | None = None,
) -> tuple[StaticModel, list[int]]:
    """Convert and compare; the static model and the greatest count of each set."""
    frozen = freeze or {}
    normal, _ = normalise(source, input_shapes=shapes, freeze=frozen)
    static = make_static(normal, max_detections=max_detections)
    assert_well_formed(static)
    judge, candidate = compiled(source), compiled(static.model)
    counts = []
    for feeds in sets:
        got = candidate(feeds)
        assert_same_rows(static, judge({**feeds, **frozen}), got)
        names = {rows.count for output in static.padded for rows in output.rows}
        counts.append(max((int(got[name][0]) for name in names), default=-1))
    return static, counts


@pytest.mark.parametrize("name", EXPORTS)
def test_export(name: str) -> None:
    path = SHARED / "exports" / f"{name}.onnx"
    source = load(path).model
    (stored,) = _stored(path, source)
    sets = [stored, *_varied(stored)]
    static, counts = _held(source, sets, shapes=_shapes(source, stored))
    if static.padded:
        assert len(set(counts)) > 1 or min(counts) >= 20, counts


@pytest.mark.parametrize("name", [name for name in CASES if name != REFUSED])
def test_case(name: str) -> None:
    path = SHARED / "cases" / f"{name}.onnx"
    source = load(path).model
    stored = _stored(path, source)
    _, counts = _held(source, [*stored, *_varied(stored[0])], shapes={})
    assert max(counts) > 0


def test_another_plug_in_is_refused_by_name() -> None:
    source = load(SHARED / "cases" / f"{REFUSED}.onnx").model
    with pytest.raises(UnsupportedModelError, match=r"TRT::EfficientNMS_TRT.*batched_nms"):
        make_static(normalise(source, input_shapes={}, freeze={})[0])


def _photos(size: int, prepare: Callable[[Array], Array]) -> list[dict[str, Array]]:
    sets = []
    for path in sorted((SHARED / "photos").glob("*.jpg")):
        picture = Image.open(path).convert("RGB").resize((size, size))
        pixels = prepare(np.asarray(picture, np.float32))
        sets.append({"input": pixels.transpose(2, 0, 1)[None].astype(np.float32)})
    return sets


def test_rtmdet_finds_persons() -> None:
    mean, std = [103.53, 116.28, 123.675], [57.375, 57.12, 58.395]
    sets = _photos(320, lambda pixels: (pixels[..., ::-1] - mean) / std)
    source = load(SHARED / "models" / "rtmdet-nano-person.onnx").model
    _, counts = _held(source, sets, shapes={"input": (1, 3, 320, 320)})
    assert min(counts) >= 1


@pytest.mark.parametrize("threshold", [0.6, 0.01])
def test_blazeface_blends_faces(threshold: float) -> None:
    """A weighted suppression in local functions, thresholds frozen; also with exactly one face."""
    sets = _photos(128, lambda pixels: pixels / 255)
    close = Image.open(SHARED / "photos" / "astronaut.jpg").convert("RGB").crop((120, 20, 320, 220))
    pixels = np.asarray(close.resize((128, 128)), np.float32) / 255
    sets.append({"input": pixels.transpose(2, 0, 1)[None].copy()})
    frozen: dict[str, Array] = {
        "max_output_boxes": np.array(20, np.int64),
        "iou_threshold": np.array(0.3, np.float32),
        "score_threshold": np.array(threshold, np.float32),
    }
    source = load(SHARED / "models" / "blazeface-front-e2e.onnx").model
    _, counts = _held(source, sets, shapes={}, freeze=frozen)
    assert {0, 1} <= set(counts) if threshold > 0.5 else max(counts) == 20


def test_blazeface_without_thresholds_is_refused() -> None:
    source = load(SHARED / "models" / "blazeface-front-e2e.onnx").model
    normal, _ = normalise(source, input_shapes={}, freeze={})
    with pytest.raises(UnsupportedModelError, match=r"NonMaxSuppression.*--freeze"):
        make_static(normal)


@pytest.mark.parametrize("classes", [1, 80])
@pytest.mark.parametrize("cap", [None, 7])
def test_nms_yolov8_selects(classes: int, cap: int | None) -> None:
    shape = (1, 4 + classes, 320)
    rng = np.random.default_rng(2)
    sets = []
    for scale in (1.0, 0.5, 0.1, 0.26, 0.0):
        detection = rng.random(shape).astype(np.float32)
        detection[:, :4] *= 300
        detection[:, 4:] *= np.float32(scale)
        sets.append({"detection": detection})
    source = load(SHARED / "models" / "nms-yolov8.onnx").model
    _, counts = _held(
        source,
        sets,
        shapes={"detection": shape},
        freeze={"config": np.array([100, 0.45, 0.25], np.float32)},
        max_detections=cap,
    )
    assert 0 in counts
    assert max(counts) == (cap or 100)
