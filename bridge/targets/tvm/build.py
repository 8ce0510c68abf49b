"""From a static model to one shared library for TVM's graph executor."""

import functools
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import onnx
import tvm
from tvm import relay
from tvm.relay.backend import te_compiler

from bridge.errors import LoweringError
from bridge.targets.tvm import graph_json, llvm, operators
from bridge.targets.tvm.folding import fold_constants
from bridge.targets.tvm.frontend import import_model
from bridge.targets.tvm.host import host
from bridge.targets.tvm.jobs import LIBRARY, Settings
from bridge.targets.tvm.reason import reason

TAIL = "tail.json"
NETWORK = "network.json"

_log = logging.getLogger(__name__)


def build(
    model: onnx.ModelProto, border: tuple[str, ...], settings: Settings, folder: Path
) -> dict[str, Any]:
    """Write the library into the folder and, beside it, what runs its network and tail alone.

    Args:
        model: static, with StaticNMS calls.
        border: the tensors between network and tail; empty where all is tail.
        settings: for `relay.build`.
        folder: an empty one.

    Returns:
        What the manifest shows: the target and the versions that made the library.

    Raises:
        UnsupportedModelError: an operator has no exact lowering.
        LoweringError: relay refuses the model, or it cannot be linked.
    """
    prepare()
    target = target_of(settings.target)
    inputs = {value.name for value in model.graph.input}
    inner = tuple(name for name in border if name not in inputs)
    imported = import_model(model, inner)
    made = _relay_build(imported.module, target, settings)
    graph = graph_json.parse(made.get_graph_json())
    names = _names(imported.inputs, made.get_params())
    graph = graph_json.renamed(graph, names)
    params = {names[name]: value for name, value in made.get_params().items()}
    results = [value.name for value in model.graph.output]
    outputs = dict(zip(results, graph.heads, strict=False))
    crossing = dict(zip(inner, graph.heads[len(results) :], strict=True))
    for number, node in enumerate(graph.nodes):
        if node["op"] == "null" and node["name"] in border:
            crossing[node["name"]] = (number, 0)
    _export((made, params), graph_json.write(graph, outputs), settings, folder)
    if border:
        ordered = {name: crossing[name] for name in border if name in crossing}
        notes = {"library": LIBRARY}
        tail = graph_json.write(graph, outputs, ordered, notes)
        (folder / TAIL).write_text(tail, encoding="utf-8")
        network = graph_json.write(graph, ordered, None, notes)
        (folder / NETWORK).write_text(network, encoding="utf-8")
    return llvm.told(target, settings)


def _names(inputs: Mapping[str, str], params: Iterable[str]) -> dict[str, str]:
    """Names in the JSON: inputs as the model has them, parameters such that none is an input."""
    names = dict(inputs)
    for name in params:
        unique = name
        while unique in inputs.values():
            unique += "_"
        names[name] = unique
    return names


def prepare() -> None:
    """Make this process ready to build: our operators, and one slow look-up remembered."""
    operators.register()
    # It asks the library for a hundred settings per dimension of every tensor: a fifth of a build.
    te_compiler.libinfo = functools.cache(te_compiler.libinfo)


def host_target() -> str:
    """An LLVM target string for this machine."""
    cpu, absent = host()
    named = f"llvm -mcpu={cpu}"
    return named if not absent else f"{named} -mattr=" + ",".join(f"-{name}" for name in absent)


def target_of(text: str | None) -> Any:
    """The target of an LLVM target string; None means this machine.

    Raises:
        LoweringError: TVM does not know it, or it is not built by LLVM.
    """
    return llvm.target(text, lambda given: given or host_target())


# LLVM 22 refuses the debug record that TVM 0.19 writes for a `let` of floats or vectors, which is
# what common subexpressions become.
_CONFIG = {"tir.disable_cse_tir": True}
# Passes that find nothing in what the importer makes, and type the whole graph anew to see that.
_IDLE = (
    "CanonicalizeCast",
    "CanonicalizeOps",
    "CombineParallelBatchMatmul",
    "CombineParallelDense",
    "FlattenAtrousConv",
    "SimplifyExpr",
    "SimplifyExprPostAlterOp",
)
_FIRST = (
    "SimplifyInference",
    "EliminateCommonSubexpr",
    "CombineParallelConv2D",
    "FoldScaleAxis",
    "AlterOpLayout",
)


def _relay_build(module: Any, target: Any, settings: Settings) -> Any:
    """Build the module: layouts first, with their constants folded here, then all the rest."""
    passes = relay.transform
    first = {name: getattr(passes, name) for name in _FIRST}
    first["CombineParallelConv2D"] = functools.partial(passes.CombineParallelConv2D, 3)
    chosen = [make() for name, make in first.items() if name not in settings.disabled_passes]
    kept_out = [*_IDLE, *settings.disabled_passes]

    def context(*more: str) -> Any:
        return tvm.transform.PassContext(
            opt_level=settings.opt_level, config=_CONFIG, disabled_pass=[*kept_out, *more]
        )

    try:
        with target, context():
            # Sequential types the graph where a pass asks for it, not after each.
            module = tvm.transform.Sequential([*chosen, passes.InferType()])(module)
        module = fold_constants(module)
        with context(*_FIRST):
            return relay.build(module, target)
    except Exception as error:
        _log.info("relay.build failed", exc_info=error)
        raise LoweringError(f"relay.build refused the model: {reason(error)}") from error


def _export(
    built: tuple[Any, Mapping[str, Any]], graph: str, settings: Settings, folder: Path
) -> None:
    """Link graph, parameters and kernels."""
    create = tvm.get_global_func("tvm.graph_executor_factory.create")
    made, params = built
    flat = [part for item in sorted(params.items()) for part in item]
    llvm.link(create(graph, made.get_lib(), made.libmod_name, *flat), settings, folder)
