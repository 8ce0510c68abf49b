"""Graphs whose operators relay fuses into one function that its code generator then refuses."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from bridge.options import Options
from bridge.targets.tvm import TVM
from tests.surgery.judge import compiled
from tests.targets.tvm.building import static

TEXT = """<ir_version: 8, opset_import: ["" : 17]>
g (float[40,4] codes, int64[9,1] rows) => (float[9,4] picked)
<int64[1] zero = {0}, int64[1] two = {2}, int64[1] four = {4}, int64[1] one = {1}, float half = {2}>
{
    centre = Slice (codes, zero, two, one)
    size = Slice (codes, two, four, one)
    apart = Div (size, half)
    low = Sub (centre, apart)
    high = Add (centre, apart)
    corners = Concat <axis = -1> (low, high)
    picked = GatherND (corners, rows)
}
"""


def test_rows_of_corners_that_are_made_on_the_spot(tmp_path: Path) -> None:
    """`Cannot match type int32 vs handle` was what gather_nd made of it."""
    model = onnx.parser.parse_model(TEXT)
    rng = np.random.default_rng(4)
    feeds: dict[str, NDArray[Any]] = {
        "codes": rng.random((40, 4)).astype(np.float32),
        "rows": rng.integers(-40, 40, (9, 1)),
    }
    lowered = TVM.lower(static(model), Options(), tmp_path)
    with TVM.open(lowered.path) as session:
        found = session.run(feeds)
    np.testing.assert_array_equal(found["picked"], compiled(model)(feeds)["picked"])
