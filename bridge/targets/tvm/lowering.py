"""A static model to one shared library: what the converting process does of it."""

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx

from bridge import static_nms
from bridge.errors import (
    BridgeError,
    LoweringError,
    TargetMissingError,
    UnsupportedModelError,
    UsageError,
)
from bridge.options import Options
from bridge.static_model import StaticModel, TensorType, tensor_types
from bridge.targets.base import Lowered, LoweredNms, ports
from bridge.targets.tvm import child, dynamic, jobs
from bridge.targets.tvm.border import border
from bridge.targets.tvm.jobs import LIBRARY, Job, Settings, hand_over

INSTALL = "pip install 'bridge[tvm]'"
_ERRORS: Mapping[str, type[BridgeError]] = {
    error.__name__: error for error in (LoweringError, TargetMissingError, UnsupportedModelError)
}
_BECAUSE = (
    "our own kernel decides as onnxruntime does: IoU above the limit, score above the threshold, "
    "equal scores by index, corners sorted, no area overlaps nothing, NaN never"
)


@dataclass(frozen=True, slots=True)
class Worker:
    """The process that holds a compiler: `python -m module FOLDER`.

    Attributes:
        install: what makes an interpreter that has what the module imports.
    """

    module: str
    python: Path
    install: str


def lower(static: StaticModel, options: Options, workdir: Path, python: Path) -> Lowered:
    """See `TvmTarget.lower`."""
    if options.tvm_executor not in ("graph", "vm"):
        raise UsageError(f"--tvm-executor {options.tvm_executor}: give graph or vm")
    worker = Worker("bridge.targets.tvm.worker", python, INSTALL)
    if options.tvm_executor == "vm":
        return _lower_dynamic(static, options, workdir, worker)
    return lower_static(static, options, workdir, worker, "graph")


def lower_static(
    static: StaticModel, options: Options, workdir: Path, worker: Worker, executor: str
) -> Lowered:
    """Let a worker build `model.so`, and what runs its network and tail alone.

    Args:
        static: the model.
        options: of the conversion.
        workdir: gets a folder with all of it.
        worker: of either TVM.
        executor: what the manifest calls what runs the library.
    """
    folder, cut = workdir / "tvm", border(static.model)
    folder.mkdir()
    details = _work(Job(_settings(options), cut), static.model, folder, worker)
    inputs, outputs = ports(static)
    return Lowered(
        path=folder / LIBRARY,
        inputs=inputs,
        outputs=outputs,
        nms=_suppressions(static),
        assumptions=(_assumption(details),),
        border=cut,
        tail=folder / "tail.json" if cut else None,
        network=folder / "network.json" if cut else None,
        details={**details, "executor": executor},
    )


def _lower_dynamic(static: StaticModel, options: Options, workdir: Path, worker: Worker) -> Lowered:
    folder = workdir / "tvm"
    folder.mkdir()
    if static.source is None:
        raise LoweringError("--tvm-executor vm needs the source model, which was not handed over")
    source = dynamic.prepared(static.source, options)
    job = Job(_settings(options), executor=options.tvm_executor)
    details = _work(job, source, folder, worker)
    inputs, outputs = ports(static)
    dynamic.note(folder / LIBRARY, outputs)
    return Lowered(
        path=folder / LIBRARY,
        inputs=inputs,
        outputs=outputs,
        nms=(),
        assumptions=(_assumption(details),),
        warnings=(
            "built by relay's own importer and kernels for its virtual machine: the library gives "
            "as many rows as there are, and decides as relay does",
        ),
        details={**details, "executor": "vm"},
    )


def _assumption(details: Mapping[str, Any]) -> str:
    """What is taken for granted of the processor."""
    return (
        f"it runs on a processor for which the TVM target '{details['target']}' holds; "
        "--tvm-target names another"
    )


def _settings(options: Options) -> Settings:
    return Settings(
        target=options.tvm_target,
        opt_level=options.tvm_opt_level,
        disabled_passes=options.tvm_disabled_passes,
        cc=options.tvm_cc,
    )


def _work(job: Job, model: onnx.ModelProto, folder: Path, worker: Worker) -> Mapping[str, Any]:
    """Let a worker process do a job in a folder, and give what it answers.

    Raises:
        BridgeError: what the worker raised.
        LoweringError: the worker died.
        TargetMissingError: it could not import TVM.
    """
    try:
        hand_over(job, model, folder)
    except OSError as error:
        raise LoweringError(f"the work folder {folder} cannot be written: {error}") from error
    log = folder / "worker.log"
    process = child.start(
        worker.module, [str(folder)], folder, python=worker.python, log=log, environment={}
    )
    try:
        process.wait()
    finally:
        child.kill(process)
    return _result(folder, process, log, worker.install)


def _result(
    folder: Path, process: subprocess.Popen[bytes], log: Path, install: str
) -> Mapping[str, Any]:
    try:
        result = json.loads((folder / jobs.RESULT).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        how = child.obituary(process, log)
        if "No module named" in how:
            raise TargetMissingError(
                f"the TVM worker could not start: {how}; install with: {install}"
            ) from None
        raise LoweringError(
            f"the process that builds with TVM {how}; it needs memory and room on the disk"
        ) from None
    if "error" in result:
        raise _ERRORS.get(result["error"], LoweringError)(result["message"])
    details: Mapping[str, Any] = result["ok"]
    return details


def _suppressions(static: StaticModel) -> tuple[LoweredNms, ...]:
    """How our kernel decides, for every suppression of the model."""
    types = tensor_types(static.model)
    return tuple(_lowered(call, types) for call in static_nms.calls(static.model))


def _lowered(call: static_nms.StaticNms, types: Mapping[str, TensorType]) -> LoweredNms:
    _, classes, boxes = types[call.scores].shape
    return LoweredNms(
        node=call.name,
        lowered_to="bridge.static_nms (TIR)",
        boxes=boxes,
        classes=classes,
        max_output=call.max_output_boxes_per_class,
        iou_threshold=call.iou_threshold,
        score_threshold=call.score_threshold,
        exact=True,
        because=_BECAUSE,
    )
