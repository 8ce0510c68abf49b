"""What every command line of bridge shares: errors become one message and an exit status."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import typer
from rich.console import Console

from bridge.errors import BridgeError

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
