"""Each ONNX operator on its own, in every type and form it is taken in, against onnxruntime."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.targets.tflite.emitting import Array, both, ulps

F32, I64, I32, BOOL, U8, I8 = (
    np.dtype(name) for name in ("float32", "int64", "int32", "bool", "uint8", "int8")
)
NUMBERS = (F32, I64, I32)
ALL = (F32, I64, I32, BOOL, U8, I8)
NAN, INF = np.nan, np.inf
SCALES: dict[str, Any] = {"alpha": 0.5, "beta": 2.0}


@dataclass(frozen=True)
class Case:
    """One node. `ulp` and `near` allow what two right implementations may differ by."""

    op: str
    label: str
    feeds: Mapping[str, Array]
    constants: Mapping[str, Array] = field(default_factory=dict)
    order: tuple[str, ...] | None = None
    outputs: int = 1
    ulp: int = 0
    near: float = 0.0
    attributes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def node(self) -> onnx.NodeProto:
        names = self.order if self.order is not None else (*self.feeds, *self.constants)
        outputs = [f"y{i}" for i in range(self.outputs)]
        return helper.make_node(self.op, names, outputs, name="node", **self.attributes)


def data(dtype: np.dtype[Any], *shape: int, seed: int = 0, low: int = -9, high: int = 9) -> Array:
    """Numbers of a type: floats with fractions, integers from a range, both truths."""
    rng = np.random.default_rng([seed, *shape])
    if dtype == F32:
        return np.asarray(rng.standard_normal(shape) * 3, F32)
    if dtype == BOOL:
        low, high = 0, 2
    elif dtype == U8:
        low, high = 0, 99
    return np.asarray(rng.integers(low, high, shape)).astype(dtype)


def ints(*values: Any) -> Array:
    return np.array(values, I64)


def nonzero(array: Array) -> Array:
    return np.where(array == 0, np.asarray(3, array.dtype), array)


def specials() -> Array:
    values = [0.5, 1.5, 2.5, -0.5, -1.5, -2.5, -0.2, 0.49999997, 0.0, -0.0, INF, -INF, NAN]
    return np.concatenate([data(F32, 300) * 4, np.array([*values, 88, -104, 1e-30, 1e30], F32)])


SHAPES: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = (
    ((4, 5), (4, 5)),
    ((4, 5), ()),
    ((4, 1), (1, 5)),
    ((2, 3, 4, 5, 2), (1, 3, 1, 1, 2)),
    ((2, 3, 4, 5, 2), ()),
    ((1, 3, 2, 1, 2, 4), (2, 1, 2, 3, 1, 4)),
    ((), ()),
)


def arithmetic() -> Iterator[Case]:
    for op in ("Add", "Sub", "Mul", "Div", "Max", "Min", "Mod"):
        for dtype in NUMBERS:
            for a, b in SHAPES:
                x, y = data(dtype, *a), data(dtype, *b, seed=1)
                if op in ("Div", "Mod"):
                    y = nonzero(y)
                attributes = {"fmod": 1} if op == "Mod" and dtype == F32 else {}
                label = f"{dtype} {a} {b}"
                yield Case(op, label, {"x": x, "y": y}, attributes=attributes)
    big = {"x": ints(2**40 + 3, -(2**33) - 1), "y": ints(12345, 2**29 + 1)}
    for op in ("Add", "Sub", "Mul", "Max", "Min", "Mod"):
        yield Case(op, "beyond 2^32", big)
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 63, (2, 2000))
    wide = rng.integers(-(2**63), 2**63 - 1, (2, 2000)) >> bits
    yield Case("Div", "any int64", {"x": wide[0], "y": nonzero(wide[1])})
    yield Case("Div", "any int64 by a constant", {"x": wide[0]}, {"y": np.array(-977)})
    whole = wide[1] >> 32 << 1 | 1
    yield Case("Div", "multiples", {"x": whole * (wide[0] >> 40), "y": whole})
    for dtype in (I64, I32):
        y = nonzero(data(dtype, 40, seed=1))
        yield Case("Mod", f"fmod {dtype}", {"x": data(dtype, 40), "y": y}, attributes={"fmod": 1})


def extremes() -> Iterator[Case]:
    x, y = data(F32, 50), data(F32, 50, seed=1)
    x[[0, 3]], y[[1, 3]], x[5], y[6] = NAN, NAN, INF, -INF
    half = {"c": np.array(0.5, F32)}
    for op in ("Max", "Min"):
        yield Case(op, "NaN on either side", {"x": x, "y": y})
        yield Case(op, "NaN against a constant", {"x": x}, half)
        yield Case(op, "NaN against a constant before it", {"x": x}, half, ("c", "x"))
        yield Case(op, "a constant NaN", {"x": y}, {"c": x})
        yield Case(op, "three", {"x": x, "y": y, "z": data(F32, 50, seed=2)})
        yield Case(op, "one", {"x": x})
        for dtype in (U8, I8):
            yield Case(op, str(dtype), {"x": data(dtype, 9), "y": data(dtype, 9, seed=1)})
    x[7] = -0.0
    for low, high in ((0.0, 1.0), (None, 1.0), (0.0, None), (None, None), (2.0, -1.0)):
        bounds = {"lo": low, "hi": high}
        given = {k: np.array(v, F32) for k, v in bounds.items() if v is not None}
        order = ("x", "lo" if low is not None else "", "hi" if high is not None else "")
        yield Case("Clip", f"{low} {high}", {"x": x}, given, order)
    for dtype in (I64, I32, U8, I8):
        given = {"lo": np.array(2, dtype), "hi": np.array(5, dtype)}
        yield Case("Clip", str(dtype), {"x": data(dtype, 30)}, given)
    computed = {"x": data(F32, 30), "lo": np.array(-1, F32)}
    yield Case("Clip", "computed bound", computed, {"hi": np.array(2, F32)})
    many = {"x": data(F32, 4, 5), "y": data(F32, 5), "z": data(F32, 1)}
    yield Case("Sum", "three", many)
    yield Case("Mean", "three", many, ulp=1)


def functions() -> Iterator[Case]:
    exact = ("Abs", "Neg", "Sign", "Floor", "Ceil", "Round", "Relu", "LeakyRelu", "Reciprocal")
    for op in (*exact, "IsNaN", "IsInf"):
        yield Case(op, "float32", {"x": specials()})
    yield Case("Sqrt", "float32", {"x": np.abs(specials())})
    for op, ulp in (("Exp", 2), ("Log", 4), ("Tanh", 8), ("Sin", 2), ("Cos", 2)):
        yield Case(op, "float32", {"x": specials()}, ulp=ulp)
    # onnxruntime's own Sigmoid is exact to 1e-7 of 1, not of its value.
    yield Case("Sigmoid", "float32", {"x": specials()}, near=3e-7)
    yield Case("Softplus", "float32", {"x": specials()}, ulp=4)
    yield Case("HardSigmoid", "float32", {"x": specials()}, ulp=2)
    for op in ("Abs", "Neg", "Sign"):
        for dtype in (I64, I32):
            yield Case(op, str(dtype), {"x": data(dtype, 30)})
    infinities = {"x": np.array([INF, -INF, NAN, 1], F32)}
    yield Case("IsInf", "positive", infinities, attributes={"detect_negative": 0})
    yield Case("IsInf", "negative", infinities, attributes={"detect_positive": 0})
    positive = np.abs(data(F32, 300))
    for exponent in (2.0, 3.0, 0.5, 0.6, -1.0):
        ulp = 0 if exponent in (2.0, 3.0) else 2
        exponents = {"e": np.array(exponent, F32)}
        yield Case("Pow", str(exponent), {"x": positive}, exponents, ulp=ulp)
    yield Case("Pow", "negative base", {"x": data(F32, 300)}, {"e": np.array([2], F32)})
    yield Case("Pow", "integer exponent", {"x": data(F32, 300)}, {"e": np.array(4)}, ulp=2)
    yield Case("Pow", "computed", {"x": positive, "e": data(F32, 300, seed=1)}, ulp=2)
    for dtype in (I64, I32):
        for exponent in (2, 3):
            yield Case(
                "Pow",
                f"{dtype} {exponent}",
                {"x": data(dtype, 30)},
                {"e": np.array(exponent, dtype)},
            )


def comparisons() -> Iterator[Case]:
    for op in ("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"):
        for dtype in (*NUMBERS, U8, I8, *((BOOL,) if op == "Equal" else ())):
            for a, b in SHAPES:
                x, y = (data(I64, *s, seed=n, low=0, high=3) for n, s in enumerate((a, b)))
                feeds = {"x": np.asarray(x).astype(dtype), "y": np.asarray(y).astype(dtype)}
                yield Case(op, f"{dtype} {a} {b}", feeds)
        x = data(F32, 2000)
        x[3] = NAN
        scalar = {"c": np.array(x[7], F32)}
        yield Case(op, "many against a scalar", {"x": x}, scalar)
        yield Case(op, "a scalar against many", {"x": x}, scalar, ("c", "x"))
        yield Case(op, "many int64", {"x": data(I64, 2000)}, {"c": np.array(3)})
        yield Case(
            op, "beyond 2^53", {"x": ints(2**53, 2**53 + 1), "y": ints(2**53 + 1, 2**53 + 1)}
        )
    for op in ("And", "Or", "Xor"):
        for a, b in SHAPES:
            yield Case(op, f"{a} {b}", {"x": data(BOOL, *a), "y": data(BOOL, *b, seed=1)})
    yield Case("Not", "bool", {"x": data(BOOL, 7)})
    conditions = ((4, 5), (4, 5), (4, 5), (2, 1, 4, 5, 2), (2, 3, 4, 5, 2), (1, 3, 2, 3, 2, 4), ())
    for dtype in (*NUMBERS, U8):
        for (a, b), c in zip(SHAPES, conditions, strict=True):
            x = data(dtype, *a)
            if dtype == F32 and x.size > 2:
                x.reshape(-1)[:3] = [NAN, INF, -INF]
            feeds = {"c": data(BOOL, *c), "x": x, "y": data(dtype, *b, seed=1)}
            yield Case("Where", f"{dtype} {a} {b}", feeds)


def movers() -> Iterator[Case]:
    permutations: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = (
        ((1, 0), (3, 4)),
        ((0, 2, 1), (2, 3, 4)),
        ((2, 0, 1), (2, 3, 4)),
        ((0, 2, 3, 1), (2, 3, 4, 5)),
        ((0, 3, 4, 2, 1), (2, 3, 4, 1, 5)),
        ((5, 4, 3, 2, 1, 0), (2, 3, 2, 3, 2, 2)),
        ((0, 1, 3, 4, 2), (1, 3, 7, 4, 4)),
        ((1, 0), (1, 5)),
        ((0, 1), (3, 4)),
        ((6, 7, 0, 1, 2, 3, 4, 5), (1, 2, 1, 2, 3, 1, 2, 2)),
    )
    for dtype in ALL:
        x = data(dtype, 3, 4)
        yield Case("Reshape", f"{dtype}", {"x": x}, {"s": ints(2, 6)})
        yield Case("Flatten", f"{dtype}", {"x": data(dtype, 3, 4, 2)}, attributes={"axis": 1})
        yield Case("Squeeze", f"{dtype}", {"x": data(dtype, 1, 4, 1)}, {"a": ints(0, 2)})
        yield Case("Squeeze", f"{dtype} to a scalar", {"x": data(dtype, 1)}, {"a": ints(0)})
        yield Case("Unsqueeze", f"{dtype}", {"x": data(dtype, 4)}, {"a": ints(0, -1)})
        yield Case("Unsqueeze", f"{dtype} of a scalar", {"x": data(dtype)}, {"a": ints(0)})
        yield Case("Identity", f"{dtype}", {"x": x})
        yield Case("Transpose", f"{dtype} without perm", {"x": data(dtype, 2, 3, 4)})
        for perm, shape in permutations:
            attributes = {"perm": perm}
            yield Case(
                "Transpose", f"{dtype} {perm}", {"x": data(dtype, *shape)}, attributes=attributes
            )
        pair = {"x": data(dtype, 2, 3), "y": data(dtype, 4, 3)}
        yield Case("Concat", f"{dtype} rows", pair, attributes={"axis": 0})
        three = {"x": data(dtype, 2, 3), "y": data(dtype, 2, 1), "z": data(dtype, 2, 2)}
        yield Case("Concat", f"{dtype} columns", three, attributes={"axis": -1})
        yield Case("Concat", f"{dtype} one", {"x": x}, attributes={"axis": 0})
        deep = {"x": data(dtype, 2, 3, 1, 2, 2), "y": data(dtype, 2, 3, 1, 2, 5)}
        yield Case("Concat", f"{dtype} of rank 5", deep, attributes={"axis": 4})
        yield Case(
            "Split",
            f"{dtype}",
            {"x": data(dtype, 4, 6)},
            {"s": ints(1, 2, 3)},
            outputs=3,
            attributes={"axis": 1},
        )
        yield Case("Split", f"{dtype} even", {"x": data(dtype, 4, 6)}, outputs=2)
        yield Case("Expand", f"{dtype}", {"x": data(dtype, 3, 1)}, {"s": ints(2, 3, 4)})
        yield Case("Expand", f"{dtype} to less", {"x": x}, {"s": ints(1, 4)})
        yield Case("Expand", f"{dtype} scalar", {"x": data(dtype)}, {"s": ints(2, 3)})
        for repeats, shape in (
            ((2, 1), (2, 3)),
            ((2, 3), (2, 3)),
            ((1, 4, 2, 1), (2, 1, 3, 2)),
            ((2,), (3,)),
            ((1, 1), (3, 2)),
        ):
            yield Case(
                "Tile", f"{dtype} {repeats}", {"x": data(dtype, *shape)}, {"r": ints(*repeats)}
            )
        yield Case("Trilu", f"{dtype}", {"x": data(dtype, 2, 4, 5)}, attributes={"upper": 1})
        yield Case("Trilu", f"{dtype} upper", {"x": data(dtype, 4, 4)}, {"k": np.array(1)})
        yield Case(
            "Trilu",
            f"{dtype} lower",
            {"x": data(dtype, 4, 4)},
            {"k": np.array(-1)},
            attributes={"upper": 0},
        )
        yield Case("Shape", f"{dtype}", {"x": x})
        yield Case("Size", f"{dtype}", {"x": x})
        fill = helper.make_tensor("v", helper.np_dtype_to_tensor_dtype(dtype), [1], [1])
        yield Case("ConstantOfShape", f"{dtype}", {}, {"s": ints(2, 3)}, attributes={"value": fill})


def slices() -> Iterator[Case]:
    huge = 2**63 - 1
    limits: tuple[tuple[tuple[int, ...], ...], ...] = (
        ((1,), (3,), (0,), (1,)),
        ((0,), (100,), (1,), (2,)),
        ((-1,), (-huge,), (1,), (-1,)),
        ((5,), (0,), (1,), (-2,)),
        ((1, -3), (huge, -1), (0, 2), (1, 1)),
        ((0,), (1,), (-1,), (1,)),
        ((-1,), (-100,), (0,), (-1,)),
        ((0,), (-1,), (0,), (1,)),
    )
    for dtype in ALL:
        x = data(dtype, 4, 6, 5)
        for start, end, axes, steps in limits:
            parts = {"s": ints(*start), "e": ints(*end), "a": ints(*axes), "p": ints(*steps)}
            yield Case("Slice", f"{dtype} {start} {end} {axes} {steps}", {"x": x}, parts)
        yield Case("Slice", f"{dtype} without axes", {"x": x}, {"s": ints(1, 2), "e": ints(3, 5)})
        small = data(dtype, 3, 4)
        yield Case("Pad", f"{dtype}", {"x": small}, {"p": ints(1, 0, 0, 2)})
        filled = {"p": ints(0, 1, 1, 0), "v": data(dtype)}
        yield Case("Pad", f"{dtype} filled", {"x": small}, filled)
        yield Case("Pad", f"{dtype} negative", {"x": small}, {"p": ints(-1, 1, 0, -2)})
        for mode in ("reflect", "edge"):
            amounts = {"p": ints(1, 2, 2, 3)}
            yield Case("Pad", f"{dtype} {mode}", {"x": small}, amounts, attributes={"mode": mode})
    for dtype in NUMBERS:
        ends = {"a": np.array(3, dtype), "b": np.array(9, dtype), "c": np.array(2, dtype)}
        yield Case("Range", str(dtype), {}, ends)
    tenth = {"a": np.array(0.1, F32), "b": np.array(9, F32), "c": np.array(0.1, F32)}
    yield Case("Range", "accumulated tenths", {}, tenth)
    falling = {"a": np.array(9), "b": np.array(0), "c": np.array(-2)}
    yield Case("Range", "falling", {}, falling)


def gathers() -> Iterator[Case]:
    rng = np.random.default_rng(0)
    for dtype in ALL:
        x, deep = data(dtype, 5, 6), data(dtype, 3, 4, 2)
        run, one = ints(-1, 0, 3, -5), {"axis": 1}
        yield Case("Gather", f"{dtype} scalar", {"x": x}, {"i": np.array(2)}, attributes=one)
        yield Case("Gather", f"{dtype} constant", {"x": x}, {"i": ints(-1, 0, 3)})
        yield Case("Gather", f"{dtype} run", {"x": x}, {"i": ints(1, 2, 3)}, attributes=one)
        yield Case("Gather", f"{dtype} table", {"x": x}, {"i": ints([0, 1], [4, 4])})
        yield Case("Gather", f"{dtype} computed", {"x": x, "i": run})
        table = np.array([[-1, 0], [3, -5]], I32)
        yield Case("Gather", f"{dtype} computed table", {"x": x, "i": table}, attributes=one)
        scalar = {"x": x, "i": np.array(-2)}
        yield Case("Gather", f"{dtype} computed scalar", scalar, attributes=one)
        inner = {"x": data(dtype, 2, 3, 4, 2), "i": ints(1, -1, 0)}
        yield Case("Gather", f"{dtype} inner axis", inner, attributes={"axis": 2})
        elements = {"x": data(dtype, 3, 4), "i": rng.integers(-3, 3, (2, 4))}
        yield Case("GatherElements", f"{dtype}", elements, attributes={"axis": 0})
        middle = {"x": deep, "i": rng.integers(-4, 4, (3, 5, 2)).astype(I32)}
        yield Case("GatherElements", f"{dtype} middle axis", middle, attributes=one)
        known = {"i": rng.integers(-4, 4, (3, 2))}
        yield Case(
            "GatherElements", f"{dtype} constant", {"x": data(dtype, 3, 4)}, known, attributes=one
        )
        yield Case("GatherND", f"{dtype}", {"x": deep, "i": ints([0, -1], [2, 1])})
        yield Case("GatherND", f"{dtype} constant", {"x": deep}, {"i": ints([0, -1, 1], [2, 1, 0])})
        batch = {"x": deep, "i": rng.integers(-4, 4, (3, 5, 1))}
        yield Case("GatherND", f"{dtype} one batch axis", batch, attributes={"batch_dims": 1})
        batches = {"x": deep, "i": rng.integers(-2, 2, (3, 4, 1))}
        yield Case("GatherND", f"{dtype} two batch axes", batches, attributes={"batch_dims": 2})


def scatters() -> Iterator[Case]:
    order = ("d", "i", "u")
    for dtype in ALL:
        d = data(dtype, 4, 3)
        rows = {"d": d, "i": ints([-1], [1]), "u": data(dtype, 2, 3)}
        yield Case("ScatterND", f"{dtype} rows", rows)
        elements = {"d": d, "i": ints([0, 1], [2, -1]), "u": data(dtype, 2)}
        yield Case("ScatterND", f"{dtype} elements", elements)
        given = {"d": d, "u": data(dtype, 2)}
        yield Case("ScatterND", f"{dtype} constant", given, {"i": ints([0, 1], [2, -1])}, order)
        blocks = {"d": data(dtype, 2, 4, 3), "u": data(dtype, 2, 2, 3)}
        where = {"i": ints([[0, 1], [0, 3]], [[1, 0], [1, 2]])}
        yield Case("ScatterND", f"{dtype} constant rows", blocks, where, order)
        axis0 = {"d": d, "i": ints([-1, 0, 1], [0, 1, 2]), "u": data(dtype, 2, 3)}
        yield Case("ScatterElements", f"{dtype}", axis0, attributes={"axis": 0})
        columns = {"i": ints([2, 0], [0, 1], [-1, 1], [1, 0])}
        known = {"d": d, "u": data(dtype, 4, 2)}
        yield Case(
            "ScatterElements", f"{dtype} constant", known, columns, order, attributes={"axis": 1}
        )
        vector = {"d": data(dtype, 9), "i": ints(4, -1, 0), "u": data(dtype, 3)}
        yield Case("ScatterElements", f"{dtype} vector", vector)
    for dtype in (F32, I64):
        indices = {"i": ints([0, -1, 5], [2, 9, -9])}
        values = {"d": np.array(6), "v": data(dtype, 2)}
        yield Case("OneHot", f"{dtype}", indices, values)
        yield Case("OneHot", f"{dtype} in front", indices, values, attributes={"axis": 0})


def ranks() -> Iterator[Case]:
    shapes = (((20,), 0), ((3, 30), 1), ((3, 30), -1), ((30, 3), 0), ((2, 10, 3), 1))
    for dtype in NUMBERS:
        for shape, axis in shapes:
            x = data(I64, *shape, low=-4, high=4).astype(dtype)
            for k in (1, min(7, shape[axis])):
                for largest in (1, 0):
                    attributes = {"axis": axis, "largest": largest}
                    label = f"{dtype} {shape} {axis} k={k} largest={largest}"
                    yield Case(
                        "TopK", label, {"x": x}, {"k": ints(k)}, outputs=2, attributes=attributes
                    )
    x = data(I64, 30, low=-4, high=4).astype(F32)
    x[[1, 5]], x[[2, 7]], x[3] = -INF, INF, -0.0
    for largest in (1, 0):
        attributes = {"largest": largest}
        yield Case(
            "TopK",
            f"infinities {largest}",
            {"x": x},
            {"k": ints(30)},
            outputs=2,
            attributes=attributes,
        )
    extremes_of = {"x": ints(2**62, -(2**63), 2**62 + 1, 2**63 - 1)}
    for largest in (1, 0):
        attributes = {"largest": largest}
        yield Case(
            "TopK",
            f"int64 {largest}",
            extremes_of,
            {"k": ints(4)},
            outputs=2,
            attributes=attributes,
        )
    for op in ("ArgMax", "ArgMin"):
        for dtype in (F32, I32, U8, I8, I64):
            for shape, axis in shapes:
                x = data(I64, *shape, low=0, high=4).astype(dtype)
                for keep, last in ((0, 0), (1, 0), (0, 1)):
                    attributes = {"axis": axis, "keepdims": keep, "select_last_index": last}
                    label = f"{dtype} {shape} {axis} keep={keep} last={last}"
                    yield Case(op, label, {"x": x}, attributes=attributes)
    for dtype in NUMBERS:
        for exclusive in (0, 1):
            for backwards in (0, 1):
                attributes = {"exclusive": exclusive, "reverse": backwards}
                label = f"{dtype} exclusive={exclusive} reverse={backwards}"
                yield Case(
                    "CumSum",
                    label,
                    {"x": data(dtype, 4, 6)},
                    {"a": np.array(1)},
                    attributes=attributes,
                )
        yield Case("CumSum", f"{dtype} axis -2", {"x": data(dtype, 4, 6)}, {"a": np.array(-2)})


def reductions() -> Iterator[Case]:
    taken = {
        "ReduceSum": NUMBERS,
        "ReduceMax": (*NUMBERS, U8, I8),
        "ReduceMin": (*NUMBERS, U8, I8),
        "ReduceProd": NUMBERS,
        "ReduceL1": NUMBERS,
        "ReduceSumSquare": NUMBERS,
        "ReduceMean": (F32,),
        "ReduceL2": (F32,),
    }
    for op, dtypes in taken.items():
        for dtype in dtypes:
            for axes in ((1,), (0, 2), (-1,), None):
                for keep in (0, 1):
                    x = data(dtype, 3, 4, 5, low=-3, high=3)
                    constants, attributes = {}, {"keepdims": keep}
                    if op == "ReduceSum" and axes is not None:
                        constants = {"a": ints(*axes)}
                    elif axes is not None:
                        attributes["axes"] = axes  # type: ignore[assignment]  # attributes are of any type
                    ulp = 64 if dtype == F32 and op not in ("ReduceMax", "ReduceMin") else 0
                    label = f"{dtype} {axes} keep={keep}"
                    yield Case(
                        op,
                        label,
                        {"x": x},
                        constants,
                        ulp=ulp,
                        near=1e-5 * bool(ulp),
                        attributes=attributes,
                    )
    nothing = {"a": np.zeros(0, I64)}
    no_op = {"noop_with_empty_axes": 1}
    yield Case("ReduceSum", "no axes", {"x": data(F32, 3, 4)}, nothing, attributes=no_op)
    for axis in (-1, 0, 1):
        x = data(F32, 3, 4, 9) * 4
        yield Case("Softmax", str(axis), {"x": x}, ulp=16, near=1e-7, attributes={"axis": axis})
        yield Case("LogSoftmax", str(axis), {"x": x}, near=4e-6, attributes={"axis": axis})
    x = data(F32, 3, 9)
    x[0, 2], x[1, 3], x[2, 3] = -INF, INF, NAN
    yield Case("Softmax", "infinities", {"x": x}, near=1e-7)
    matrices: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = (
        ((3, 4), (4, 5)),
        ((2, 3, 4), (4, 5)),
        ((2, 3, 4), (2, 4, 5)),
        ((4,), (4, 5)),
        ((3, 4), (4,)),
        ((4,), (4,)),
        ((1, 2, 3, 4), (3, 1, 4, 5)),
    )
    for a, b in matrices:
        feeds = {"x": data(F32, *a), "y": data(F32, *b, seed=1)}
        yield Case("MatMul", f"{a} {b}", feeds, near=1e-5)
    for trans_a in (0, 1):
        for trans_b in (0, 1):
            feeds = {"x": data(F32, *((4, 3) if trans_a else (3, 4)))}
            constants = {"y": data(F32, *((5, 4) if trans_b else (4, 5))), "c": data(F32, 5)}
            attributes = {"transA": trans_a, "transB": trans_b, **SCALES}
            yield Case(
                "Gemm", f"{trans_a} {trans_b}", feeds, constants, near=1e-5, attributes=attributes
            )


def casts() -> Iterator[Case]:
    types = (*ALL, np.dtype("int16"))
    for source in types:
        for target in types:
            x = data(source, 60, low=-120, high=120)
            if source == F32:
                x = np.asarray(x * 20, F32)
                x[:2] = [0.0, -0.0]
                if target in (U8, I8):
                    x[5:8] = [300, -1.5, 255.7]
                if target == BOOL:
                    x[3] = NAN
            if source == I64:
                x[:6] = [2**40 + 3, -(2**40) - 5, 2**24 + 1, 2**31, 2**53 + 1, 0]
            to = {"to": helper.np_dtype_to_tensor_dtype(target)}
            yield Case("Cast", f"{source} to {target}", {"x": x}, attributes=to)


def quantisations() -> Iterator[Case]:
    scale = np.array(0.37, F32)
    for dtype in (U8, I8):
        x = np.concatenate([data(F32, 500) * 10, (np.arange(-300, 300) * 0.5).astype(F32)])
        codes = np.arange(0, 127).astype(dtype)
        for zero in (0, 10, -5 if dtype == I8 else 200):
            point = np.array(zero, dtype)
            for step in (scale, np.array(1, F32)):
                label = f"{dtype} {zero} {step}"
                yield Case("QuantizeLinear", label, {"x": x}, {"s": step, "z": point})
            yield Case(
                "DequantizeLinear", f"{dtype} {zero}", {"x": codes}, {"s": scale, "z": point}
            )
        channels = {"s": np.array([0.1, 0.2, 0.3, 0.4], F32), "z": np.array([1, 2, 3, 4], dtype)}
        axis = {"axis": 1}
        deep = {"x": data(F32, 3, 4, 5) * 10}
        yield Case("QuantizeLinear", f"{dtype} per channel", deep, channels, attributes=axis)
        deep = {"x": data(dtype, 3, 4, 5)}
        yield Case("DequantizeLinear", f"{dtype} per channel", deep, channels, attributes=axis)
        yield Case("DequantizeLinear", f"{dtype} without zero", {"x": codes}, {"s": scale})
    yield Case("QuantizeLinear", "without zero", {"x": data(F32, 30) * 30}, {"s": scale})
    whole = {"x": np.array([2**30 + 7, -5, 123456789], I32)}
    yield Case("DequantizeLinear", "int32", whole, {"s": scale})


GROUPS = (
    arithmetic,
    extremes,
    functions,
    comparisons,
    movers,
    slices,
    gathers,
    scatters,
    ranks,
    reductions,
    casts,
    quantisations,
)
# onnxruntime itself has no kernel for these, so nothing can judge them.
NO_JUDGE = {("Trilu", "int32"), ("Trilu", "uint8"), ("Trilu", "int8")}


def all_cases() -> Iterator[Case]:
    for group in GROUPS:
        for case in group():
            if (case.op, case.label.split()[0]) not in NO_JUDGE:
                yield case


def agree(case: Case, found: Array, expected: Array) -> bool:
    if (found.dtype, found.shape) != (expected.dtype, expected.shape):
        return False
    if found.dtype != F32:
        return np.array_equal(found, expected)
    finite = np.isfinite(expected) & np.isfinite(found)
    if not np.array_equal(found[~finite], expected[~finite], equal_nan=True):
        return False
    a, b = np.asarray(found[finite], F32), np.asarray(expected[finite], F32)
    return bool(((np.abs(a - b) <= case.near) | (ulps(a, b) <= case.ulp)).all())


@pytest.mark.parametrize("case", all_cases(), ids=lambda case: f"{case.op}: {case.label}")
def test_operator_equals_onnxruntime(case: Case) -> None:
    results = both(case.node, case.feeds, case.constants)
    for found, expected in results:
        assert agree(case, found, expected), f"{found.reshape(-1)[:9]} {expected.reshape(-1)[:9]}"


def test_every_operator_has_a_case() -> None:
    from bridge.targets.tflite.operators import OPERATORS

    assert {case.op for case in all_cases()} | {"Constant"} == set(OPERATORS)
