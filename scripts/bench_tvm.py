"""What a lib.so costs against onnxruntime, and against what relay makes by itself, as Markdown.

    python -m scripts.bench_tvm [-o FILE] [--exports FOLDER]

**Tail**: the detector of `scripts.bench_tflite` (NonMaxSuppression, TopK, three gathers, the 100
best), whole, against onnxruntime on the source and against relay's own build of the same static
model; in turns, in one process, one thread, on the same numbers.

**Network**: what stands before the border, against relay's own build of just that.

**Conversion**: processor seconds of the command `bridge.run --to tvm` against `--to tflite` on the
same model, and of our lowering against relay's own import, build and export of the same static
model.

**Import**: time per node over heads of growing size; linear means that it does not grow.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import onnx
import typer
from onnx import parser

from bridge import model as models
from bridge import surgery
from bridge.options import Options
from bridge.pytorch import Exporter
from bridge.targets.base import Array
from bridge.targets.table import find
from bridge.targets.tvm.border import border, network_of
from scripts import export_torchvision
from scripts.bench_surgery import HEADS, SSDLITE, per_class_head
from scripts.bench_tflite import _DETECTOR, SHARED, candidates

TAILS = ((8400, 80), (25200, 80))
TAIL_BAR, STOCK_BAR, NETWORK_BAR = 1.5, 30, 1.0
SMALL_BAR, LARGE_BAR = 15, 0.5
SMALL = "exports/yolo8_topk_s.ts.op17.onnx"
ROUNDS = 60

# Runs in a process that has TVM's runtime only: several artifacts and onnxruntime in turns.
_TIMES = """
import json, sys, time
import numpy as np, onnxruntime, tvm
from pathlib import Path
from bridge.targets.tvm.runtime import graph_module
job = json.loads(sys.argv[1])
feeds = dict(np.load(job["feeds"]))
runs = {}
for name, path in job["libraries"].items():
    if path.endswith(".onnx"):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 4
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        runs[name] = lambda session=session: session.run(None, feeds)
    else:
        executor, _ = graph_module(Path(path))
        for key, array in feeds.items():
            if executor.get_input_index(key) >= 0:
                executor.set_input(key, array)
        runs[name] = executor.run
least = {name: float("inf") for name in runs}
for turn in range(job["rounds"]):
    for name, run in runs.items():
        if turn >= job["few"] and name == "stock":
            continue
        start = time.perf_counter()
        run()
        least[name] = min(least[name], time.perf_counter() - start)
print(json.dumps(least))
"""
# Runs in a process that has TVM's compiler: the seconds of importing, for every given model.
_IMPORTS = """
import json, sys, time
import onnx
from bridge.targets.tvm import build
from bridge.targets.tvm.frontend import import_model
build.prepare()
seconds = []
for path in sys.argv[1:]:
    model = onnx.load(path)
    start = time.process_time()
    import_model(model)
    seconds.append(time.process_time() - start)
print(json.dumps(seconds))
"""


def child(arguments: list[str], **environment: str) -> Any:
    """What a Python process prints as JSON on its last line."""
    done = subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=True,
        text=True,
        cwd=Path(__file__).parents[1],
    )
    return json.loads(done.stdout.splitlines()[-1])


def least(
    libraries: Mapping[str, Path], feeds: Mapping[str, Array], folder: Path, few: int = ROUNDS
) -> dict[str, float]:
    """Least seconds of one run of each, in turns."""
    arrays = folder / "feeds.npz"
    named: dict[str, Any] = dict(feeds)
    np.savez(arrays, **named)
    job = {
        "feeds": str(arrays),
        "libraries": {name: str(path) for name, path in libraries.items()},
        "rounds": ROUNDS,
        "few": few,
    }
    found: dict[str, float] = child(
        ["-c", _TIMES, json.dumps(job)], TVM_USE_RUNTIME_LIB="1", TVM_NUM_THREADS="1"
    )
    return found


def stock(model: onnx.ModelProto, folder: Path, name: str) -> tuple[Path, dict[str, float]]:
    """Relay's own library of a static model, and the processor seconds of its steps."""
    source, library = folder / f"{name}.onnx", folder / f"{name}.so"
    onnx.save(model, source)
    seconds = child(["-m", "scripts.stock_tvm", str(source), str(library)])
    return library, seconds


def processor_seconds(work: Callable[[], object]) -> float:
    """Of this process and the children that ended meanwhile."""

    def spent() -> float:
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        return time.process_time() + children.ru_utime + children.ru_stime

    start = spent()
    work()
    return spent() - start


def command(model: Path, target: str) -> float:
    """Processor seconds of `bridge.run MODEL --to TARGET --no-verify`, start to end."""
    with tempfile.TemporaryDirectory() as folder:
        line = [sys.executable, "-m", "bridge.run", str(model), "--to", target, "--no-verify"]
        line += ["-q", "-o", f"{folder}/model"]
        return processor_seconds(lambda: subprocess.run(line, check=True))


def tail_table() -> str:
    """The suppression and what stands around it, against onnxruntime and relay."""
    lines = [
        "| boxes x classes | against onnxruntime | bar | relay's own against it | bar |",
        "|---|---|---|---|---|",
    ]
    for boxes, classes in TAILS:
        source = parser.parse_model(_DETECTOR % {"boxes": boxes, "classes": classes})
        corners, scores = candidates(boxes, classes, "sparse")
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            static = surgery.run(source, Options()).static
            ours = find("tvm").lower(static, Options(), folder).path
            theirs, _ = stock(static.model, folder, "stock")
            onnx.save(source, folder / "source.onnx")
            libraries = {"ours": ours, "onnxruntime": folder / "source.onnx", "stock": theirs}
            times = least(libraries, {"boxes": corners, "scores": scores}, folder, few=8)
        lines.append(
            f"| {boxes} x {classes} | {times['ours'] / times['onnxruntime']:.2f} | {TAIL_BAR} | "
            f"{times['stock'] / times['ours']:.0f} | {STOCK_BAR} |"
        )
    return "\n".join(lines)


def large(path: Path) -> str:
    """The network and the conversion of a full-size detector, against relay's own."""
    source = models.load(path).model
    static = surgery.run(source, Options()).static
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        lowering: list[Any] = []
        ours = processor_seconds(
            lambda: lowering.append(find("tvm").lower(static, Options(), folder))
        )
        (lowered,) = lowering
        network, _ = stock(network_of(static.model, border(static.model)), folder, "network")
        _, steps = stock(static.model, folder, "whole")
        feeds = models.seeded_inputs(source, seed=3)[0]
        libraries = {
            "ours": lowered.network or lowered.path,
            "theirs": network,
            "whole": lowered.path,
            "onnxruntime": path,
        }
        times = least(libraries, feeds, folder)
    theirs = sum(steps.values())
    return (
        f"| network of {path.stem}, against relay's own build | "
        f"{times['ours'] / times['theirs']:.2f} | {NETWORK_BAR} |\n"
        f"| {path.stem}, whole, against onnxruntime | "
        f"{times['whole'] / times['onnxruntime']:.2f} | |\n"
        f"| conversion of {path.stem}, against relay's import, build and export | "
        f"{ours / theirs:.2f} ({ours:.0f} s / {theirs:.0f} s) | {LARGE_BAR} |\n"
    )


def small(path: Path) -> str:
    """The conversion of a small detector, against its TFLite conversion: command for command."""
    tflite, ours = (min(command(path, target) for _ in range(3)) for target in ("tflite", "tvm"))
    return (
        f"| conversion of {path.stem}, against its TFLite conversion | "
        f"{ours / tflite:.1f} ({ours:.1f} s / {tflite:.1f} s) | {SMALL_BAR} |\n"
    )


def import_table() -> str:
    """Seconds of importing per node, over heads of growing size."""
    lines = ["| classes | nodes | import | per node |", "|---|---|---|---|"]
    with tempfile.TemporaryDirectory() as name:
        paths, nodes = [], []
        for classes in HEADS:
            # Joined branches are what makes the head small; here it is to be large.
            static = surgery.run(per_class_head(classes), Options()).static
            nodes.append(len(static.model.graph.node))
            paths.append(Path(name) / f"{classes}.onnx")
            onnx.save(static.model, paths[-1])
        seconds = child(["-c", _IMPORTS, *map(str, paths)], TOPHUB_LOCATION="NONE")
    for classes, count, spent in zip(HEADS, nodes, seconds, strict=True):
        lines.append(
            f"| {classes} | {count} | {spent * 1e3:.0f} ms | {spent / count * 1e3:.2f} ms |"
        )
    return "\n".join(lines)


def table(exports: Path) -> str:
    """All of it, as Markdown."""
    path = exports / f"{SSDLITE}.torchscript.onnx"
    if not path.exists():
        export_torchvision.main(exports, only=[SSDLITE], exporter=[Exporter.TORCHSCRIPT])
    rows = large(path)
    if (SHARED / SMALL).is_file():
        rows += small(SHARED / SMALL)
    return (
        "## TVM: suppression, TopK and gathers\n\nOne thread, the 100 best detections.\n\n"
        f"{tail_table()}\n\n## TVM: network and conversion\n\n"
        f"| what | ratio | bar |\n|---|---|---|\n{rows}\n"
        f"## TVM: import\n\n{import_table()}\n"
    )


def main(
    output: Annotated[Path | None, typer.Option("--output", "-o", help="file to write")] = None,
    exports: Annotated[Path, typer.Option(help="torchvision's detectors")] = Path("build/exports"),
) -> None:
    """Measure, and write Markdown."""
    text = table(exports)
    if output is None:
        print(text, end="")
    else:
        output.write_text(text)


if __name__ == "__main__":
    typer.run(main)
