"""What every command line of bridge shares: errors become one message and an exit status."""

import ast
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import typer
from numpy.typing import NDArray
from rich.console import Console

from bridge.errors import BridgeError, UsageError

STDERR = Console(stderr=True, highlight=False, soft_wrap=True)
STDOUT = Console(highlight=False, soft_wrap=True)


@contextmanager
def exit_on_error() -> Iterator[None]:
    """End the process with the status of a BridgeError raised inside, its message on stderr.

    Any other exception is a bug and keeps its traceback.
    """
    try:
        yield
    except BridgeError as error:
        STDERR.print(f"bridge: {error}", style="red", markup=False)
        raise typer.Exit(error.exit_status) from None


def single_command(command: Callable[..., Any]) -> typer.Typer:
    """An application of one command, for `python -m bridge.NAME`."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(command)
    return app


def parse_shape(text: str) -> tuple[str, tuple[int, ...]]:
    """`images=1,3,320,320` as name and shape. The name may itself hold `=`; the last one counts.

    Raises:
        UsageError: no name, or something that is not a whole number of at least 1.
    """
    name, found, dims = text.rpartition("=")
    try:
        shape = tuple(int(dim) for dim in dims.split(","))
    except ValueError:
        shape = ()
    if not found or not name or not shape or min(shape) < 1:
        raise UsageError(f"--input-shape {text}: write NAME=1,3,320,320")
    return name, shape


def parse_constant(text: str) -> tuple[str, NDArray[np.generic]]:
    """`score_threshold=0.25` as name and array: a number, a list in brackets, or an `.npy` file.

    Raises:
        UsageError: no name, no number, or a file that cannot be read.
    """
    name, found, value = text.partition("=")
    if not found or not name or not value:
        raise UsageError(f"--freeze {text}: write NAME=VALUE")
    if value.endswith(".npy"):
        try:
            return name, np.asarray(np.load(value, allow_pickle=False))
        except (OSError, ValueError) as error:
            raise UsageError(f"--freeze {text}: cannot read {value}: {error}") from error
    try:
        array = np.asarray(ast.literal_eval(value))
    except (ValueError, SyntaxError):
        array = np.asarray(None)
    if array.dtype.kind not in "biuf":
        raise UsageError(f"--freeze {text}: give a number, a list in brackets or an .npy file")
    return name, array


def parse_numbers(option: str, text: str) -> tuple[float, ...]:
    """`104,116,124` as numbers; nothing from an empty text.

    Raises:
        UsageError: something that is not a number.
    """
    try:
        return tuple(float(number) for number in text.split(",")) if text else ()
    except ValueError:
        raise UsageError(f"--{option} {text}: write numbers with commas between") from None
