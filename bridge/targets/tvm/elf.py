"""For which processor a shared library is."""

import platform
import struct
from pathlib import Path

from bridge.errors import LoweringError

_MACHINES = {3: "i686", 40: "armv7l", 62: "x86_64", 183: "aarch64", 243: "riscv64"}


def machine(path: Path) -> str | None:
    """The architecture as `platform.machine` names it; None where the file is no ELF library.

    Source: ELF header, field e_machine (two bytes at offset 18, in the file's byte order).
    """
    with path.open("rb") as file:
        header = file.read(20)
    if len(header) < 20 or header[:4] != b"\x7fELF":
        return None
    order = "<" if header[5] == 1 else ">"
    (number,) = struct.unpack_from(f"{order}H", header, 18)
    return _MACHINES.get(number, f"machine {number}")


def check_runs_here(path: Path) -> None:
    """Raise if a library is for another processor than this one.

    Raises:
        LoweringError: it is.
    """
    try:
        found = machine(path)
    except OSError as error:
        raise LoweringError(f"{path}: {error.strerror}") from error
    if found is not None and found != platform.machine():
        raise LoweringError(
            f"{path.name} is for {found} and this machine is {platform.machine()}: it cannot be "
            "checked here; convert with --no-verify and check it where it runs"
        )
