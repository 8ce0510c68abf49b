"""Every tensor inside the exports and the reproducers, held to onnxruntime on the source."""

import pytest

from bridge.model import load
from bridge.surgery.normalise import normalise
from tests.shared import SHARED, needs_shared
from tests.surgery.static.deep import compare_deeply, intermediates
from tests.surgery.static.held import feeds, program
from tests.surgery.static.test_models import CASES, EXPORTS, REFUSED, _shapes, _stored, _varied


def test_the_tensors_inside_are_compared() -> None:
    model = program("y = Add (b, one_f) z = Mul (y, y)", "float[n,4] z", prelude=_PRELUDE)
    assert {"mask", "places", "k", "b", "y"} <= set(intermediates(model))
    static, pairs = compare_deeply(model, feeds())
    assert "y" in {value.name for value in static.model.graph.output}
    assert pairs > 5 * len(feeds())


_PRELUDE = """
    half = Constant <value_float = 0.5> ()
    one_f = Constant <value_float = 1.0> ()
    zero = Constant <value_ints = [0]> ()
    mask = Greater (s, half)
    places = NonZero (mask)
    k = Squeeze (places, zero)
    b = Gather <axis = 0> (x, k)
"""


@needs_shared
@pytest.mark.slow
@pytest.mark.parametrize("name", [f"exports/{n}" for n in EXPORTS] + [f"cases/{n}" for n in CASES])
def test_every_tensor_inside(name: str) -> None:
    if name.endswith(REFUSED):
        pytest.skip("refused by name: it is another runtime's operator")
    path = SHARED / f"{name}.onnx"
    source = load(path).model
    stored = _stored(path, source)
    normal, _ = normalise(source, input_shapes=_shapes(source, stored[0]), freeze={})
    _, pairs = compare_deeply(normal, [*stored, *_varied(stored[0])])
    assert pairs
