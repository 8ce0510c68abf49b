"""Heads without a shared model, on random networks, against others' decode or numpy."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest

from bridge.heads import HeadOptions, complete
from tests.heads.models import runner
from tests.heads.networks import Array, Raw, image, network
from tests.heads.numpy_decode import Candidates, Found, around, cells, detect, sigmoid, softmax
from tests.shared import SHARED, needs_shared

STRIDES = (8, 16, 32, 64, 128)
SIZE = (160, 96)


def agree(found: dict[str, Array], expected: Found) -> None:
    """The same detections in the same order, up to float noise."""
    assert len(found["scores"]) == len(expected.scores) > 10
    np.testing.assert_allclose(found["scores"], expected.scores, atol=1e-6)
    np.testing.assert_array_equal(found["classes"], expected.classes)
    np.testing.assert_allclose(found["boxes"], expected.boxes, rtol=1e-5, atol=1e-4)
    if expected.extras is not None:
        np.testing.assert_allclose(found["extras"], expected.extras, rtol=1e-5, atol=1e-4)


def per_level(name: str, columns: int, anchors: int = 1, **more: Any) -> list[Raw]:
    return [
        Raw(f"{name}_{level}", ((stride, columns),), "map", anchors, **more)
        for level, stride in enumerate(STRIDES)
    ]


def in_one(name: str, columns: int, anchors: int = 1, **more: Any) -> list[Raw]:
    return [Raw(name, tuple((s, columns) for s in STRIDES), "rows", anchors, **more)]


def flat(raw: dict[str, Array], name: str, columns: int) -> Array:
    """Rows of all levels, cells outermost and the priors of a cell inside."""
    if name in raw:
        return np.asarray(raw[name][0])
    parts = []
    for level in range(len(STRIDES)):
        one = raw[f"{name}_{level}"][0]
        anchors = one.shape[0] // columns
        opened = one.reshape(anchors, columns, *one.shape[1:])
        parts.append(opened.transpose(2, 3, 0, 1).reshape(-1, columns))
    return np.concatenate(parts)


def torchvision_levels(rows: Array, anchors: int) -> list[Any]:
    import torch

    counts = [-(-SIZE[0] // s) * -(-SIZE[1] // s) * anchors for s in STRIDES]
    return list(torch.split(torch.from_numpy(np.ascontiguousarray(rows))[None], counts, dim=1))


def torchvision_anchors(sizes: tuple[tuple[int, ...], ...], ratios: tuple[float, ...]) -> list[Any]:
    import torch
    from torchvision.models.detection.anchor_utils import AnchorGenerator
    from torchvision.models.detection.image_list import ImageList

    maps = [torch.zeros(1, 1, -(-SIZE[1] // s), -(-SIZE[0] // s)) for s in STRIDES]
    images = ImageList(torch.zeros(1, 3, SIZE[1], SIZE[0]), [(SIZE[1], SIZE[0])])
    (anchors,) = AnchorGenerator(sizes, (ratios,) * len(sizes))(images, maps)
    counts = [m.shape[2] * m.shape[3] * len(sizes[0]) * len(ratios) for m in maps]
    return list(anchors.split(counts))


def from_torchvision(detections: list[dict[str, Any]]) -> Found:
    (only,) = detections
    return Found(only["boxes"].numpy(), only["scores"].numpy(), only["labels"].numpy(), extras=None)


@pytest.mark.parametrize("outputs", [per_level, in_one])
def test_retinanet_is_torchvisions(outputs: Any) -> None:
    from torchvision.models.detection import _utils, retinanet

    model = network(SIZE, [*outputs("cls_logits", 5, 9), *outputs("bbox_regression", 4, 9)])
    raw = runner(model)(image(SIZE))
    rule = SimpleNamespace(
        score_thresh=0.6,
        topk_candidates=100_000,
        nms_thresh=0.5,
        detections_per_img=300,
        box_coder=_utils.BoxCoder(weights=(1.0, 1.0, 1.0, 1.0)),
    )
    sizes = tuple(
        (x, int(x * 2 ** (1 / 3)), int(x * 2 ** (2 / 3))) for x in (32, 64, 128, 256, 512)
    )
    expected = retinanet.RetinaNet.postprocess_detections(
        rule,
        {
            "cls_logits": torchvision_levels(flat(raw, "cls_logits", 5), 9),
            "bbox_regression": torchvision_levels(flat(raw, "bbox_regression", 4), 9),
        },
        [torchvision_anchors(sizes, (0.5, 1.0, 2.0))],
        [(SIZE[1], SIZE[0])],
    )
    options = HeadOptions(score_threshold=0.6, pre_nms_top_k=0)
    agree(runner(complete(model, "retinanet", options))(image(SIZE)), from_torchvision(expected))


@pytest.mark.parametrize("outputs", [per_level, in_one])
def test_fcos_is_torchvisions(outputs: Any) -> None:
    from torchvision.models.detection import _utils, fcos

    made = {"cls_logits": 5, "bbox_regression": 4, "bbox_ctrness": 1}
    then = {"bbox_regression": "Relu"}
    model = network(
        SIZE,
        [r for name, n in made.items() for r in outputs(name, n, scale=2, then=then.get(name))],
    )
    raw = runner(model)(image(SIZE))
    rule = SimpleNamespace(
        score_thresh=0.4,
        topk_candidates=100_000,
        nms_thresh=0.6,
        detections_per_img=100,
        box_coder=_utils.BoxLinearCoder(normalize_by_size=True),
    )
    expected = fcos.FCOS.postprocess_detections(
        rule,
        {name: torchvision_levels(flat(raw, name, n), 1) for name, n in made.items()},
        [torchvision_anchors(tuple((s,) for s in STRIDES), (1.0,))],
        [(SIZE[1], SIZE[0])],
    )
    options = HeadOptions(score_threshold=0.4, pre_nms_top_k=0)
    agree(runner(complete(model, "fcos", options))(image(SIZE)), from_torchvision(expected))


def test_retinaface() -> None:
    levels = ((8, 4), (16, 4), (32, 4))
    outputs = [
        Raw("loc", levels, "rows", 2),
        Raw("conf", tuple((s, 2) for s, _ in levels), "rows", 2, scale=2),
        Raw("landmarks", tuple((s, 10) for s, _ in levels), "rows", 2),
    ]
    model = network(SIZE, outputs)
    raw = runner(model)(image(SIZE))
    center, prior = [], []
    for s, sizes in ((8, (16, 32)), (16, (64, 128)), (32, (256, 512))):
        cell = cells(-(-SIZE[0] // s), -(-SIZE[1] // s))
        center.append(((cell + 0.5) * s).repeat(2, 0))
        prior.append(np.tile(sizes, len(cell)))
    middle, edge = np.concatenate(center), np.concatenate(prior)[:, None]
    loc, points = raw["loc"][0], raw["landmarks"][0].reshape(-1, 5, 2)
    expected = detect(
        Candidates(
            around(middle + loc[:, :2] * 0.1 * edge, edge * np.exp(loc[:, 2:] * 0.2)),
            softmax(raw["conf"][0])[:, 1:],
            (middle[:, None] + points * 0.1 * edge[:, None]).reshape(-1, 10),
        ),
        score=0.6,
        iou=0.4,
    )
    options = HeadOptions(score_threshold=0.6, overrides=("activations.cls=softmax",))
    agree(runner(complete(model, "retinaface", options))(image(SIZE)), expected)


def test_ssd_has_the_priors_of_ssd300() -> None:
    """The default boxes of torchvision's SSD300, by its own generator."""
    import torch
    from torchvision.models.detection.anchor_utils import DefaultBoxGenerator
    from torchvision.models.detection.image_list import ImageList

    ratios, strides = [[2], [2, 3], [2, 3], [2, 3], [2], [2]], [8, 16, 32, 64, 100, 300]
    maps = [38, 19, 10, 5, 3, 1]
    generator = DefaultBoxGenerator(
        ratios, scales=[0.07, 0.15, 0.33, 0.51, 0.69, 0.87, 1.05], steps=strides
    )
    images = ImageList(torch.zeros(1, 3, 300, 300), [(300, 300)])
    (expected,) = generator(images, [torch.zeros(1, 1, n, n) for n in maps])
    edges = [300 * s for s in (0.07, 0.15, 0.33, 0.51, 0.69, 0.87, 1.05)]
    rows, found = everything(
        "ssd",
        (300, 300),
        [("loc", 4), ("conf", 2)],
        8732,
        (
            f"strides={strides}",
            f"priors.sizes={edges[:-1]}",
            f"priors.max_sizes={edges[1:]}",
            f"priors.aspect_ratios={ratios}",
            "spacing=stride",
            "priors.clip=size",
        ),
    )
    np.testing.assert_allclose(found["boxes"], expected.numpy()[rows], atol=0.01)


def everything(
    head: str,
    size: tuple[int, int],
    outputs: list[tuple[str, int]],
    rows: int,
    overrides: tuple[str, ...],
) -> tuple[Array, dict[str, Array]]:
    """A head on zeros and falling scores, nothing suppressed: the order of rows, the outputs."""
    order = np.random.default_rng(0).permutation(rows)
    scores = np.zeros((1, rows, outputs[1][1]), np.float32)
    scores[0, order, -1] = np.linspace(0.9, 0.1, rows, dtype=np.float32)
    zeros = np.zeros((1, rows, outputs[0][1]), np.float32)
    constants = [
        onnx.numpy_helper.from_array(zeros, "zeros"),
        onnx.numpy_helper.from_array(scores, "scores_"),
    ]
    nodes = [
        onnx.helper.make_node("Identity", [name], [output])
        for name, output in zip(("zeros", "scores_"), (n for n, _ in outputs), strict=True)
    ]
    float32 = onnx.TensorProto.FLOAT
    graph = onnx.helper.make_graph(
        nodes,
        "zeros",
        [onnx.helper.make_tensor_value_info("image", float32, [1, 3, size[1], size[0]])],
        [onnx.helper.make_tensor_value_info(n, float32, [1, rows, c]) for n, c in outputs],
        constants,
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)])
    options = HeadOptions(
        score_threshold=0, iou_threshold=1, max_detections=rows, overrides=overrides
    )
    found = runner(complete(model, head, options))(np.zeros((1, 3, size[1], size[0]), np.float32))
    assert len(found["scores"]) == rows
    return order, found


@needs_shared
@pytest.mark.parametrize("exporter", ["ts.op17", "dy.opdef"])
def test_yolov5_export(exporter: str) -> None:
    model, feed = export(f"yolo5_raw_s.{exporter}")
    raw = runner(model)(feed)["dets"][0]
    expected = detect(
        Candidates(around(raw[:, :2], raw[:, 2:4]), raw[:, 4:5] * raw[:, 5:]), 0.25, 0.45, 300
    )
    agree(runner(complete(model, "yolov5"))(feed), expected)


@needs_shared
@pytest.mark.parametrize("exporter", ["ts.op17", "dy.opdef"])
@pytest.mark.parametrize("agnostic", [False, True])
@pytest.mark.parametrize("name", ["yolov8", "yolo11"])
def test_yolov8_export(exporter: str, agnostic: bool, name: str) -> None:
    model, feed = export(f"yolo8_raw_s.{exporter}")
    raw = runner(model)(feed)["pred"][0].T
    candidates = Candidates(around(raw[:, :2], raw[:, 2:4]), raw[:, 4:])
    expected = detect(candidates, 0.25, 0.7, 300, agnostic=agnostic)
    options = HeadOptions(class_agnostic=agnostic)
    agree(runner(complete(model, name, options))(feed), expected)


@needs_shared
def test_yolov8_pose_columns_follow_their_boxes() -> None:
    """With `classes` given, the further columns are key points."""
    model, feed = export("yolo8_raw_s.ts.op17")
    raw = runner(model)(feed)["pred"][0].T
    candidates = Candidates(around(raw[:, :2], raw[:, 2:4]), raw[:, 4:6], raw[:, 6:])
    expected = detect(candidates, 0.25, 0.7, 300)
    options = HeadOptions(overrides=("classes=2",))
    found = runner(complete(model, "yolov8", options))(feed)
    assert found["extras"].shape == (len(expected.scores), 4)
    agree(found, expected)


def export(name: str) -> tuple[onnx.ModelProto, Array]:
    folder = SHARED / "exports"
    return onnx.load(folder / f"{name}.onnx"), np.load(folder / f"{name}.npz")["in0"]


def test_nanodet_plus_and_picodet_are_one_head_in_two_layouts() -> None:
    strides = (8, 16, 32, 64)
    parts = [
        Raw(f"{role}_{s}", ((s, n),), "rows", scale=2, then=then)
        for role, n, then in (("cls", 3, "Sigmoid"), ("dis", 32, None))
        for s in strides
    ]
    model = network(SIZE, parts)
    raw = runner(model)(image(SIZE))
    boxes, scores = [], []
    for s in strides:
        center = (cells(-(-SIZE[0] // s), -(-SIZE[1] // s)) + 0.5) * s
        bins = softmax(raw[f"dis_{s}"][0].reshape(-1, 4, 8)) @ np.arange(8) * s
        boxes.append(np.concatenate([center - bins[:, :2], center + bins[:, 2:]], 1))
        scores.append(raw[f"cls_{s}"][0])
    expected = detect(Candidates(np.concatenate(boxes), np.concatenate(scores)), 0.45, 0.5)
    agree(runner(complete(model, "picodet"))(image(SIZE)), expected)

    joined = join(model, [(f"cls_{s}", f"dis_{s}") for s in strides])
    options = HeadOptions(
        score_threshold=0.45,
        iou_threshold=0.5,
        overrides=("box.point=(cell + 0.5) * stride",),
    )
    agree(runner(complete(joined, "nanodet-plus", options))(image(SIZE)), expected)


def join(model: onnx.ModelProto, pairs: list[tuple[str, str]]) -> onnx.ModelProto:
    """The same model with one output of all levels, both roles side by side."""
    for number, pair in enumerate(pairs):
        model.graph.node.append(onnx.helper.make_node("Concat", pair, [f"level_{number}"], axis=2))
    levels = [f"level_{number}" for number in range(len(pairs))]
    model.graph.node.append(onnx.helper.make_node("Concat", levels, ["predictions"], axis=1))
    del model.graph.output[:]
    model.graph.output.append(
        onnx.helper.make_tensor_value_info("predictions", onnx.TensorProto.FLOAT, None)
    )
    return onnx.shape_inference.infer_shapes(model)


LAYOUTS = {
    "1 (A C) H W": "map",
    "1 A H W C": "A H W C",
    "1 H W A C": "H W A C",
    "1 A C H W": "A C H W",
    "1 H W C A": "H W C A",
    "1 N C": "rows",
    "1 C N": "columns",
    "1 N (A C)": "H W A C",
}


@pytest.mark.parametrize(
    ("layout", "order"),
    [
        (layout, order)
        for layout, form in LAYOUTS.items()
        for order in ("H W A", "A H W")
        # The rows of this network come cell by cell.
        if order == "H W A" or form not in ("rows", "columns")
    ],
)
def test_every_layout_of_three_priors(layout: str, order: str, tmp_path: Any) -> None:
    """YOLOv5's raw maps, the example of the documentation, in whatever shape they come."""
    sizes = {8: [(10, 13), (16, 30), (33, 23)], 16: [(30, 61), (62, 45), (59, 119)]}
    raws = [Raw(f"map_{s}", ((s, 8),), LAYOUTS[layout], 3) for s in sizes]
    plain = [Raw(f"map_{s}", ((s, 8),), "rows", 3) for s in sizes]
    model, reference = network(SIZE, raws), network(SIZE, plain)
    if layout == "1 N (A C)":
        model = flatten_cells(model)
    boxes, scores = [], []
    raw = runner(reference)(image(SIZE))
    for s, edges in sizes.items():
        one = sigmoid(raw[f"map_{s}"][0])
        cell = cells(-(-SIZE[0] // s), -(-SIZE[1] // s)).repeat(3, 0)
        size = (2 * one[:, 2:4]) ** 2 * np.tile(edges, (len(cell) // 3, 1))
        boxes.append(around((2 * one[:, :2] - 0.5 + cell) * s, size))
        scores.append(one[:, 4:5] * one[:, 5:])
    expected = detect(Candidates(np.concatenate(boxes), np.concatenate(scores)), 0.3, 0.45)
    head = tmp_path / "raw5.toml"
    head.write_text(
        f"""
        strides = [8, 16]
        row_order = "{order}"
        [outputs.map]
        layout = "{layout}"
        columns = {{ xy = 2, wh = 2, obj = 1, cls = "classes" }}
        [activations]
        xy = "sigmoid"
        wh = "sigmoid"
        obj = "sigmoid"
        cls = "sigmoid"
        [priors]
        boxes = {[list(map(list, edges)) for edges in sizes.values()]}
        [box]
        center = "(2 * xy - 0.5 + cell) * stride"
        size = "(2 * wh) ** 2 * prior_size"
        [score]
        value = "obj * cls"
        [suppression]
        score_threshold = 0.3
        """
    )
    agree(runner(complete(model, head))(image(SIZE)), expected)


def flatten_cells(model: onnx.ModelProto) -> onnx.ModelProto:
    """[1, H, W, A, C] as [1, H * W, A * C]."""
    names = [output.name for output in model.graph.output]
    shape = onnx.numpy_helper.from_array(np.asarray([1, -1, 24]), "cells_shape")
    model.graph.initializer.append(shape)
    del model.graph.output[:]
    for name in names:
        node = onnx.helper.make_node("Reshape", [name, "cells_shape"], [f"{name}_flat"])
        model.graph.node.append(node)
        model.graph.output.append(
            onnx.helper.make_tensor_value_info(f"{name}_flat", onnx.TensorProto.FLOAT, None)
        )
    return onnx.shape_inference.infer_shapes(model, data_prop=True)
