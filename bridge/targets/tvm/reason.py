"""What an error of TVM says, without the stack that it says it with."""

import re

_FRAME = re.compile(r"^(\d+: |File \"|Traceback|Stack trace|at /)")
_LAST_LINES = 3


def reason(error: BaseException) -> str:
    """The last lines of the message that are no stack frames; the type where there are none."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = [line for line in lines if not _FRAME.match(line)]
    return " ".join(said[-_LAST_LINES:]) if said else type(error).__name__
