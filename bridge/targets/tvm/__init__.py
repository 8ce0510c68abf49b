"""The TVM target. Importing this package imports no TVM: that happens in child processes."""

from bridge.targets.tvm.target import TVM, TvmTarget

__all__ = ["TVM", "TvmTarget"]
