"""What relay makes of a static model by itself, to compare with.

    python -m scripts.stock_tvm MODEL.onnx OUT.so [--target TARGET]

Its own importer, its own kernels, its default passes. The one thing added is a converter for
StaticNMS, by relay's own suppression, since nothing else of it can be built for the graph executor;
and the pass that LLVM 22 cannot follow is left out. Prints the seconds of its steps as JSON.
"""

import json
import os
import time
from pathlib import Path
from typing import Annotated, Any

import onnx
import typer


def build(model: onnx.ModelProto, output: Path, target: str | None) -> dict[str, float]:
    """Import, build and export; processor seconds by step."""
    os.environ["TOPHUB_LOCATION"] = "NONE"
    from bridge.targets.tvm import worker

    worker.give_back_onnx_mapping()
    import tvm
    from tvm import relay
    from tvm.relay.frontend import onnx as frontend

    from bridge.targets.tvm.build import host_target

    converters = frontend._get_convert_map

    def with_static_nms(opset: int) -> dict[str, Any]:
        return {**converters(opset), "StaticNMS": _static_nms}

    frontend._get_convert_map = with_static_nms
    seconds: dict[str, float] = {}
    start = time.process_time()
    module, params = relay.frontend.from_onnx(model, freeze_params=True)
    seconds["import"] = time.process_time() - start
    start = time.process_time()
    with tvm.transform.PassContext(opt_level=3, config={"tir.disable_cse_tir": True}):
        library = relay.build(module, target or host_target(), params=params)
    seconds["build"] = time.process_time() - start
    start = time.process_time()
    library.export_library(str(output))
    seconds["export"] = time.process_time() - start
    return seconds


def _static_nms(inputs: Any, attributes: Any, params: Any) -> Any:
    """Relay's suppression, its rows cut to a fixed number and cleared behind the count."""
    del params
    from tvm import relay
    from tvm.relay.frontend.common import infer_shape

    boxes, scores = inputs
    images, classes, number = (int(dim) for dim in infer_shape(scores))
    rows = int(attributes["rows"])
    limit = min(int(attributes["max_output_boxes_per_class"]), number)
    found = relay.vision.all_class_non_max_suppression(
        boxes,
        scores,
        relay.const(limit, "int64"),
        relay.const(float(attributes["iou_threshold"]), "float32"),
        relay.const(max(float(attributes["score_threshold"]), -3e38), "float32"),
    )
    all_rows = images * classes * number
    selected = found[0]
    if rows > all_rows:
        selected = relay.nn.pad(selected, ((0, rows - all_rows), (0, 0)))
    head = relay.strided_slice(selected, [0, 0], [rows, 3], [1, 1])
    count = relay.minimum(found[1], relay.const([rows], "int64"))
    live = relay.less(relay.arange(relay.const(rows, "int64"), dtype="int64"), count)
    cleared = relay.where(relay.expand_dims(live, 1), head, relay.const(0, "int64"))
    return relay.TupleWrapper(relay.Tuple([cleared, count]), 2)


def main(
    model: Path, output: Path, *, target: Annotated[str | None, typer.Option()] = None
) -> None:
    """Build, and print what it cost."""
    print(json.dumps(build(onnx.load(model), output, target)))


if __name__ == "__main__":
    typer.run(main)
