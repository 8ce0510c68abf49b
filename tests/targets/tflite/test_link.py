"""Parts that fit become one file; parts that do not are refused with the tensor's name."""

import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as generated
from ai_edge_litert.interpreter import Interpreter

from bridge.errors import LoweringError
from bridge.static_model import TensorType
from bridge.targets.base import Array
from bridge.targets.tflite import schema
from bridge.targets.tflite.flatbuffer import Builder
from bridge.targets.tflite.link import Part, link


def adding(number: float, source: str, result: str, dtype: str = "float32", size: int = 3) -> bytes:
    """A part that adds a number to every element."""
    builder = Builder()
    x = builder.input(source, (size,), dtype)
    builder.output(result, builder.binary("ADD", x, builder.constant(np.full(size, number, dtype))))
    return builder.pack()


def run(content: bytes, **feeds: Array) -> dict[str, Array]:
    return dict(Interpreter(model_content=content).get_signature_runner("serving_default")(**feeds))


X = np.array([1, 2, 3], np.float32)


def test_parts_are_bound_by_name() -> None:
    parts = [Part(adding(1, "x", "a")), Part(adding(10, "a", "b")), Part(adding(100, "a", "c"))]
    found = run(link(parts, ["x"], {"b": "b", "sum": "c"}), x=X)
    assert {name: array.tolist() for name, array in found.items()} == {
        "b": [12, 13, 14],
        "sum": [102, 103, 104],
    }


def test_a_part_can_call_its_ends_otherwise() -> None:
    parts = [Part(adding(1, "in", "out"), {"in": "x", "out": "a"}), Part(adding(10, "a", "y"))]
    assert run(link(parts, ["x"], {"y": "y"}), x=X)["y"].tolist() == [12, 13, 14]


def test_an_input_of_two_parts_is_one_tensor() -> None:
    parts = [Part(adding(1, "x", "a")), Part(adding(2, "x", "b"))]
    content = link(parts, ["x"], {"a": "a", "b": "b"})
    model = generated.ModelT.InitFromPackedBuf(content, 0)
    assert len(model.subgraphs[0].inputs) == 1
    assert run(content, x=X)["b"].tolist() == [3, 4, 5]


def test_equal_operators_share_a_code() -> None:
    parts = [Part(adding(1, "x", "a")), Part(adding(10, "a", "b"))]
    model = generated.ModelT.InitFromPackedBuf(link(parts, ["x"], {"b": "b"}), 0)
    assert len(model.operatorCodes) == 1


def test_equal_parts_give_equal_bytes() -> None:
    parts = [Part(adding(1, "x", "a")), Part(adding(10, "a", "b"))]
    assert link(parts, ["x"], {"b": "b"}) == link(parts, ["x"], {"b": "b"})


class Outside(schema.Buffer):
    """A buffer whose bytes lie behind the flatbuffer, as ai-edge-quantizer writes them."""

    AT = 1 << 16

    def Pack(self, builder: object) -> int:  # noqa: N802 - the name the generated code calls
        generated.BufferStart(builder)
        generated.BufferAddOffset(builder, self.AT)
        generated.BufferAddSize(builder, len(self.content or b""))
        return int(generated.BufferEnd(builder))


def test_weights_behind_the_flatbuffer_are_brought_inside() -> None:
    model = generated.ModelT.InitFromPackedBuf(adding(1, "x", "y"), 0)
    weights = bytes(model.buffers[1].data)
    model.buffers = [schema.Buffer(), Outside(weights)]
    outside = schema.pack(model).ljust(Outside.AT, b"\0") + weights
    assert run(link([Part(outside)], ["x"], {"y": "y"}), x=X)["y"].tolist() == [2, 3, 4]


def custom(kind: str) -> bytes:
    builder = Builder()
    x = builder.input("x", (3,), "float32")
    builder.output("y", builder.custom(kind, [x], [TensorType("float32", (3,))], {})[0])
    return builder.pack()


MISFITS = {
    "another shape": ([adding(1, "x", "a"), adding(1, "a", "b", size=4)], "a as float32.4."),
    "another type": ([adding(1, "x", "a"), adding(1, "a", "b", "int32")], "a as int32.3."),
    "made twice": ([adding(1, "x", "b"), adding(2, "x", "b")], "makes b a second time"),
    "nothing makes it": ([adding(1, "other", "b")], "no part has the tensors x"),
    "a stray custom operator": ([custom("ONNX_CONCAT")], "ONNX_CONCAT"),
}


@pytest.mark.parametrize("name", MISFITS)
def test_misfits_are_refused(name: str) -> None:
    contents, message = MISFITS[name]
    with pytest.raises(LoweringError, match=message):
        link([Part(content) for content in contents], ["x"], {"b": "b"})


def test_an_input_that_is_none_of_the_whole_is_refused() -> None:
    with pytest.raises(LoweringError, match="other is read, and no operator makes it"):
        link([Part(adding(1, "x", "a")), Part(adding(1, "other", "b"))], ["x"], {"b": "b"})
