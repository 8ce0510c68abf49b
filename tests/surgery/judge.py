"""onnxruntime, optimisations off, as the judge of what surgery did."""

from collections.abc import Mapping

import numpy as np
import onnx
import onnxruntime

from bridge.model import Array, seeded_inputs


def run(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Every output by name."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    names = [output.name for output in session.get_outputs()]
    inputs = [*session.get_inputs(), *session.get_overridable_initializers()]
    wanted = {value.name for value in inputs}
    given = {name: array for name, array in feeds.items() if name in wanted}
    return dict(zip(names, session.run(names, given), strict=True))


def assert_same(
    before: onnx.ModelProto,
    after: onnx.ModelProto,
    *sets: Mapping[str, Array],
) -> None:
    """Equal outputs bit for bit; without inputs given, for every kind of made-up ones."""
    for feeds in sets or seeded_inputs(before, seed=11):
        expected, got = run(before, feeds), run(after, feeds)
        assert list(expected) == list(got)
        for name, array in expected.items():
            assert_equal_bits(array, got[name], name)


def assert_equal_bits(expected: Array, got: Array, name: str) -> None:
    """Same type, same shape, same bits; any NaN equals any other."""
    assert expected.dtype == got.dtype, name
    assert expected.shape == got.shape, name
    np.testing.assert_array_equal(expected, got, err_msg=name)
    if expected.dtype.kind == "f":
        sign = np.signbit(expected[~np.isnan(expected)])
        np.testing.assert_array_equal(sign, np.signbit(got[~np.isnan(got)]), err_msg=name)
