"""The process that runs an artifact: TVM's runtime alone, no compiler and no LLVM.

    python -m bridge.targets.tvm_relax.runtime ARTIFACT

See `targets.tvm.serving` for what it reads and writes.
"""

import json
import sys
from pathlib import Path
from typing import Any

from bridge.targets.tvm.serving import Run, serve

MAIN = "main"
DESCRIBE = "describe"
"""A function of every library: JSON of the names of inputs and outputs by function."""


def _load(path: Path) -> tuple[list[str], Run]:
    """Names of the outputs, and what runs the library, or the part of it that a JSON file names."""
    import tvm
    from tvm.runtime.vm import VirtualMachine

    function, library = MAIN, path
    if path.suffix == ".json":
        part = json.loads(path.read_text(encoding="utf-8"))
        function, library = part["function"], path.parent / part["library"]
    if library.suffix != ".so":
        # A `.so.mismatch` is a library as well, and TVM goes by the end of the name.
        link = Path.cwd() / "model.so"
        link.symlink_to(library)
        library = link
    machine = VirtualMachine(tvm.runtime.load_module(str(library)), tvm.cpu())
    names = json.loads(machine[DESCRIBE]())[function]
    inputs, outputs = names["inputs"], names["outputs"]

    def run(given: dict[str, Any]) -> list[Any]:
        made = machine[function](*(tvm.runtime.tensor(given[name]) for name in inputs))
        return [part.numpy() for part in made]

    return outputs, run


if __name__ == "__main__":
    serve(_load, Path(sys.argv[1]))
