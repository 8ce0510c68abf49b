"""The static model as plain standard ONNX. Needs no converter; every test's reference."""

from collections.abc import Mapping
from pathlib import Path

import onnxruntime

from bridge import static_nms
from bridge.errors import LoweringError
from bridge.options import Options
from bridge.static_model import StaticModel, tensor_types
from bridge.targets.base import Array, Lowered, LoweredNms, Session, ports


class OnnxSession(Session):
    """A static ONNX file under onnxruntime, graph optimisations off: bits stay comparable."""

    def __init__(self, path: Path) -> None:
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        options.log_severity_level = 4
        self._session = onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"]
        )
        self._outputs = [output.name for output in self._session.get_outputs()]

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Every output by name for one set of inputs."""
        return dict(zip(self._outputs, self._session.run(None, feeds), strict=True))

    def close(self) -> None:
        """Nothing to free: the session goes with the object."""


class OnnxTarget:
    """`--to onnx`: the StaticNMS functions inlined, nothing else changed."""

    name = "onnx"
    suffix = ".static.onnx"

    def missing(self, options: Options) -> str | None:
        """Never anything: all it needs comes with bridge."""
        del options
        return None

    def lower(self, static: StaticModel, options: Options, workdir: Path) -> Lowered:
        """Write the inlined model and load it once with onnxruntime's default optimisations.

        Raises:
            LoweringError: onnxruntime refuses the static model.
        """
        del options
        plain = static_nms.inline(static.model)
        path = workdir / "model.onnx"
        path.write_bytes(plain.SerializeToString(deterministic=True))
        try:
            onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        except Exception as error:
            raise LoweringError(
                f"onnxruntime refuses the static model: {error}; please report the source model"
            ) from error
        inputs, outputs = ports(static)
        return Lowered(
            path=path,
            inputs=inputs,
            outputs=outputs,
            nms=tuple(_lowered(call, static) for call in static_nms.calls(static.model)),
        )

    def open(self, path: Path, *, threads: int = 1) -> OnnxSession:
        """Load the file under onnxruntime, on one thread whatever is asked for.

        More of them divide the sums of a convolution otherwise: on the source model as well, which
        the file is then compared with on other terms.
        """
        del threads
        return OnnxSession(path)


def _lowered(call: static_nms.StaticNms, static: StaticModel) -> LoweredNms:
    _, classes, boxes = tensor_types(static.model)[call.scores].shape
    return LoweredNms(
        node=call.name,
        lowered_to="NonMaxSuppression",
        boxes=boxes,
        classes=classes,
        max_output=call.max_output_boxes_per_class,
        iou_threshold=call.iou_threshold,
        score_threshold=call.score_threshold,
        exact=True,
        because="the operator itself, its rows padded with zeros",
    )


ONNX = OnnxTarget()
