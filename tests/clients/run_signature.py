"""Run files as an application does: python run_signature.py RUNTIME FEEDS.npz MODEL...

RUNTIME is `tensorflow` or `ai_edge_litert`. Inputs and outputs go by the names of the signature.
Prints as JSON what the runtime says of each file, and writes its outputs to MODEL.npz.
"""

import json
import sys
from typing import Any

import numpy as np


def main() -> None:
    runtime, feeds, *models = sys.argv[1:]
    interpreter = _interpreter(runtime)
    with np.load(feeds) as arrays:
        for model in models:
            _run(interpreter(model_path=model), dict(arrays), f"{model}.npz")


def _run(interpreter: Any, feeds: dict[str, Any], results: str) -> None:
    (signature,) = interpreter.get_signature_list()
    runner = interpreter.get_signature_runner(signature)
    np.savez(results, **runner(**feeds))
    told = {
        "signature": signature,
        "inputs": _described(runner.get_input_details()),
        "outputs": _described(runner.get_output_details()),
    }
    sys.stdout.write(f"{json.dumps(told)}\n")


def _interpreter(runtime: str) -> Any:
    if runtime == "tensorflow":
        import tensorflow

        return tensorflow.lite.Interpreter
    from ai_edge_litert.interpreter import Interpreter

    return Interpreter


def _described(details: dict[str, dict[str, Any]]) -> dict[str, list[Any]]:
    return {
        name: [np.dtype(entry["dtype"]).name, entry["shape"].tolist()]
        for name, entry in details.items()
    }


if __name__ == "__main__":
    main()
