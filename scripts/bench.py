"""Every ratio that bridge is held to, measured side by side in one run, as one Markdown file."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from scripts import bench_heads, bench_surgery, bench_tflite, bench_tvm
from scripts.bench_tflite import SHARED


def main(
    output: Annotated[Path, typer.Option("--output", "-o", help="file to write")] = Path(
        "build/bench.md"
    ),
    exports: Annotated[Path, typer.Option(help="torchvision's detectors")] = Path("build/exports"),
) -> None:
    """Measure everything; a quiet machine makes the medians worth reading, too."""
    parts: tuple[Callable[[], str], ...] = (
        bench_tflite.table,
        lambda: bench_surgery.table(exports),
        lambda: bench_heads.table(SHARED / "models" / "yolox-nano-416.onnx"),
        lambda: bench_tvm.table(exports),
    )
    texts = []
    for part in parts:
        texts.append(part())
        print(texts[-1])
    title = "# Ratios\n\nOurs over theirs: minima of runs in turns, in one process.\n\n"
    output.write_text(title + "\n".join(texts))


if __name__ == "__main__":
    typer.run(main)
