"""Running a TFLite file by the names of its signature."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from ai_edge_litert.interpreter import Interpreter

from bridge.targets.base import Array, Session
from bridge.targets.tflite.schema import SIGNATURE
from bridge.targets.tflite.silence import quiet


class TfliteSession(Session):
    """An artifact in the LiteRT interpreter.

    Names are looked up in the signature and tensors set by index: `SignatureRunner` takes names as
    Python keywords, which an input called `self` breaks.
    """

    def __init__(self, path: Path, threads: int) -> None:
        with quiet():
            self._interpreter = Interpreter(model_path=str(path), num_threads=threads)
            self._interpreter.allocate_tensors()
            runner = self._interpreter.get_signature_runner(SIGNATURE)
        self._inputs = {n: d["index"] for n, d in runner.get_input_details().items()}
        self._outputs = {n: d["index"] for n, d in runner.get_output_details().items()}

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Every output by name for one set of inputs; nothing stays of earlier ones."""
        for name, index in self._inputs.items():
            self._interpreter.set_tensor(index, np.ascontiguousarray(feeds[name]))
        self._interpreter.invoke()
        return {name: self._interpreter.get_tensor(index) for name, index in self._outputs.items()}

    def close(self) -> None:
        """Free the interpreter and the mapped file; the session runs no more."""
        self._interpreter = None
