"""What a `Builder` writes: nothing twice, nothing unread, everything aligned."""

import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as generated
from ai_edge_litert.interpreter import Interpreter

from bridge.static_model import TensorType
from bridge.targets.base import Array
from bridge.targets.tflite.flatbuffer import Builder


def kinds(content: bytes) -> list[str]:
    """The operators of a file, in order."""
    names = {v: k for k, v in vars(generated.BuiltinOperator).items() if isinstance(v, int)}
    model = generated.ModelT.InitFromPackedBuf(content, 0)
    codes = [names[code.builtinCode] for code in model.operatorCodes]
    return [codes[operator.opcodeIndex] for operator in model.subgraphs[0].operators]


def run(content: bytes, **feeds: Array) -> dict[str, Array]:
    runner = Interpreter(model_content=content).get_signature_runner("serving_default")
    return dict(runner(**feeds))


def test_equal_calls_give_equal_bytes() -> None:
    def built() -> bytes:
        builder = Builder()
        x = builder.input("x", (4, 3), "float32")
        values, indices = builder.topk(
            builder.binary("MUL", x, builder.constant(2.0, "float32")), 2
        )
        builder.output("values", values)
        builder.output("indices", builder.cast(indices, "int64"))
        return builder.pack()

    assert built() == built()


def test_equal_constants_and_operators_are_written_once() -> None:
    builder = Builder()
    x = builder.input("x", (3,), "float32")
    first = builder.binary("ADD", x, builder.constant(np.float32(1)))
    second = builder.binary("ADD", x, builder.constant(np.float32(1)))
    assert first == second
    assert builder.constant(np.float32(1)) != builder.constant(np.int32(1))
    assert builder.constant(np.zeros(1)) != builder.constant(np.zeros(()))
    builder.output("y", builder.binary("MUL", first, second))
    assert kinds(builder.pack()) == ["ADD", "MUL"]


def test_operators_that_no_output_needs_are_not_written() -> None:
    builder = Builder()
    x = builder.input("x", (3,), "float32")
    builder.unary("EXP", builder.binary("ADD", x, builder.constant(np.full(3, 7, np.float32))))
    builder.output("y", builder.unary("NEG", x))
    content = builder.pack()
    assert kinds(content) == ["NEG"]
    model = generated.ModelT.InitFromPackedBuf(content, 0)
    assert len(model.subgraphs[0].tensors) == 2


def test_shared_tensors_get_outputs_of_their_own() -> None:
    builder = Builder()
    x = builder.input("x", (2,), "float32")
    y = builder.unary("NEG", x)
    for name, tensor in {"a": y, "b": y, "c": x, "d": x, "e": builder.constant([1, 2])}.items():
        builder.output(name, tensor)
    outputs = run(builder.pack(), x=np.array([1, 2], np.float32))
    assert {name: array.tolist() for name, array in outputs.items()} == {
        "a": [-1, -2],
        "b": [-1, -2],
        "c": [1, 2],
        "d": [1, 2],
        "e": [1, 2],
    }


def test_buffers_start_at_multiples_of_sixteen() -> None:
    builder = Builder()
    x = builder.input("x", (3,), "int64")
    arrays = [np.arange(3) + 2**40 + n for n in range(5)]
    for n, array in enumerate(arrays):
        x = builder.binary("ADD", x, builder.constant(array))
        builder.output(f"y{n}", x)
    builder.output("z", builder.cast(x, "float32"))
    content = builder.pack()
    for array in arrays:
        assert content.index(array.tobytes()) % 16 == 0


def test_a_reshape_of_a_reshape_reads_the_source() -> None:
    builder = Builder()
    x = builder.input("x", (2, 6), "float32")
    y = builder.reshape(builder.reshape(x, (12,)), (3, 4))
    assert builder.reshape(y, (2, 6)) == x
    builder.output("y", y)
    assert kinds(builder.pack()) == ["RESHAPE"]


def test_a_scalar_stays_a_scalar() -> None:
    builder = Builder()
    x = builder.input("x", (1,), "float32")
    builder.output("y", builder.reshape(x, ()))
    builder.output(
        "z", builder.binary("ADD", builder.constant(np.float32(1)), builder.reshape(x, ()))
    )
    outputs = run(builder.pack(), x=np.array([3], np.float32))
    assert outputs["y"].shape == ()
    assert outputs["z"] == 4


@pytest.mark.parametrize("scaled", [False, True])
def test_a_transpose_that_is_undone_is_not_written(scaled: bool) -> None:
    builder = Builder()
    x = builder.input("x", (1, 2, 3, 4), "uint8")
    y = builder.cast(builder.transpose(x, (0, 3, 1, 2)), "float32")
    if scaled:
        y = builder.binary("MUL", y, builder.constant(np.float32(0.5)))
    builder.output("y", builder.transpose(y, (0, 2, 3, 1)))
    assert "TRANSPOSE" not in kinds(builder.pack())


def test_a_transpose_of_something_else_stays() -> None:
    builder = Builder()
    x = builder.input("x", (2, 3, 4), "float32")
    bias = builder.constant(np.arange(3, dtype=np.float32))
    y = builder.binary("ADD", builder.transpose(x, (2, 0, 1)), bias)
    builder.output("y", builder.transpose(y, (1, 2, 0)))
    feed = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    found = run(builder.pack(), x=feed)["y"]
    np.testing.assert_array_equal(found, feed + np.arange(3, dtype=np.float32)[:, None])


def test_custom_options_are_a_flexbuffer_map() -> None:
    builder = Builder()
    boxes = builder.input("boxes", (1, 4, 4), "float32")
    scores = builder.input("scores", (1, 4, 2), "float32")
    anchors = builder.constant(np.tile(np.array([0.5, 0.5, 1, 1], np.float32), (4, 1)))
    results = [TensorType("float32", shape) for shape in ((1, 3, 4), (1, 3), (1, 3), (1,))]
    options: dict[str, int | float | bool] = {
        "max_detections": 3,
        "max_classes_per_detection": 1,
        "num_classes": 1,
        "nms_score_threshold": 0.5,
        "nms_iou_threshold": 0.5,
        "y_scale": 1.0,
        "x_scale": 1.0,
        "h_scale": 1.0,
        "w_scale": 1.0,
        "use_regular_nms": False,
    }
    made = builder.custom(
        "TFLite_Detection_PostProcess", [boxes, scores, anchors], results, options
    )
    builder.output("count", made[3])
    codes = np.zeros((1, 4, 4), np.float32)
    found = run(builder.pack(), boxes=codes, scores=np.full((1, 4, 2), 0.9, np.float32))
    assert found["count"] == 1


def test_unknown_option_fields_are_refused() -> None:
    builder = Builder()
    x = builder.input("x", (3,), "float32")
    builder.output("y", builder.op("SOFTMAX", [x], (3,), gamma=1.0))
    with pytest.raises(TypeError, match="gamma"):
        builder.pack()
