"""The float32 network on calibration data: ranges of its tensors, and what comes out of it."""

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from ai_edge_litert.interpreter import Interpreter, OpResolverType
from numpy.typing import NDArray

from bridge.targets.base import Array
from bridge.targets.tflite.silence import quiet

Feeds = Mapping[str, Array]
"""Inputs of the network (`input_0`, ...) by name, in its layout."""

Floats = NDArray[np.float32]


def stored_sets(calibration: Path, names: Sequence[str]) -> Iterator[dict[str, Array]]:
    """Sets of an `.npz` file, arrays called `<input>/<number>`, in the source's layout."""
    with np.load(calibration, allow_pickle=False) as stored:
        for number in range(len(stored.files) // len(names)):
            yield {name: stored[f"{name}/{number}"] for name in names}


def ranges(
    content: bytes, names: Collection[str], sets: Sequence[Feeds]
) -> dict[str, tuple[float, float]]:
    """Smallest and largest value that the named float32 tensors take on any of the sets.

    Not an average: an object that is seen once would be clipped. A tensor with NaN or infinity in
    it has no range, and is left out.
    """
    with quiet():
        # Delegates keep nothing of what lies between their ends.
        interpreter = Interpreter(
            model_content=content,
            num_threads=1,
            experimental_preserve_all_tensors=True,
            experimental_op_resolver_type=OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
        )
        interpreter.allocate_tensors()
    wanted = [
        (one["name"], one["index"])
        for one in interpreter.get_tensor_details()
        if one["name"] in names and one["dtype"] == np.float32
    ]
    found = {name: (np.float32(np.inf), np.float32(-np.inf)) for name, _ in wanted}
    for feeds in sets:
        _feed(interpreter, feeds)
        for name, index in wanted:
            values, (low, high) = interpreter.get_tensor(index), found[name]
            found[name] = (
                np.minimum(low, values.min(initial=np.inf)),
                np.maximum(high, values.max(initial=-np.inf)),
            )
    return {
        name: (float(low), float(high))
        for name, (low, high) in found.items()
        if np.isfinite(low) and np.isfinite(high)
    }


def run(content: bytes, sets: Sequence[Feeds]) -> Iterator[Floats]:
    """The flat output of a network for each set."""
    with quiet():
        # Threads share out what is made, never a sum: the numbers do not depend on how many.
        interpreter = Interpreter(model_content=content, num_threads=os.cpu_count() or 1)
        interpreter.allocate_tensors()
    output = interpreter.get_output_details()[0]["index"]
    for feeds in sets:
        _feed(interpreter, feeds)
        yield interpreter.get_tensor(output)


def _feed(interpreter: Interpreter, feeds: Feeds) -> None:
    for one in interpreter.get_input_details():
        interpreter.set_tensor(one["index"], np.ascontiguousarray(feeds[one["name"]]))
    interpreter.invoke()
