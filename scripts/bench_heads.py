"""What a head costs in TFLite: latency with the suppression inside over the headless latency.

    python -m scripts.bench_heads MODEL --head NAME [--score-threshold 0.3]

Both files come out of the same converter and run in turns in one process, one thread each; the
least processor time of many runs is taken, since other work on the machine only ever adds to it.
"""

import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import numpy as np
import onnx
import typer
from ai_edge_litert.interpreter import Interpreter

from bridge import surgery
from bridge.heads import HeadOptions, complete
from bridge.model import load
from bridge.options import Options
from bridge.targets.table import find

ROUNDS = 60
BAR = 1.10


def ratio(model: Path, head: str, options: HeadOptions, folder: Path) -> float:
    """Latency with the head over latency without, on noise from 0 to 255."""
    source = load(model).model
    files = [
        _converted(source, folder / "headless"),
        _converted(complete(source, head, options), folder / "completed"),
    ]
    headless, completed = _latencies(files)
    return completed / headless


def _converted(model: onnx.ModelProto, folder: Path) -> Path:
    folder.mkdir()
    static = surgery.run(model, Options()).static
    return find("tflite").lower(static, Options(), folder).path


def _latencies(files: list[Path]) -> list[float]:
    interpreters = []
    for file in files:
        interpreter = Interpreter(model_path=str(file), num_threads=1)
        interpreter.allocate_tensors()
        rng = np.random.default_rng(0)
        for feed in interpreter.get_input_details():
            numbers = rng.uniform(0, 255, feed["shape"]).astype(feed["dtype"])
            interpreter.set_tensor(feed["index"], numbers)
        interpreters.append(interpreter)
    best = [float("inf")] * len(files)
    for _ in range(ROUNDS):
        for number, interpreter in enumerate(interpreters):
            start = time.process_time()
            interpreter.invoke()
            best[number] = min(best[number], time.process_time() - start)
    return best


def table(model: Path) -> str:
    """The ratio of yolox-nano, as Markdown."""
    with TemporaryDirectory() as folder:
        cost = ratio(model, "yolox", HeadOptions(), Path(folder))
    return (
        "## TFLite: a head with its suppression against the headless network\n\n"
        "| model | ratio | bar |\n| --- | --- | --- |\n"
        f"| {model.name} | {cost:.2f} | {BAR} |\n"
    )


def main(
    model: Path,
    *,
    head: Annotated[str, typer.Option()],
    score_threshold: Annotated[float | None, typer.Option()] = None,
) -> None:
    """Print the ratio."""
    with TemporaryDirectory() as folder:
        options = HeadOptions(score_threshold=score_threshold)
        print(f"{head}: {ratio(model, head, options, Path(folder)):.3f} of the headless latency")


if __name__ == "__main__":
    typer.run(main)
