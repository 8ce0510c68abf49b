"""What surgery costs: against onnxsim, against the size of a head, and in onnxruntime afterwards.

    python -m scripts.bench_surgery [-o FILE] [--exports FOLDER]

FOLDER holds torchvision's detectors as `scripts.export_torchvision` writes them; what is not there
is exported first, which needs torch.
"""

import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import onnx
import onnxruntime
import typer

from bridge import static_nms, surgery
from bridge.model import load, seeded_inputs
from bridge.options import Options
from bridge.pytorch import Exporter
from scripts import export_torchvision
from scripts.bench_tflite import Times, in_turns

SSDLITE = "ssdlite320_mobilenet_v3_large"
ONNXSIM_BAR, RUNTIME_BAR, MEMORY_BAR = 0.25, 1.0, 3.0
HEADS = (5, 10, 20, 40, 80)

_HEAD = """
    s{k} = Gather <axis = 1> (scores, c{k})
    m{k} = Greater (s{k}, level)
    z{k} = NonZero (m{k})
    p{k} = Squeeze (z{k}, zero)
    t{k} = Gather <axis = 0> (s{k}, p{k})
    b{k} = Gather <axis = 0> (boxes, p{k})
    n{k} = Shape (t{k})
    k{k} = Min (n{k}, most)
    v{k}, i{k} = TopK <axis = 0> (t{k}, k{k})
    x{k} = Gather <axis = 0> (b{k}, i{k})
"""


def per_class_head(classes: int, boxes: int = 400) -> onnx.ModelProto:
    """A head that selects, sorts and cuts per class, as SSD exports do, and then suppresses."""
    text = "".join(_HEAD.format(k=k) for k in range(classes))
    text += f"x = Concat <axis = 0> ({', '.join(f'x{k}' for k in range(classes))})\n"
    text += f"v = Concat <axis = 0> ({', '.join(f'v{k}' for k in range(classes))})\n"
    text += """
        bx = Unsqueeze (x, zero)
        sc = Unsqueeze (v, both)
        rows = NonMaxSuppression (bx, sc, limit, iou, level)
        column = Gather <axis = 1> (rows, two)
        kept = Squeeze (column, one)
        found = Gather <axis = 0> (x, kept)
    """
    constants = "".join(f"int64 c{k} = {{{k}}}, " for k in range(classes))
    return onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> '
        f"g (float[{boxes},4] boxes, float[{boxes},{classes}] scores) => (float[n,4] found) "
        f"<{constants}float level = {{0.3}}, int64[1] zero = {{0}}, int64[1] one = {{1}}, "
        "int64[1] two = {2}, int64[2] both = {0, 1}, int64[1] most = {100}, "
        "int64 limit = {100}, float iou = {0.5}> {" + text + "}"
    )


def growth_table(rounds: int = 3) -> str:
    """Time per node over heads of growing size; linear means that it does not grow."""
    lines = ["| classes | nodes | surgery | per node |", "| --- | --- | --- | --- |"]
    for classes in HEADS:
        model = per_class_head(classes)
        least = min(_seconds(model) for _ in range(rounds))
        nodes = len(model.graph.node)
        lines.append(
            f"| {classes} | {nodes} | {least * 1e3:.0f} ms | {least / nodes * 1e3:.2f} ms |"
        )
    return "\n".join(lines)


def _seconds(model: onnx.ModelProto) -> float:
    start = time.perf_counter()
    surgery.run(model, Options())
    return time.perf_counter() - start


def against_onnxsim(path: Path) -> Times:
    """Surgery of a file, and onnxsim's simplification of it, in turns."""
    import onnxsim

    model = load(path).model
    return in_turns(
        lambda: surgery.run(model, Options()),
        lambda: onnxsim.simplify(model, check_n=0),
        2,
    )


_MEMORY = """
import sys
from bridge import surgery
from bridge.model import load
from bridge.options import Options
from scripts.bench_surgery import per_class_head

def status(key):
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith(key))

# What starts only once (onnxruntime, which folds constants) is no model's cost.
surgery.run(per_class_head(80), Options())
surgery.run(load("examples/shapes.onnx").model, Options())
model = load(sys.argv[1]).model
before = status("VmRSS")
with open("/proc/self/clear_refs", "w") as refs:
    refs.write("5")  # the peak starts anew
surgery.run(model, Options())
print(status("VmHWM") - before)
"""


def memory(path: Path) -> float:
    """The peak that surgery adds to a process that holds the model, over the file's size."""
    done = subprocess.run(
        [sys.executable, "-c", _MEMORY, str(path)], capture_output=True, text=True, check=True
    )
    return int(done.stdout) * 1024 / path.stat().st_size


def in_onnxruntime(path: Path, folder: Path) -> Times:
    """The static model under onnxruntime, default optimisations, and the source, in turns."""
    source = load(path)
    static = static_nms.inline(surgery.run(source.model, Options()).static.model)
    written = folder / "static.onnx"
    written.write_bytes(static.SerializeToString())
    feeds = seeded_inputs(source.model, seed=3)[0]
    ours, theirs = _session(written), _session(path)
    return in_turns(lambda: ours.run(None, feeds), lambda: theirs.run(None, feeds), 40)


def _session(path: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def table(exports: Path) -> str:
    """All of it, as Markdown."""
    path = exports / f"{SSDLITE}.torchscript.onnx"
    if not path.exists():
        export_torchvision.main(exports, only=[SSDLITE], exporter=[Exporter.TORCHSCRIPT])
    with TemporaryDirectory() as folder:
        simplify, running = against_onnxsim(path), in_onnxruntime(path, Path(folder))
    return (
        f"## Surgery: {SSDLITE}\n\n"
        "| what | ratio | bar |\n| --- | --- | --- |\n"
        f"| surgery against onnxsim | {simplify.least:.2f} | {ONNXSIM_BAR} |\n"
        f"| peak memory of surgery against the file | {memory(path):.1f} | {MEMORY_BAR} |\n"
        f"| static model against the source, in onnxruntime | {running.least:.2f} | {RUNTIME_BAR} |"
        f"\n\n## Surgery: growth with the size of a head\n\n{growth_table()}\n"
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
