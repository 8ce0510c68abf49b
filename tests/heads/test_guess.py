"""Which head bridge proposes for a model, and which it does not."""

from collections.abc import Callable

import onnx
import pytest

from bridge.heads import complete, guess
from tests.heads.models import CASES, Case
from tests.heads.networks import Raw, network
from tests.heads.test_synthetic import in_one, per_level
from tests.shared import SHARED, needs_shared

SIZE = (160, 96)


@needs_shared
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.file)
def test_shared_models(case: Case) -> None:
    best, *others = guess(case.load())
    assert best.head == case.head
    assert all(other.confidence < best.confidence for other in others)
    complete(case.load(), best.head)


@needs_shared
def test_options_that_a_decoded_model_needs() -> None:
    best = guess(onnx.load(SHARED / "models" / "ultraface-rfb-320.onnx"))[0]
    assert best.options == ("box.units=fractions", "score.background=first")
    assert "boxes are decoded in the model" in best.why


@needs_shared
@pytest.mark.parametrize(
    ("file", "head"),
    [
        (f"yolo{version}_raw_s.{exporter}.onnx", f"yolov{version}")
        for version in (5, 8)
        for exporter in ("ts.op17", "dy.opdef")
    ],
)
def test_exports(file: str, head: str) -> None:
    (only,) = guess(onnx.load(SHARED / "exports" / file))
    assert only.head == head


@needs_shared
@pytest.mark.parametrize(
    "file", ["blazeface-front-e2e.onnx", "nms-yolov8.onnx", "rtmdet-nano-person.onnx"]
)
def test_a_model_that_suppresses_needs_none(file: str) -> None:
    assert guess(onnx.load(SHARED / "models" / file)) == ()


@pytest.mark.parametrize("make", [per_level, in_one])
def test_torchvision_heads(make: Callable[..., list[Raw]]) -> None:
    retina = network(SIZE, [*make("cls_logits", 5, 9), *make("bbox_regression", 4, 9)])
    assert guess(retina)[0].head == "retinanet"
    names = {"cls_logits": 5, "bbox_regression": 4, "bbox_ctrness": 1}
    fcos = network(SIZE, [raw for name, n in names.items() for raw in make(name, n)])
    assert guess(fcos)[0].head == "fcos"


def test_retinaface() -> None:
    strides = (8, 16, 32)
    columns = {"loc": 4, "conf": 2, "landmarks": 10}
    raws = [Raw(n, tuple((s, c) for s in strides), "rows", 2) for n, c in columns.items()]
    assert guess(network(SIZE, raws))[0].head == "retinaface"


def test_nothing_fits_a_classifier() -> None:
    assert guess(network(SIZE, [Raw("logits", ((32, 7),), "A C H W")])) == ()
