"""torch kept off the user's terminal."""

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator

_LOG = logging.getLogger(__name__)

_CHATTY = ("torch.onnx", "torch.export", "torch._export", "torch.fx", "onnxscript", "onnx_ir")


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep warnings, prints and log records of torch off the terminal; `-v` shows them."""
    loggers = [logging.getLogger(name) for name in _CHATTY]
    levels = [logger.level for logger in loggers]
    printed = io.StringIO()
    shown = _LOG.isEnabledFor(logging.INFO)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            for logger in loggers:
                logger.setLevel(logging.WARNING if shown else logging.CRITICAL)
            with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
                yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
            for text in dict.fromkeys(f"{w.category.__name__}: {w.message}" for w in caught):
                _LOG.info("torch: %s", text)
            if printed.getvalue().strip():
                _LOG.info("torch: %s", printed.getvalue().strip())
