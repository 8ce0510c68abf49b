"""The options of the commands, each defined once: its name, what it takes, what it says of itself.

A parameter of a command is annotated with one of these; its default stands in the command.
"""

from pathlib import Path
from typing import Annotated, Final

import typer

from bridge.options import BoxUnits, NmsForm, Outputs, Qdq, Quantize
from bridge.preprocess import ChannelOrder, InputDtype, InputLayout

FED: Final = "What is fed"

_GRAPH: Final = "What the graph cannot tell"
_TFLITE: Final = "TFLite"
_QUANTISED: Final = "Quantised TFLite"
_CHECK: Final = "Golden check"
_HEAD: Final = "Head of a headless model"
_REPORT: Final = "Report"
_TVM: Final = "TVM"

Model = Annotated[Path, typer.Argument(help="the ONNX model", show_default=False)]
MaxDetections = Annotated[
    int | None, typer.Option(min=1, help="cap on the rows of a padded output")
]
InputShape = Annotated[
    list[str] | None,
    typer.Option(help="NAME=1,3,320,320 fixes symbolic dimensions", rich_help_panel=_GRAPH),
]
Freeze = Annotated[
    list[str] | None,
    typer.Option(
        help="NAME=VALUE makes an input a constant: number, list or .npy file",
        rich_help_panel=_GRAPH,
    ),
]
BoxLayoutName = Annotated[
    str,
    typer.Option(
        "--box-layout",
        help="auto, xyxy, yxyx, cxcywh or cycxhw: the order of a box",
        rich_help_panel=_GRAPH,
    ),
]
ClassAware = Annotated[
    bool,
    typer.Option(
        "--class-aware",
        help="turn batched_nms' coordinate trick into one class-aware NMS",
        rich_help_panel=_GRAPH,
    ),
]
SourceBoxUnits = Annotated[
    BoxUnits | None,
    typer.Option(
        help="what boxes count in MODEL; default: the unit that --box-units is not",
        rich_help_panel=_GRAPH,
    ),
]
BoxUnitsWanted = Annotated[
    BoxUnits | None,
    typer.Option("--box-units", help="what boxes shall count; default: as they are"),
]
Nms = Annotated[NmsForm, typer.Option(help="how it suppresses", rich_help_panel=_TFLITE)]
OutputForm = Annotated[
    Outputs | None,
    typer.Option(
        "--outputs",
        help="the model's own, or the four that apps for SSDs read",
        rich_help_panel=_TFLITE,
    ),
]
KeepNchw = Annotated[
    bool, typer.Option("--keep-nchw", help="image inputs stay NCHW", rich_help_panel=_TFLITE)
]
Labels = Annotated[
    Path | None,
    typer.Option(help="class names, one a line, for the metadata", rich_help_panel=_TFLITE),
]
QuantizeForm = Annotated[
    Quantize,
    typer.Option(
        "--quantize", help="what of the network becomes narrow", rich_help_panel=_QUANTISED
    ),
]
Calibrate = Annotated[
    Path | None,
    typer.Option(
        help="a folder of photos, or arrays by input name (.npz)", rich_help_panel=_QUANTISED
    ),
]
KeepFloat = Annotated[
    list[str] | None,
    typer.Option(
        help="a source node (or pattern) whose layer stays float32", rich_help_panel=_QUANTISED
    ),
]
IntegerPostprocess = Annotated[
    bool,
    typer.Option(
        "--integer-postprocess",
        help="int8, --nms postprocess: it decodes and decides on uint8",
        rich_help_panel=_QUANTISED,
    ),
]
QuantizeReport = Annotated[
    Path | None,
    typer.Option(
        help="write there as JSON what quantising each layer costs", rich_help_panel=_QUANTISED
    ),
]
QdqLayers = Annotated[
    Qdq,
    typer.Option(
        "--qdq",
        help="a model with QuantizeLinear: integer kernels, or onnxruntime's values in float32",
        rich_help_panel=_QUANTISED,
    ),
]
QuantizePython = Annotated[
    Path | None,
    typer.Option(help="interpreter that has ai-edge-quantizer", rich_help_panel=_QUANTISED),
]
GroundTruth = Annotated[
    Path | None,
    typer.Option(help="what is on the --images, as COCO JSON", rich_help_panel=_QUANTISED),
]
MaxApDrop = Annotated[
    float | None,
    typer.Option(
        min=0,
        help="average precision that may be lost; 0.01 with --ground-truth",
        rich_help_panel=_QUANTISED,
    ),
]
Images = Annotated[
    list[Path] | None,
    typer.Option(help="photos, or folders of photos, to feed", rich_help_panel=_CHECK),
]
Inputs = Annotated[
    Path | None, typer.Option(help="arrays to feed (.npz), by input name", rich_help_panel=_CHECK)
]
NoVerify = Annotated[
    bool, typer.Option("--no-verify", help="skip the golden check", rich_help_panel=_CHECK)
]
Head = Annotated[
    str | None,
    typer.Option(
        help="complete a headless model: a built-in head or a head file", rich_help_panel=_HEAD
    ),
]
HeadOption = Annotated[
    list[str] | None,
    typer.Option(help="KEY=VALUE changes a key of the head file", rich_help_panel=_HEAD),
]
ScoreThreshold = Annotated[
    float | None, typer.Option(help="keep scores above", rich_help_panel=_HEAD)
]
IouThreshold = Annotated[
    float | None,
    typer.Option(help="suppress boxes that overlap a better one by more", rich_help_panel=_HEAD),
]
ClassAgnostic = Annotated[
    bool | None,
    typer.Option(
        "--class-agnostic/--per-class",
        help="may classes suppress each other",
        rich_help_panel=_HEAD,
    ),
]
PreNmsTopK = Annotated[
    int | None,
    typer.Option(help="candidates that meet the suppression; 0 is all", rich_help_panel=_HEAD),
]
InputDtypeFed = Annotated[
    InputDtype | None,
    typer.Option("--input-dtype", help="default: what the network takes", rich_help_panel=FED),
]
Mean = Annotated[
    str, typer.Option(help="subtracted from bytes: 127 or 104,116,124", rich_help_panel=FED)
]
Std = Annotated[str, typer.Option(help="divided by after it: 128 or 57,57,58", rich_help_panel=FED)]
ChannelOrderTrained = Annotated[
    ChannelOrder,
    typer.Option(
        "--channel-order", help="what the network was trained on; RGB is fed", rich_help_panel=FED
    ),
]
InputLayoutFed = Annotated[
    InputLayout | None,
    typer.Option("--input-layout", help="default: what the network takes", rich_help_panel=FED),
]
DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run", help="say what would be done, write nothing", rich_help_panel=_REPORT
    ),
]
ReportFile = Annotated[
    Path | None,
    typer.Option("--report", help="write the whole report there as JSON", rich_help_panel=_REPORT),
]
AsJson = Annotated[
    bool, typer.Option("--json", help="print JSON instead of text", rich_help_panel=_REPORT)
]
Dump = Annotated[
    Path | None,
    typer.Option(help="write the model after each stage into this folder", rich_help_panel=_REPORT),
]
Quiet = Annotated[
    bool, typer.Option("-q", help="print nothing but errors", rich_help_panel=_REPORT)
]
Verbose = Annotated[bool, typer.Option("-v", help="print every finding", rich_help_panel=_REPORT)]
TvmTarget = Annotated[
    str | None,
    typer.Option(help="LLVM target string; default: this machine's CPU", rich_help_panel=_TVM),
]
TvmOptLevel = Annotated[
    int, typer.Option(min=0, max=4, help="relay's opt_level", rich_help_panel=_TVM)
]
TvmDisablePass = Annotated[
    list[str] | None, typer.Option(help="a relay pass to leave out", rich_help_panel=_TVM)
]
TvmExecutor = Annotated[
    str, typer.Option(help="graph, or vm for the dynamic model", rich_help_panel=_TVM)
]
TvmPython = Annotated[
    Path | None,
    typer.Option(help="interpreter that has TVM; default: this one", rich_help_panel=_TVM),
]
Cc = Annotated[
    str | None, typer.Option(help="the compiler that links lib.so", rich_help_panel=_TVM)
]
