"""The target of TVM since 0.25, whose graphs are Relax. Importing this package imports no TVM."""

from bridge.targets.tvm_relax.target import TVM_RELAX, TvmRelaxTarget

__all__ = ["TVM_RELAX", "TvmRelaxTarget"]
