"""The process that runs an artifact: TVM's runtime alone, no compiler and no LLVM.

    python -m bridge.targets.tvm.runtime ARTIFACT

See `serving` for what it reads and writes.
"""

import json
import sys
from pathlib import Path
from typing import Any

from bridge.targets.tvm.serving import Run, serve


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


if __name__ == "__main__":
    serve(_load, Path(sys.argv[1]))
