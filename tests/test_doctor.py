"""What the doctor says of this machine."""

from pathlib import Path

from typer.testing import CliRunner

from bridge.command import single_command
from bridge.doctor import doctor


def test_it_tells_how_to_get_what_int8_needs(tmp_path: Path) -> None:
    arguments = ["--quantize-python", str(tmp_path / "python")]
    told = CliRunner().invoke(single_command(doctor), arguments)
    assert told.exit_code == 0
    lines = [line for line in told.stdout.splitlines() if line]
    assert any("tflite " in line and "yes" in line for line in lines)
    assert any("--quantize int8" in line and " no " in line for line in lines)
    assert "setup-quantize" in told.stdout
