"""Every error raised on purpose, and the exit status it ends with."""


class BridgeError(Exception):
    """Says what is wrong, where (node, operator with domain, tensor, shape) and what to do.

    Anything else that escapes is a bug in bridge and shows its traceback.
    """

    exit_status: int = 4


class UsageError(BridgeError):
    """An option or a path that cannot be used as given."""

    exit_status = 2


class UnsupportedModelError(BridgeError):
    """The model is invalid, or holds something no rule covers."""

    exit_status = 3


class PassError(BridgeError):
    """A pass could not run or broke its promise: our fault."""

    exit_status = 4


class TargetMissingError(BridgeError):
    """The target is not installed; the message says what to install."""

    exit_status = 5


class LoweringError(BridgeError):
    """The target refused the model."""

    exit_status = 6


class GoldenMismatchError(BridgeError):
    """Converted, but the outputs differ from onnxruntime's."""

    exit_status = 1


class InconclusiveError(BridgeError):
    """Nothing was detected in any golden input, so nothing was shown."""

    exit_status = 7
