"""Each operator of a converted network knows the nodes that it stands for."""

from collections import Counter
from pathlib import Path

import pytest

from bridge import surgery
from bridge.model import load
from bridge.options import Options
from bridge.static_model import tensor_types
from bridge.targets.tflite.cut import cut, images
from bridge.targets.tflite.layers import INPUT
from bridge.targets.tflite.network import Network, convert
from tests.shared import SHARED, needs_shared

SHAPES = Path(__file__).resolve().parents[3] / "examples" / "shapes.onnx"
WEIGHTED = ("Conv", "ConvTranspose", "Gemm", "MatMul")


def network(path: Path, options: Options | None = None) -> tuple[Network, dict[str, str]]:
    """The network of a model, and the operator of each of its nodes by name."""
    model = surgery.run(load(path).model, options or Options()).static.model
    parts, types = cut(model), tensor_types(model)
    nhwc = images(parts.network, parts.network_inputs, types)
    return convert(parts, model, types, nhwc), {n.name: n.op_type for n in parts.network}


@pytest.mark.parametrize(
    ("path", "shape"),
    [
        (SHAPES, None),
        pytest.param(SHARED / "models" / "ultraface-rfb-320.onnx", None, marks=needs_shared),
        pytest.param(SHARED / "models" / "yunet-n-320.onnx", None, marks=needs_shared),
        pytest.param(
            *(SHARED / "models" / "yolox-nano-416.onnx", None),
            marks=(needs_shared, pytest.mark.slow),
        ),
        pytest.param(
            *(SHARED / "models" / "rtmdet-nano-person.onnx", (1, 3, 320, 320)),
            marks=(needs_shared, pytest.mark.slow),
        ),
    ],
    ids=lambda value: value.stem if isinstance(value, Path) else "",
)
def test_every_layer_with_weights_is_one_node_with_weights(
    path: Path, shape: tuple[int, ...] | None
) -> None:
    options = Options(input_shapes={"input": shape} if shape else {})
    found, nodes = network(path, options)
    weighted = [layer for layer in found.layers if layer.weighted]
    assert [nodes[layer.name] for layer in weighted] == ["Conv"] * len(weighted)
    expected = sorted(name for name, kind in nodes.items() if kind in WEIGHTED)
    assert sorted(layer.name for layer in weighted) == expected
    # All other nodes have their operator, too; one that only reshapes may have gone.
    known = {name for layer in found.layers for name in layer.nodes}
    assert {nodes[name] for name in nodes.keys() - known} <= {"Reshape", "Identity", "Flatten"}


def test_operators_know_what_they_read() -> None:
    found, _ = network(SHAPES)
    makers = {name: i for i, layer in enumerate(found.layers) for name in layer.outputs}
    for place, layer in enumerate(found.layers):
        read = {makers.get(name, INPUT) for name in layer.inputs}
        assert set(layer.sources) == read
        assert all(source < place for source in layer.sources)
    assert sum(found.sizes) > 0
    assert Counter(layer.kind for layer in found.layers)["CONV_2D"] == 18
