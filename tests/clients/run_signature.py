"""Run a file as an application does: python run_signature.py RUNTIME MODEL FEEDS.npz RESULTS.npz.

RUNTIME is `tensorflow` or `ai_edge_litert`. Inputs and outputs go by the names of the signature.
Prints as JSON what the runtime says of them.
"""

import json
import sys
from typing import Any

import numpy as np


def main() -> None:
    runtime, model, feeds, results = sys.argv[1:]
    interpreter = _interpreter(runtime)(model_path=model)
    (signature,) = interpreter.get_signature_list()
    runner = interpreter.get_signature_runner(signature)
    with np.load(feeds) as arrays:
        outputs = runner(**arrays)
    np.savez(results, **outputs)
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
