"""Tensor IR as both generations of TVM spell it: `tvm.tir` up to 0.19, `tvm.tirx` since 0.26.

Kernels are written once, against the builder of 0.19; the newer one is dressed up as it.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import tvm

try:
    from tvm import tir
except ImportError:
    from tvm import tirx as tir

__all__ = ["builder", "dtype_of", "intrinsic", "tir"]

_OLD = hasattr(tvm, "tir")


def builder() -> Any:
    """What a kernel is written with: loops, branches, buffers; see `tvm.tir.ir_builder`."""
    return tir.ir_builder.create() if _OLD else _Builder()


def intrinsic(name: str, dtype: str, *arguments: Any) -> Any:
    """A pure function of LLVM; TVM 0.19 wants to be told that it is overloaded by one type."""
    signature = (tir.const(1, "uint32"),) if _OLD else ()
    return tir.call_llvm_pure_intrin(dtype, name, *signature, *arguments)


def dtype_of(value: Any) -> str:
    """The type of a scalar or vector, as in `float32x8`."""
    return str(value.dtype if _OLD else value.ty)


class _Builder:
    """The methods of `tvm.tir.ir_builder.IRBuilder` that kernels use, by `tvm.script.ir_builder`.

    It is entered at once and left by `get`, as a kernel is one function from start to end.
    """

    def __init__(self) -> None:
        from tvm.script import ir_builder
        from tvm.script.ir_builder import tirx as script

        self._script = script
        self._builder = ir_builder.IRBuilder()
        self._open = ExitStack()
        self._open.enter_context(self._builder)
        # Without it a function holds one statement only.
        self._body = ExitStack()
        self._body.enter_context(script.seq_scope())

    def buffer_ptr(self, buffer: Any) -> Any:
        """A buffer that is read and written by index."""
        return self._script.buffer_proxy(buffer)

    def allocate(self, dtype: str, shape: Any, name: str = "buf", scope: str = "global") -> Any:
        """A buffer of the kernel's own."""
        del name
        return self._script.buffer_proxy(self._script.alloc_buffer(shape, dtype, scope=scope))

    def for_range(self, begin: Any, end: Any, name: str = "i", kind: str = "serial") -> Any:
        """A loop; its variable is what the context gives."""
        del name
        return getattr(self._script, kind)(begin, end)

    def while_loop(self, condition: Any) -> Any:
        """A loop as long as the condition holds."""
        return self._script.While(condition)

    @contextmanager
    def if_scope(self, condition: Any) -> Iterator[None]:
        """A branch."""
        with self._script.If(condition), self._script.Then():
            yield

    def get(self) -> Any:
        """The statement; nothing can be added after it."""
        self._body.close()
        made = self._builder.get()
        self._open.close()
        return made
