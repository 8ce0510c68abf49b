"""onnxruntime, optimisations off, as the judge of what surgery did."""

from collections.abc import Callable, Mapping

import numpy as np
import onnx
import onnxruntime

from bridge.model import Array, seeded_inputs


def compiled(model: onnx.ModelProto) -> Callable[[Mapping[str, Array]], dict[str, Array]]:
    """Runs the model: inputs by name to outputs by name; further inputs are left out."""
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

    def once(feeds: Mapping[str, Array]) -> dict[str, Array]:
        given = {name: array for name, array in feeds.items() if name in wanted}
        return dict(zip(names, session.run(names, given), strict=True))

    return once


def run(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Every output by name."""
    return compiled(model)(feeds)


def assert_same(
    before: onnx.ModelProto,
    after: onnx.ModelProto,
    *sets: Mapping[str, Array],
) -> None:
    """Equal outputs bit for bit; without inputs given, for every kind of made-up ones."""
    judge, candidate = compiled(before), compiled(after)
    for feeds in sets or seeded_inputs(before, seed=11):
        assert_all_equal(judge(feeds), candidate(feeds))


def assert_all_equal(expected: Mapping[str, Array], got: Mapping[str, Array]) -> None:
    """The same outputs in the same order, bit for bit."""
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
