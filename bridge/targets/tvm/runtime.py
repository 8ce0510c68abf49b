"""The process that runs an artifact: TVM's runtime alone, no compiler and no LLVM.

    python -m bridge.targets.tvm.runtime ARTIFACT

Standard input brings inputs, standard output takes outputs (`wire`). It ends with its input.
"""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from bridge.targets.tvm import wire
from bridge.targets.tvm.reason import reason

Run = Callable[[dict[str, Any]], list[Any]]


def main(path: Path) -> None:
    """Load an artifact, say its outputs' names, then answer every message."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    # Whatever TVM prints must not get between the messages.
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    try:
        names, run = _load(path)
    except Exception as error:
        _answer(answers, {"error": reason(error)})
        return
    _answer(answers, {"outputs": names})
    while data := _message(sys.stdin.buffer):
        header, arrays = wire.unpack(data)
        try:
            made = run(dict(zip(header["inputs"], arrays, strict=True)))
        except Exception as error:
            _answer(answers, {"error": reason(error)})
        else:
            _answer(answers, {}, made)


def _load(path: Path) -> tuple[list[str] | None, Run]:
    """Names of the outputs, None where the library does not know them, and what runs it."""
    if path.suffix != ".json":
        library = _library(path)
        if library.type_key == "VMExecutable":
            return None, _virtual_machine(library)
    module, text = graph_module(path)
    names = [str(name) for name in _notes(text)["outputs"]]

    def run(inputs: dict[str, Any]) -> list[Any]:
        for name, array in inputs.items():
            # An input that nothing reads is not part of the graph.
            if module.get_input_index(name) >= 0:
                module.set_input(name, array)
        module.run()
        return [module.get_output(index).numpy() for index in range(len(names))]

    return names, run


def graph_module(path: Path) -> tuple[Any, str]:
    """A graph executor and its JSON.

    Args:
        path: a library, or the JSON of a part that names its library.
    """
    import tvm
    from tvm.contrib import graph_executor

    if path.suffix != ".json":
        library = _library(path)
        return graph_executor.GraphModule(library["default"](tvm.cpu())), library[
            "get_graph_json"
        ]()
    text = path.read_text(encoding="utf-8")
    library = _library(path.parent / _notes(text)["library"])
    module = graph_executor.create(text, library, tvm.cpu())
    for name, value in library["get_graph_params"]().items():
        if module.get_input_index(name) >= 0:
            module.set_input(name, value)
    return module, text


def _library(path: Path) -> Any:
    import tvm

    # By its kind, not by the end of its name: a `.so.mismatch` is one as well.
    return tvm.runtime.load_module(str(path), "so")


def _virtual_machine(library: Any) -> Run:
    import tvm
    from tvm.runtime import vm

    executable = vm.Executable(library)
    machine = vm.VirtualMachine(executable, tvm.cpu())
    names = [str(name) for name in executable.get_function_params("main")]

    def run(inputs: dict[str, Any]) -> list[Any]:
        machine.set_input("main", *(inputs[name] for name in names))
        made = machine.run()
        return [made.numpy()] if hasattr(made, "numpy") else [part.numpy() for part in made]

    return run


def _notes(text: str) -> Any:
    return json.loads(text)["metadata"]


def _message(stream: BinaryIO) -> bytes:
    """The next message; empty at the end."""
    length = stream.read(wire.LENGTH)
    if len(length) < wire.LENGTH:
        return b""
    return stream.read(int.from_bytes(length, "little"))


def _answer(stream: BinaryIO, header: dict[str, Any], arrays: list[Any] | None = None) -> None:
    stream.write(wire.pack(header, arrays or []))
    stream.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
