"""`python -m bridge.doctor`: which targets work here, and what to install for the others."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from bridge.command import STDOUT, exit_on_error, single_command
from bridge.options import Options, Quantization, Quantize
from bridge.targets.table import TARGETS
from bridge.targets.tflite import TFLITE


def doctor(
    *,
    tvm_python: Annotated[Path | None, typer.Option(help="interpreter to look for TVM in")] = None,
    quantize_python: Annotated[
        Path | None, typer.Option(help="interpreter to look for ai-edge-quantizer in")
    ] = None,
) -> None:
    """Say which targets can run here and what is missing for the others."""
    with exit_on_error():
        options = Options(tvm_python=tvm_python)
        table = Table("target", "works here", "what to do")
        for target in TARGETS:
            missing = target.missing(options)
            table.add_row(target.name, "no" if missing else "yes", missing or "")
        computed = Quantization(Quantize.INT8, python=quantize_python)
        missing = TFLITE.missing(replace(options, quantization=computed))
        table.add_row("tflite --quantize int8", "no" if missing else "yes", missing or "")
        STDOUT.print(table)


if __name__ == "__main__":
    single_command(doctor)()
