"""`--to tflite`: what of the target can be asked without its backends installed."""

from importlib.util import find_spec
from pathlib import Path

from bridge.options import Options, Quantize
from bridge.static_model import StaticModel
from bridge.targets.base import Lowered, Session


class TfliteTarget:
    """One TFLite file: network by onnx2tf, the rest emitted, linked by name."""

    name = "tflite"
    suffix = ".tflite"

    def missing(self, options: Options) -> str | None:
        """Both backends come with the extra `tflite`; int8 and dynamic need another environment."""
        absent = [name for name in ("ai_edge_litert", "onnx2tf") if find_spec(name) is None]
        if absent:
            return f"{' and '.join(absent)} not installed; install: pip install 'bridge[tflite]'"
        if options.quantization.form in (Quantize.DYNAMIC, Quantize.INT8):
            from bridge.targets.tflite import quantise_process

            return quantise_process.missing(options.quantization.python)
        return None

    def lower(self, static: StaticModel, options: Options, workdir: Path) -> Lowered:
        """Write `model.tflite`, and its network and tail apart, below `workdir`.

        Raises:
            UnsupportedModelError: an operator without an exact lowering, or one that only a
                network can hold behind its border, by name.
            LoweringError: onnx2tf refuses the network, or the interpreter the result.
        """
        from bridge.targets.tflite.lowering import lower

        return lower(static, options, workdir)

    def open(self, path: Path, *, threads: int = 1) -> Session:
        """Load a file in the LiteRT interpreter."""
        from bridge.targets.tflite.session import TfliteSession

        return TfliteSession(path, threads)


TFLITE = TfliteTarget()
