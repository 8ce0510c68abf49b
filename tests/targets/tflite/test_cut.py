"""Where a network ends: what stays with it, what falls to the tail, what is refused."""

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser, shape_inference

from bridge import static_nms
from bridge.errors import UnsupportedModelError
from bridge.static_model import tensor_types
from bridge.targets.tflite.cut import cut, images

CONSTANTS = {
    "w": np.ones((4, 3, 3, 3), np.float32),
    "w3": np.ones((3, 3, 3, 3), np.float32),
    "half": np.array(0.5, np.float32),
    "rows": np.array([1, 4, 64]),
    "zero": np.array([0]),
    "one": np.array([1]),
    "two": np.array([2]),
    "five": np.array([5]),
    "s": np.array(0.1, np.float32),
    "z": np.array(3, np.uint8),
}


def model(text: str) -> onnx.ModelProto:
    """Every node is called after its first output."""
    parsed = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17, "bridge" : 1]> g {text}')
    for node in parsed.graph.node:
        node.name = node.output[0]
    read = {name for node in parsed.graph.node for name in node.input}
    parsed.graph.initializer.extend(
        numpy_helper.from_array(array, name) for name, array in CONSTANTS.items() if name in read
    )
    static_nms.attach(parsed)
    return shape_inference.infer_shapes(parsed, strict_mode=True, data_prop=True)


def parts(text: str) -> tuple[str, str, str, tuple[str, ...]]:
    """Names of the nodes in head, network and tail, and the border."""
    found = cut(model(text))
    head, network, tail = (
        " ".join(node.name for node in nodes) for nodes in (found.head, found.network, found.tail)
    )
    return head, network, tail, found.border


CONV = "conv = Conv<pads=[1,1,1,1]>(x, w)"

# Text of a graph; head, network, tail; border.
PARTS: dict[str, tuple[str, tuple[str, str, str, tuple[str, ...]]]] = {
    "a network alone": (
        f"(float[1,3,8,8] x) => (float[1,4,8,8] conv) {{ {CONV} }}",
        ("", "conv", "", ("conv",)),
    ),
    "no network at all": (
        "(float[1,4,64] x) => (float[1,4,5] v) { a = Sigmoid(x) v, i = TopK(a, five) }",
        ("", "", "a v", ("x",)),
    ),
    "everything behind a TopK": (
        f"(float[1,3,8,8] x) => (float[1,4,5] y) "
        f"{{ {CONV} r = Reshape(conv, rows) v, i = TopK(r, five) y = Exp(v) }}",
        ("", "conv r", "v y", ("r",)),
    ),
    "cheap arithmetic falls to the tail, Sigmoid does not": (
        f"(float[1,3,8,8] x) => (float[1,4,5] v) "
        f"{{ {CONV} r = Reshape(conv, rows) q = Sigmoid(r) m = Mul(q, half) "
        "v, i = TopK(m, five) }",
        ("", "conv r q", "m v", ("q",)),
    ),
    "what the network reads as well stays with it": (
        f"(float[1,3,8,8] x) => (float[1,4,5] v, float[1,4,64] e) {{ {CONV} "
        "r = Reshape(conv, rows) m = Mul(r, half) e = Exp(m) v, i = TopK(m, five) }",
        ("", "conv r m e", "v", ("m", "e")),
    ),
    "movers at the border belong to the layout": (
        f"(float[1,3,8,8] x) => (float[1,64,4] v) {{ {CONV} r = Reshape(conv, rows) "
        "t = Transpose<perm=[0,2,1]>(r) v = Mul(t, half) }",
        ("", "conv r t", "v", ("t",)),
    ),
    "parts of one tensor cross as a whole": (
        f"(float[1,3,8,8] x) => (float[1,2,64] y) {{ {CONV} r = Reshape(conv, rows) "
        "a = Slice(r, zero, two, one) y = Mul(a, half) }",
        ("", "conv r", "a y", ("r",)),
    ),
    "arithmetic over images stays": (
        f"(float[1,3,8,8] x) => (float[1,4,8,8] y) {{ {CONV} y = Mul(conv, half) }}",
        ("", "conv y", "", ("y",)),
    ),
    "an integer image is the head's": (
        "(uint8[1,3,8,8] x) => (float[1,4,8,8] y) "
        "{ f = Cast<to=1>(x) g = Mul(f, half) y = Conv<pads=[1,1,1,1]>(g, w) }",
        ("f", "g y", "", ("y",)),
    ),
    "a head that the tail reads is emitted again": (
        "(uint8[1,3,8,8] x) => (float[1,4,8,8] y, float[1,3,8,8] f) "
        "{ f = Cast<to=1>(x) y = Conv<pads=[1,1,1,1]>(f, w) }",
        ("f", "y", "f", ("y", "x")),
    ),
    "a mask inside a network stays": (
        "(float[1,3,8,8] x) => (float[1,4,8,8] y) { a = Conv<pads=[1,1,1,1]>(x, w3) "
        "c = Greater(a, half) b = Where(c, a, half) y = Conv<pads=[1,1,1,1]>(b, w) }",
        ("", "a c b y", "", ("y",)),
    ),
    "quantisation inside a network stays": (
        "(float[1,3,8,8] x) => (float[1,4,8,8] y) { q = QuantizeLinear(x, s, z) "
        "d = DequantizeLinear(q, s, z) y = Conv<pads=[1,1,1,1]>(d, w) }",
        ("", "q d y", "", ("y",)),
    ),
    "quantisation behind a network is the tail's": (
        f"(float[1,3,8,8] x) => (float[1,4,8,8] d) {{ {CONV} q = QuantizeLinear(conv, s, z) "
        "d = DequantizeLinear(q, s, z) }",
        ("", "conv", "q d", ("conv",)),
    ),
    "inputs that the tail reads cross behind the network's": (
        f"(float[1,3,8,8] x, float[64] p) => (float[1,4,5] v) {{ {CONV} r = Reshape(conv, rows) "
        "m = Mul(r, p) v, i = TopK(m, five) }",
        ("", "conv r", "m v", ("r", "p")),
    ),
}


@pytest.mark.parametrize("name", PARTS)
def test_parts(name: str) -> None:
    text, expected = PARTS[name]
    assert parts(text) == expected


REFUSED = {
    "a network behind a TopK": (
        "(float[1,3,8,8] x) => (float[1,3,8,5] y) { a = Conv<pads=[1,1,1,1]>(x, w3) "
        "v, i = TopK(a, five) y = Conv<pads=[1,1,1,1]>(v, w3) }",
        r"Conv \(domain ai.onnx, node 'y'\) stands behind TopK 'v'",
    ),
    "a scatter between operators of the network": (
        "(float[1,3,8,8] x, float[1,3,1,8] u) => (float[1,4,8,8] y) "
        "<int64[1,3,1,8] at = {0,1,2,3,4,5,6,7,0,1,2,3,4,5,6,7,0,1,2,3,4,5,6,7}> "
        "{ a = Conv<pads=[1,1,1,1]>(x, w3) b = ScatterElements<axis=2>(a, at, u) "
        "y = Conv<pads=[1,1,1,1]>(b, w) }",
        r"ScatterElements \(domain ai.onnx, node 'b'\) stands between operators of the network",
    ),
    "an integer network": (
        "(uint8[1,3,8,8] x, uint8[4,3,3,3] k) => (int32[1,4,6,6] y) { y = ConvInteger(x, k) }",
        r"ConvInteger \(domain ai.onnx, node 'y'\) works on int32, uint8",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    text, message = REFUSED[name]
    with pytest.raises(UnsupportedModelError, match=message):
        cut(model(text))


IMAGES = {
    "straight": (f"(float[1,3,8,8] x) => (float[1,4,8,8] conv) {{ {CONV} }}", {"x"}),
    "scaled": (
        "(float[1,3,8,8] x) => (float[1,4,8,8] y) "
        "{ a = Mul(x, half) y = Conv<pads=[1,1,1,1]>(a, w) }",
        {"x"},
    ),
    "NHWC already": (
        "(float[1,8,8,3] x) => (float[1,4,8,8] y) "
        "{ a = Transpose<perm=[0,3,1,2]>(x) y = Conv<pads=[1,1,1,1]>(a, w) }",
        set(),
    ),
    "no batch axis": (
        "(float[3,8,8] x) => (float[1,4,8,8] y) "
        "{ a = Unsqueeze(x, zero) y = Conv<pads=[1,1,1,1]>(a, w) }",
        set(),
    ),
    "no network": ("(float[1,3,8,8] x) => (float[1,3,8,8] y) { y = Exp(x) }", set()),
}


@pytest.mark.parametrize("name", IMAGES)
def test_images(name: str) -> None:
    text, expected = IMAGES[name]
    graph = model(text)
    assert images(graph.graph.node, ["x"], tensor_types(graph)) == expected
