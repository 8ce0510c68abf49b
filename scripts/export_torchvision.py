"""Export torchvision's detectors at full size, with random weights that detect something."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from bridge.command import exit_on_error, single_command
from bridge.export import export, summary
from bridge.pytorch import Exporter, Input


@dataclass(frozen=True, slots=True)
class Detector:
    """One of torchvision's builders, the size of its pictures, and its arguments."""

    name: str
    size: int
    options: Mapping[str, object] = field(default_factory=dict)

    def file(self, folder: Path, exporter: Exporter) -> Path:
        """Where its export lies in a folder."""
        return folder / f"{self.name}.{exporter}.onnx"


_UNSCALED = {"min_size": 320, "max_size": 320}

DETECTORS = (
    Detector("ssdlite320_mobilenet_v3_large", 320),
    Detector("fasterrcnn_mobilenet_v3_large_320_fpn", 320),
    Detector("ssd300_vgg16", 300),
    Detector("retinanet_resnet50_fpn_v2", 320, _UNSCALED),
    Detector("fcos_resnet50_fpn", 320, _UNSCALED),
)


def main(
    folder: Annotated[Path, typer.Argument(help="where the files go; those there are kept")],
    *,
    only: Annotated[list[str] | None, typer.Option(help="names; default: all five")] = None,
    exporter: Annotated[
        list[Exporter] | None, typer.Option(help="torchscript, dynamo; default: both")
    ] = None,
    verify: Annotated[bool, typer.Option(help="compare each with torch")] = False,
) -> None:
    """Write NAME.EXPORTER.onnx for each detector and exporter, opset 17 where that can be had."""
    folder.mkdir(parents=True, exist_ok=True)
    for detector in DETECTORS:
        for one in exporter or Exporter:
            path = detector.file(folder, one)
            if not path.exists() and (not only or detector.name in only):
                with exit_on_error():
                    typer.echo(_export(detector, path, one, verify=verify))


def _export(detector: Detector, path: Path, exporter: Exporter, *, verify: bool) -> str:
    done = export(
        f"torchvision:{detector.name}",
        path,
        [Input("images", (1, 3, detector.size, detector.size))],
        model_options=detector.options,
        exporter=exporter,
        verify=verify,
    )
    checked = summary(done.agreement) if done.agreement else "not compared with torch"
    return f"{path.name}: opset {done.opset}, {done.nodes} nodes; {checked}"


if __name__ == "__main__":
    single_command(main)()
