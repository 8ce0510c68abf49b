"""From a static model to one shared library for Relax's virtual machine."""

import json
import logging
import shlex
from pathlib import Path
from typing import Any

import onnx
import tvm
from tvm import relax
from tvm.ir import StringImm

from bridge.errors import LoweringError
from bridge.targets.tvm import llvm
from bridge.targets.tvm.border import network_of, tail_of
from bridge.targets.tvm.host import host
from bridge.targets.tvm.jobs import LIBRARY, Settings
from bridge.targets.tvm.reason import reason
from bridge.targets.tvm_relax.frontend import add_function, variables
from bridge.targets.tvm_relax.runtime import DESCRIBE, MAIN

NETWORK, TAIL = "network", "tail"

_log = logging.getLogger(__name__)


def build(
    model: onnx.ModelProto, border: tuple[str, ...], settings: Settings, folder: Path
) -> dict[str, Any]:
    """Write the library into the folder and, beside it, what runs its network and tail alone.

    `main` calls `network` and `tail`, so that what is checked alone is what runs in the whole.

    Args:
        model: static, with StaticNMS calls.
        border: the tensors between network and tail; empty where all is tail.
        settings: for `tvm.compile`.
        folder: an empty one.

    Returns:
        What the manifest shows: the target and the version that made the library.

    Raises:
        UnsupportedModelError: an operator has no exact lowering.
        LoweringError: TVM refuses the model, or it cannot be linked.
    """
    target = target_of(settings.target)
    llvm.link(_compile(_module(model, border), target, settings), settings, folder)
    for part in (NETWORK, TAIL) if border else ():
        entry = json.dumps({"library": LIBRARY, "function": part})
        (folder / f"{part}.json").write_text(entry, encoding="utf-8")
    return llvm.told(target, settings)


def _module(model: onnx.ModelProto, border: tuple[str, ...]) -> Any:
    """The functions of the library."""
    builder = relax.BlockBuilder()
    parts = {MAIN: model}
    if border:
        parts |= {NETWORK: network_of(model, border), TAIL: tail_of(model, border)}
        functions = {
            name: add_function(builder, name, parts[name], exact=name == TAIL)
            for name in (NETWORK, TAIL)
        }
        _add_main(builder, model, parts, functions)
    else:
        add_function(builder, MAIN, model, exact=True)
    names = {
        name: {
            "inputs": _inputs(part),
            "outputs": [value.name for value in part.graph.output],
        }
        for name, part in parts.items()
    }
    with builder.function(DESCRIBE, []):
        builder.emit_func_output(StringImm(json.dumps(names)))
    return builder.get()


def _add_main(
    builder: Any,
    model: onnx.ModelProto,
    parts: dict[str, onnx.ModelProto],
    functions: dict[str, Any],
) -> None:
    """`main` by calls of network and tail, whose inputs are known by name."""
    values = variables(model)
    with builder.function(MAIN, list(values.values())):
        with builder.dataflow():
            fed = [values[name] for name in _inputs(parts[NETWORK])]
            made = builder.emit(relax.Call(functions[NETWORK], fed))
            for index, value in enumerate(parts[NETWORK].graph.output):
                values[value.name] = builder.emit(relax.TupleGetItem(made, index))
            crossing = [values[name] for name in _inputs(parts[TAIL])]
            result = builder.emit_output(builder.emit(relax.Call(functions[TAIL], crossing)))
        builder.emit_func_output(result)


def _inputs(model: onnx.ModelProto) -> list[str]:
    constants = {tensor.name for tensor in model.graph.initializer}
    return [value.name for value in model.graph.input if value.name not in constants]


def _compile(module: Any, target: Any, settings: Settings) -> Any:
    try:
        with tvm.transform.PassContext(
            opt_level=settings.opt_level, disabled_pass=list(settings.disabled_passes)
        ):
            return tvm.compile(module, target)
    except Exception as error:
        _log.info("tvm.compile failed", exc_info=error)
        raise LoweringError(f"TVM refused the model: {reason(error)}") from error


def target_of(text: str | None) -> Any:
    """The target of an LLVM target string as TVM 0.19 took it, or of its JSON.

    Raises:
        LoweringError: TVM does not know it, or it is not built by LLVM.
    """
    return llvm.target(text, _description)


def _description(text: str | None) -> dict[str, Any]:
    if text is None:
        cpu, absent = host()
        named: dict[str, Any] = {"kind": "llvm", "mcpu": cpu}
        return named | {"mattr": [f"-{name}" for name in absent]} if absent else named
    if text.lstrip().startswith("{"):
        described: dict[str, Any] = json.loads(text)
        return described
    kind, *flags = shlex.split(text)
    pairs = [flag.lstrip("-").split("=", 1) for flag in flags]
    options: dict[str, Any] = {key: "".join(value) for key, *value in pairs}
    if "mattr" in options:
        options["mattr"] = options["mattr"].split(",")
    return {"kind": kind, **options}
