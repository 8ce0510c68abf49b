"""What every compiler of TVM does alike: a target built by LLVM, a library linked for it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import tvm

from bridge.errors import LoweringError
from bridge.targets.tvm.jobs import LIBRARY, Settings
from bridge.targets.tvm.reason import reason


def target(text: str | None, described: Callable[[str | None], Any]) -> Any:
    """The target of a text; None means this machine.

    Args:
        text: what the user gave.
        described: the text as this TVM takes a target.

    Raises:
        LoweringError: TVM does not know it, or it is not built by LLVM.
    """
    given: Any = text
    try:
        description = described(text)
        given = text or description
        made = tvm.target.Target(description)
    except Exception as error:
        raise LoweringError(f"TVM does not know the target {given!r}: {reason(error)}") from error
    if made.kind.name != "llvm":
        raise LoweringError(
            f"target {given!r}: only LLVM targets can be built, as in 'llvm -mcpu=cortex-a72 "
            "-mtriple=aarch64-linux-gnu'"
        )
    return made


def link(built: Any, settings: Settings, folder: Path) -> None:
    """Write the library; its symbols, which hold names of temporary files, are left out.

    Raises:
        LoweringError: there is no such compiler, or no room.
    """
    arguments: dict[str, Any] = {"cc": settings.cc} if settings.cc else {}
    try:
        built.export_library(str(folder / LIBRARY), options=["-s"], **arguments)
    except Exception as error:
        raise LoweringError(
            f"the library cannot be written: {reason(error)}; is there a compiler for this "
            "target (--cc), and room on the disk?"
        ) from error


def told(target: Any, settings: Settings) -> dict[str, Any]:
    """What the manifest shows: the target and the version that made the library."""
    return {"target": str(target), "opt_level": settings.opt_level, "tvm": tvm.__version__}
