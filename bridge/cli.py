"""The console script `bridge`: every command that is also `python -m bridge.NAME`."""

import typer

from bridge.attach import attach
from bridge.doctor import doctor
from bridge.export import command as export
from bridge.golden import app as golden
from bridge.inspect import inspect
from bridge.run import run

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    help="ONNX detectors with NonMaxSuppression inside, converted and proven equal to onnxruntime.",
)
app.command("run")(run)
app.command("inspect")(inspect)
app.command("attach")(attach)
app.command("export")(export)
app.add_typer(golden, name="golden")
app.command("doctor")(doctor)


def main() -> None:
    """Run the command line of the process."""
    app()
