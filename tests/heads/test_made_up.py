"""A head of no known model, its file written with nothing but docs/heads.md at hand."""

from pathlib import Path

import numpy as np
import onnx

from bridge.heads import HeadOptions, complete
from tests.heads.models import runner
from tests.heads.networks import Raw, image, network
from tests.heads.numpy_decode import Candidates, cells, detect, sigmoid, softmax

SIZE = (104, 60)
STRIDES = (10, 20)
TALL, WIDE = (12.0, 24.0), (30.0, 15.0)

HEAD = """
about = "two priors per cell, distances as powers of two, three key points with visibility"
strides = [[8, 16], [10, 20]]
row_order = "A H W"
classes = 3

[outputs.geometry]
name = "shape_at_{stride}"
layout = "1 H W (A C)"
columns = { shift = 2, sides = 4 }

[outputs.answers]
name = ["answers_{level}", "*"]
layout = "1 A C H W"
columns = { points = 6, seen = 3, trust = 1, kind = "classes" }

[activations]
kind = "softmax"
seen = "sigmoid"

[constants]
reach = 0.25
gain = [0.9, 1.1]

[priors]
boxes = [[[12, 24], [30, 15]], [[24, 48], [60, 30]]]
offset = 0.25
spacing = "map"

[box]
point = "(prior_center + reach * tanh(shift) * prior_size * gain) / image"
distances = "2 ** clip(sides, -2, 3) * stride / concat(image, image)"
units = "fractions"
clip = true

[score]
value = "max(0, kind) * sigmoid(trust) ** 0.5"
background = "last"

[extras]
value = "concat((cell + points / 2) * stride, seen)"

[suppression]
score_threshold = 0.35
iou_threshold = 0.4
max_detections = 40
"""


def join_priors(model: onnx.ModelProto) -> onnx.ModelProto:
    """The geometry [1, H, W, A, C] as [1, H, W, A * C]."""
    for number, s in enumerate(STRIDES):
        output = model.graph.output[number]
        (writer,) = (node for node in model.graph.node if node.output[0] == output.name)
        writer.output[0] = f"{output.name}_open"
        sizes = np.asarray([1, -(-SIZE[1] // s), -(-SIZE[0] // s), 12])
        model.graph.initializer.append(onnx.numpy_helper.from_array(sizes, f"joined_{s}"))
        node = onnx.helper.make_node("Reshape", [writer.output[0], f"joined_{s}"], [output.name])
        model.graph.node.append(node)
        output.type.tensor_type.ClearField("shape")
    return onnx.shape_inference.infer_shapes(model, data_prop=True)


def test_a_head_nobody_has_seen(tmp_path: Path) -> None:
    outputs = [
        *(Raw(f"shape_at_{s}", ((s, 6),), "H W A C", 2) for s in STRIDES),
        *(Raw(f"answers_{n}", ((s, 14),), "A C H W", 2) for n, s in enumerate(STRIDES)),
    ]
    model = network(SIZE, outputs)
    model = join_priors(model)
    raw = runner(model)(image(SIZE))
    boxes, scores, points = [], [], []
    for number, s in enumerate(STRIDES):
        width, height = -(-SIZE[0] // s), -(-SIZE[1] // s)
        geometry = raw[f"shape_at_{s}"][0].reshape(height, width, 2, 6).transpose(2, 0, 1, 3)
        answers = raw[f"answers_{number}"][0].transpose(0, 2, 3, 1)
        for prior in range(2):
            size = np.asarray([TALL, WIDE][prior], np.float32) * (number + 1)
            cell = cells(width, height)
            shift, sides = np.split(geometry[prior].reshape(-1, 6), [2], 1)
            at = (cell + 0.25) * (SIZE[0] / width, SIZE[1] / height)
            at = at + 0.25 * np.tanh(shift) * size * (0.9, 1.1)
            reach = 2 ** np.clip(sides, -2, 3) * s
            corners = np.concatenate([at - reach[:, :2], at + reach[:, 2:]], 1)
            boxes.append(np.clip(corners, 0, SIZE * 2))
            answer = answers[prior].reshape(-1, 14)
            kind = softmax(answer[:, 10:])[:, :-1]
            scores.append(kind * np.sqrt(sigmoid(answer[:, 9:10])))
            key = (np.tile(cell, 3) + answer[:, :6] / 2) * s
            points.append(np.concatenate([key, sigmoid(answer[:, 6:9])], 1))
    candidates = Candidates(*map(np.concatenate, (boxes, scores, points)))
    expected = detect(candidates, 0.35, 0.4, 40)
    assert len(expected.scores) == 40
    assert len(detect(candidates, 0.6, 0.4).scores) in range(5, 40)

    head = tmp_path / "made_up.toml"
    head.write_text(HEAD)
    found = runner(complete(model, head))(image(SIZE))
    np.testing.assert_array_equal(found["classes"], expected.classes)
    np.testing.assert_allclose(found["scores"], expected.scores, atol=1e-6)
    np.testing.assert_allclose(found["boxes"], expected.boxes, atol=1e-3)
    assert expected.extras is not None
    np.testing.assert_allclose(found["extras"], expected.extras, atol=1e-4)

    few = runner(complete(model, head, HeadOptions(score_threshold=0.6)))(image(SIZE))
    assert len(few["scores"]) == len(detect(candidates, 0.6, 0.4).scores)
