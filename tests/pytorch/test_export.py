"""`bridge export`: what comes of a PyTorch model, and what is refused."""

import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
import torchvision

from bridge import export as door
from bridge.errors import (
    GoldenMismatchError,
    InconclusiveError,
    TargetMissingError,
    UnsupportedModelError,
    UsageError,
)
from bridge.export import export, parse_input, parse_option
from bridge.model import load
from bridge.options import Options
from bridge.pytorch import Exporter, Input, exporters, source
from bridge.pytorch.agreement import Definition, compare
from bridge.verify import golden
from bridge.verify.inputs import input_sets

IMAGE = [Input("images", (1, 3, 64, 64))]
MODELS = "tests.pytorch.models"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("yolo", "write torchvision:NAME or module:callable"),
        ("torchvision:yolo", "no detector 'yolo'; it has .*ssd300_vgg16"),
        ("no_such_module:yolo", "no module 'no_such_module'"),
        (f"{MODELS}:nobody", "no callable 'nobody'"),
        ("nowhere.py:yolo", "no file nowhere.py"),
        (f"{MODELS}:nothing", "gives a str, not a torch.nn.Module"),
    ],
)
def test_a_specification_that_names_no_model_is_refused(spec: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        source.build(spec)


def test_an_argument_the_callable_does_not_take_is_refused() -> None:
    with pytest.raises(UsageError, match=r"cannot be called with \{'size': 3\}"):
        source.build(f"{MODELS}:yolo", options={"size": 3})


def test_a_module_error_of_the_users_own_is_not_hidden(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("import not_installed_anywhere\n")
    with pytest.raises(ModuleNotFoundError, match="not_installed_anywhere"):
        source.build(f"{tmp_path}/mine.py:model")


def test_weights_are_read_as_data(tmp_path: Path) -> None:
    marker = tmp_path / "ran"

    class Attack:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return Path.touch, (marker,)  # type: ignore[return-value]  # what an attacker writes

    weights = tmp_path / "weights.pt"
    torch.save({"state_dict": Attack()}, weights)
    with pytest.raises(UsageError, match="does not hold plain weights"):
        source.build(f"{MODELS}:yolo", weights=weights)
    assert not marker.exists()
    weights.write_bytes(pickle.dumps(1)[:2])
    with pytest.raises(UsageError, match="does not hold plain weights"):
        source.build(f"{MODELS}:yolo", weights=weights)
    with pytest.raises(UsageError, match="cannot read"):
        source.build(f"{MODELS}:yolo", weights=tmp_path / "missing.pt")


@pytest.mark.parametrize("key", [None, "state_dict", "model"])
def test_weights_are_loaded(tmp_path: Path, key: str | None) -> None:
    model = source.build(f"{MODELS}:yolo")
    state = {name: value + 1 for name, value in model.model.state_dict().items()}
    torch.save({key: state} if key else state, tmp_path / "weights.pt")
    loaded = source.build(f"{MODELS}:yolo", weights=tmp_path / "weights.pt").model.state_dict()
    assert all(torch.equal(loaded[name], value) for name, value in state.items())


def test_weights_of_another_model_are_refused(tmp_path: Path) -> None:
    torch.save(source.build(f"{MODELS}:two_convolutions").model.state_dict(), tmp_path / "w.pt")
    with pytest.raises(
        UsageError, match=r"needs grid and \d+ more, .* has conv1.weight and 3 more"
    ):
        source.build(f"{MODELS}:yolo", weights=tmp_path / "w.pt")


@pytest.mark.parametrize("exporter", Exporter)
def test_batched_nms_behind_a_mask_exports(tmp_path: Path, exporter: Exporter) -> None:
    path = tmp_path / "yolo.onnx"
    done = export(f"{MODELS}:yolo", path, IMAGE, exporter=exporter, output_names=["rows"])
    assert done.agreement is not None
    assert done.agreement.different == 0
    assert done.agreement.same > 400
    assert done.agreement.definitions == ()
    model = load(path).model
    assert [value.name for value in model.graph.input] == ["images"]
    assert [value.name for value in model.graph.output] == ["rows"]
    branches = sum(node.op_type == "If" for node in model.graph.node)
    if exporter is Exporter.TORCHSCRIPT:
        assert (done.opset, branches) == (17, 1)
    else:
        assert (done.opset, branches) == (18, 0)
        assert any("opset 18, not 17" in warning for warning in done.warnings)


@pytest.mark.parametrize(
    "exporter",
    [Exporter.TORCHSCRIPT, pytest.param(Exporter.DYNAMO, marks=pytest.mark.slow)],
)
def test_the_same_export_gives_the_same_bytes_and_no_paths(
    tmp_path: Path, exporter: Exporter
) -> None:
    files = [tmp_path / "a.onnx", tmp_path / "b.onnx"]
    for file in files:
        export(f"{MODELS}:two_convolutions", file, IMAGE, exporter=exporter, verify=False)
    first, second = (file.read_bytes() for file in files)
    assert first == second
    assert b".py" not in first
    assert sorted(tmp_path.iterdir()) == files


def test_reversed_corners_are_named(tmp_path: Path) -> None:
    """The reported two-convolution model: torch and ONNX keep different boxes, for one reason."""
    done = export(f"{MODELS}:two_convolutions", tmp_path / "m.onnx", [Input("x", (1, 3, 16, 16))])
    assert done.agreement is not None
    assert done.agreement.definitions == (Definition.REVERSED_CORNERS,)
    assert done.agreement.same == done.agreement.detections > 0
    assert any("reversed corners: torchvision.ops.nms" in text for text in done.warnings)


def test_class_by_class_suppression_is_named(tmp_path: Path) -> None:
    inputs = [Input("boxes", (1100, 4)), Input("scores", (1100,))]
    done = export(
        f"{MODELS}:far_negative", tmp_path / "m.onnx", inputs, output_names=["kept", "kept_scores"]
    )
    assert done.agreement is not None
    assert Definition.CLASS_BY_CLASS in done.agreement.definitions
    assert any("class by class: above 1000 boxes" in text for text in done.warnings)


def test_other_weights_are_a_mismatch(tmp_path: Path) -> None:
    """A thousandth of one weight is far above rounding."""
    path = tmp_path / "yolo.onnx"
    export(f"{MODELS}:yolo", path, IMAGE)
    exported = load(path)
    judged = golden.record(exported, input_sets(exported, Options()))
    model = source.build(f"{MODELS}:yolo")
    assert compare(model, judged).different == 0
    with torch.no_grad():
        next(iter(model.model.parameters())).mul_(1.001)
    assert compare(model, judged).different > 0


def test_a_mismatch_keeps_the_file_under_another_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrong exporter: it writes a model whose boxes are all a pixel off."""
    honest = exporters.to_onnx

    def wrong(*args: object, **kwargs: object) -> onnx.ModelProto:
        model = honest(*args, **kwargs)  # type: ignore[arg-type]  # passed on
        bias = next(t for t in model.graph.initializer if t.dims == [27])
        values = onnx.numpy_helper.to_array(bias) + np.float32(0.25)
        bias.CopyFrom(onnx.numpy_helper.from_array(values, bias.name))
        return model

    monkeypatch.setattr(exporters, "to_onnx", wrong)
    with pytest.raises(GoldenMismatchError, match=r"disagree on \d+ inputs.*yolo.onnx.mismatch"):
        export(f"{MODELS}:yolo", tmp_path / "yolo.onnx", IMAGE)
    assert [path.name for path in tmp_path.iterdir()] == ["yolo.onnx.mismatch"]


def test_nothing_detected_shows_nothing(tmp_path: Path) -> None:
    with pytest.raises(InconclusiveError, match="--images"):
        export(f"{MODELS}:blind", tmp_path / "m.onnx", IMAGE)
    assert not list(tmp_path.iterdir())
    export(f"{MODELS}:blind", tmp_path / "m.onnx", IMAGE, verify=False)
    assert (tmp_path / "m.onnx").exists()


def test_a_model_that_does_not_take_the_input_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not run on inputs of shape 1x3x40x40"):
        export(f"{MODELS}:yolo", tmp_path / "m.onnx", [Input("images", (1, 3, 40, 40))])


def test_names_that_clash_or_do_not_count_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="share a name"):
        export(f"{MODELS}:yolo", tmp_path / "m.onnx", IMAGE, output_names=["images"])
    with pytest.raises(UsageError, match="2 names and the model has 1 outputs: output"):
        export(f"{MODELS}:yolo", tmp_path / "m.onnx", IMAGE, output_names=["a", "b"])


def test_an_output_that_cannot_be_written_is_refused_first(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere" / "m.onnx"):
        with pytest.raises(UsageError, match="--output"):
            export("no_such_module:model", path, IMAGE)


def test_what_an_exporter_refuses_is_refused_with_its_reason(tmp_path: Path) -> None:
    script = tmp_path / "mine.py"
    script.write_text(
        "import torch\n\n\nclass Model(torch.nn.Module):\n"
        "    def forward(self, x):\n        return torch.linalg.eigvals(x[0, 0]).real\n"
    )
    with pytest.raises(UnsupportedModelError, match=r"torchscript exporter refuses.*eig"):
        export(f"{script}:Model", tmp_path / "m.onnx", IMAGE)


def test_without_torch_the_message_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door, "_NEEDED", ("torch_that_is_not_here",))
    with pytest.raises(TargetMissingError, match=r"pip install 'bridge\[torch\]'") as caught:
        export(f"{MODELS}:yolo", tmp_path / "m.onnx", IMAGE)
    assert caught.value.exit_status == 5


def test_batched_nms_is_itself_again_after_an_export() -> None:
    function = torchvision.ops.batched_nms
    code = function.__code__
    during = exporters.traceable_batched_nms()
    with during:
        assert function.__code__ is not code
    assert function.__code__ is code
    with pytest.raises(ZeroDivisionError), exporters.traceable_batched_nms():
        _ = 1 / 0
    assert function.__code__ is code


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1x3x32x48", Input("images", (1, 3, 32, 48))), ("a=b=7", Input("a=b", (7,)))],
)
def test_an_input_is_parsed(text: str, expected: Input) -> None:
    assert parse_input(text) == expected


@pytest.mark.parametrize("text", ["", "1x", "=1x3", "1x0", "1,3", "a=x"])
def test_what_is_no_input_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--input"):
        parse_input(text)


def test_a_model_option_is_a_literal_or_a_text() -> None:
    assert parse_option("num_classes=5") == ("num_classes", 5)
    assert parse_option("norm=BatchNorm") == ("norm", "BatchNorm")
    with pytest.raises(UsageError, match="--model-option"):
        parse_option("5")


def _command(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    root = Path(__file__).resolve().parents[2]
    return subprocess.run(
        [sys.executable, "-m", "bridge.export", *arguments, "-o", str(folder / "m.onnx")],
        cwd=root,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )


def test_the_command_line_is_quiet_unless_asked(tmp_path: Path) -> None:
    spec = f"{MODELS}:yolo"
    done = _command(tmp_path, spec, "--input", "1x3x64x64")
    assert (done.returncode, done.stderr) == (0, "")
    assert "opset 17" in done.stdout
    assert "torch and onnxruntime agree on" in done.stdout
    loud = _command(tmp_path, spec, "--input", "1x3x64x64", "-v", "--no-verify")
    assert loud.returncode == 0
    assert "TracerWarning" in loud.stderr


@pytest.mark.parametrize(("shape", "status"), [("1x3x64x64", 7), ("64", 2), ("1,3,64,64", 2)])
def test_the_command_line_ends_with_the_status_of_the_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], shape: str, status: int
) -> None:
    with pytest.raises(SystemExit) as ended:
        door.main([f"{MODELS}:blind", "-o", str(tmp_path / "m.onnx"), "--input", shape])
    assert ended.value.code == status
    assert capsys.readouterr().err.startswith("bridge: ")
    assert not list(tmp_path.iterdir())
