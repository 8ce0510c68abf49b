"""One case per operator and per way in which an importer is known to get it wrong."""

from typing import Any

import numpy as np

from tests.targets.tvm.building import Array, Single

RNG = np.random.default_rng(5)
ULP = 4e-7
"""Operators whose last bits IEEE 754 leaves open, as in `bridge.verify`."""
SUM = 3e-6
"""Sums of many products, in any order."""


def floats(*shape: int, scale: float = 4.0) -> Array:
    return (RNG.standard_normal(shape) * scale).astype(np.float32)


def whole(*shape: int, low: int = -50, high: int = 50) -> Array:
    return RNG.integers(low, high, shape)


def i64(*numbers: int) -> Array:
    return np.array(numbers, np.int64)


def f32(*numbers: float) -> Array:
    return np.array(numbers, np.float32)


def one(
    op_type: str,
    *arrays: Array | np.generic | None,
    held: tuple[int, ...] = (),
    label: str = "",
    **given: Any,
) -> Single:
    """A case; `outputs` and `close` are the harness's, the rest are attributes."""
    outputs, close = given.pop("outputs", 1), given.pop("close", 0.0)
    marks = [f"{key}={value}" for key, value in given.items()]
    name = " ".join([op_type, *([label] if label else []), *marks])
    return Single(name, op_type, arrays, frozenset(held), given, outputs, close)


def elementwise() -> list[Single]:
    x, y, positive = floats(3, 40), floats(3, 40), np.abs(floats(3, 40)) + np.float32(0.1)
    tricky = f32(np.nan, np.inf, -np.inf, 0.0, -0.0, 1.5, 2.5, -0.5, -1.5, 1e-40, 3e38, -3e38)
    z, small = whole(4, 16), RNG.random((3, 40)).astype(np.float32) * 1.9 - np.float32(0.95)
    mask, other = z > 0, z % 2 == 0
    cases = [one(op, x) for op in ("Abs", "Neg", "Relu", "Floor", "Ceil", "Round", "Identity")]
    cases += [one(op, positive) for op in ("Sqrt", "Reciprocal")]
    cases += [one(op, tricky, label="special") for op in ("Abs", "Neg", "IsNaN", "IsInf", "Floor")]
    cases += [
        one(op, x, close=ULP)
        for op in ("Exp", "Sigmoid", "Tanh", "Softplus", "Softsign", "Sin", "Cos", "Atan", "Erf")
    ]
    cases += [one(op, small, close=2 * ULP) for op in ("Asin", "Acos", "Atanh", "Tan", "Asinh")]
    cases += [one("Log", positive, close=ULP), one("Acosh", positive + 1, close=2 * ULP)]
    cases += [one(op, small, close=2 * ULP) for op in ("Sinh", "Cosh")]
    cases += [one(op, x, floats(40)) for op in ("Add", "Sub", "Mul", "Div")]
    cases += [one(op, z, whole(4, 16, low=1), label="int64") for op in ("Add", "Sub", "Mul", "Div")]
    cases += [one(op, z, label="int64") for op in ("Abs", "Neg")]
    cases += [one("Div", x, np.float32(d), held=(1,), label=f"by {d}") for d in (3, 640, 0.1)]
    compare = ("Greater", "Less", "GreaterOrEqual", "LessOrEqual", "Equal")
    rounded = np.round(x)
    for op in compare:
        cases.append(one(op, rounded, np.round(y)))
        cases.append(one(op, tricky, tricky[::-1].copy(), label="special"))
        cases.append(one(op, z, whole(4, 16), label="int64"))
    cases += [one(op, mask, other) for op in ("And", "Or", "Xor")] + [one("Not", mask)]
    cases += [one("Sign", x), one("Sign", z, label="int64")]
    cases += [one("Where", mask, z, whole(4, 16)), one("Where", mask, z, i64(0), held=(2,))]
    hidden = f32(np.nan, np.inf, 1.0, 2.0)
    cases.append(one("Where", np.array([0, 0, 1, 1], bool), hidden, f32(0), label="hides NaN"))
    cases += [one("Max", x, y, floats(40)), one("Min", x, y, floats(40)), one("Max", x)]
    cases += [one("Max", z, whole(4, 16), label="int64"), one("Min", z, i64(3), label="int64")]
    cases += [one("Sum", x, y, y, close=ULP), one("Mean", x, y, y, close=ULP)]
    low, high = np.float32(-1), np.float32(1.5)
    cases += [
        one("Clip", x, low, high, held=(1, 2)),
        one("Clip", x, None, high, held=(2,), label="upper only"),
        one("Clip", x, low, held=(1,), label="lower only"),
        one("Clip", x, label="no bound"),
        one("Clip", x, low, high, label="bounds computed"),
        one("Clip", z, None, np.int64(9), held=(2,), label="int64 upper only"),
    ]
    for divisor in (7, -7):
        cases.append(one("Mod", z, np.int64(divisor), held=(1,), label=f"by {divisor}"))
        cases.append(one("Mod", z, np.int64(divisor), held=(1,), label=f"by {divisor}", fmod=1))
        cases.append(one("Div", z, np.int64(divisor), held=(1,), label=f"by {divisor}"))
    cases.append(one("Mod", z, np.where(z % 3 == 0, -4, 5), label="computed"))
    cases.append(one("Mod", x, positive, fmod=1, label="float", close=ULP))
    cases += [one("Pow", x, np.float32(p), held=(1,), label=f"{p}") for p in (2, 3)]
    cases.append(one("Pow", positive, np.float32(0.7), held=(1,), label="0.7", close=ULP))
    cases.append(one("Pow", z, np.int64(2), held=(1,), label="int64 2"))
    casts = {1: "float", 6: "int32", 7: "int64", 9: "bool", 2: "uint8", 11: "double"}
    for kind, label in casts.items():
        cases.append(one("Cast", np.abs(x), to=kind, label=f"float to {label}"))
        cases.append(one("Cast", np.abs(z), to=kind, label=f"int64 to {label}"))
        cases.append(one("Cast", mask, to=kind, label=f"bool to {label}"))
    cases.append(one("Cast", x, to=7, label="negative float to int64"))
    cases += [
        one("HardSigmoid", x, close=ULP),
        one("HardSigmoid", x, alpha=1 / 6, beta=0.5, close=ULP),
        one("HardSwish", x, close=ULP),
        one("LeakyRelu", x, alpha=0.3),
        one("PRelu", x, RNG.random(40).astype(np.float32), held=(1,)),
        one("Elu", x, close=ULP),
        one("Elu", x, alpha=0.4, close=ULP),
        one("Selu", x, close=ULP),
        one("Celu", x, alpha=0.7, close=2 * ULP),
        one("ThresholdedRelu", x, alpha=1.3),
        one(
            "BitShift", whole(8, low=0).astype(np.uint8), f32(1).astype(np.uint8), direction="LEFT"
        ),
    ]
    return cases


def moving() -> list[Single]:
    x, z = floats(2, 6, 9, 8), whole(4, 6)
    cases = [
        one("Reshape", x, i64(12, -1), held=(1,)),
        one("Flatten", x, axis=2),
        one("Squeeze", floats(1, 3, 1), i64(0, 2), held=(1,)),
        one("Unsqueeze", z, i64(0, -1), held=(1,)),
        one("Transpose", x),
        one("Transpose", x, perm=[0, 2, 3, 1]),
        one("Concat", x, floats(2, 5, 9, 8), axis=1),
        one("Concat", x, axis=-1),
        one("Concat", z, whole(2, 6), axis=0, label="int64"),
        one("Split", x, i64(1, 3, 2), held=(1,), axis=1, outputs=3),
        one("Split", z, axis=1, outputs=2, label="even"),
        one("Expand", floats(1, 6), i64(4, 6), held=(1,)),
        one("Tile", z, i64(2, 3), held=(1,)),
        one("DepthToSpace", floats(1, 8, 3, 4), blocksize=2),
        one("DepthToSpace", floats(1, 8, 3, 4), blocksize=2, mode="CRD"),
        one("SpaceToDepth", floats(1, 2, 6, 4), blocksize=2),
    ]
    slices = {
        "step back": (i64(-1), i64(-(2**63) + 1), i64(2), i64(-1)),
        "from the end": (i64(-3), i64(2**63 - 1), i64(-1), i64(1)),
        "step 3": (i64(1), i64(8), i64(3), i64(3)),
        "two axes, one back": (i64(5, 1), i64(0, 7), i64(1, 2), i64(-2, 2)),
        "back and cut": (i64(-2, 2), i64(-7, 6), i64(2, 3), i64(-2, 1)),
    }
    cases += [
        one("Slice", x, *given, held=(1, 2, 3, 4), label=label) for label, given in slices.items()
    ]
    cases.append(one("Slice", z, i64(1, 2), i64(3, 5), held=(1, 2), label="no axes"))
    pads = i64(0, 0, 1, 2, 0, 0, 3, 1)
    cases += [
        one("Pad", x, pads, held=(1,)),
        one("Pad", x, pads, np.float32(7), held=(1, 2), label="value"),
        one("Pad", x, pads, held=(1,), mode="reflect"),
        one("Pad", x, pads, held=(1,), mode="edge"),
        one("Pad", x, i64(0, 0, -1, 0, 0, 0, -2, 3), held=(1,), label="negative"),
        one("Pad", z, i64(0, 0, 2, 0), np.int64(5), held=(1, 2), label="int64"),
        one("Trilu", floats(5, 6), upper=1),
        one("Trilu", floats(5, 6), np.int64(-1), held=(1,), upper=0),
    ]
    return cases


def choosing() -> list[Single]:
    x, z = floats(30, 4), whole(30, 4)
    cube, any_index = floats(3, 5, 6), RNG.integers(-30, 30, (9,))
    cases = [
        one("Gather", x, any_index, axis=0, label="negative"),
        one("Gather", x, any_index.astype(np.int32), axis=0, label="int32"),
        one("Gather", x, np.int64(-2), held=(1,), axis=1, label="scalar"),
        one("Gather", z, np.abs(any_index).reshape(3, 3), axis=0, label="int64 data"),
        one("GatherElements", x, RNG.integers(-30, 30, (7, 4)), axis=0),
        one("GatherND", cube, RNG.integers(0, 3, (9, 3))),
        one("GatherND", cube, RNG.integers(-3, 3, (9, 2)), label="negative"),
        one("GatherND", cube, RNG.integers(-5, 5, (3, 4, 1)), batch_dims=1, label="batch"),
        one("ScatterND", x, np.array([[1], [-1], [5]]), floats(3, 4)),
        one("ScatterND", x, np.array([[1, 2], [-1, 3]]), floats(2), label="deep"),
        one("ScatterND", x, np.array([[1], [1], [5]]), floats(3, 4), reduction="add", close=ULP),
        one("ScatterElements", x, RNG.permutation(30)[:12].reshape(3, 4) - 30, floats(3, 4)),
        one("ScatterElements", x, RNG.permutation(4)[None], floats(1, 4), axis=1),
        one("CumSum", whole(64), np.int64(0), held=(1,)),
        one("CumSum", whole(4, 9), np.int64(1), held=(1,), exclusive=1),
        one("CumSum", whole(4, 9), np.int64(-1), held=(1,), exclusive=1, reverse=1),
        one("CumSum", floats(4, 9), np.int64(1), held=(1,), label="float", close=ULP),
        one("OneHot", RNG.integers(-5, 5, (6,)), np.int64(5), f32(0, 1), held=(1, 2)),
        one("OneHot", RNG.integers(0, 5, (6,)), np.int64(5), f32(2, 3), held=(1, 2), axis=0),
    ]
    ties = (np.round(RNG.random(2000) * 5) / 5).astype(np.float32)
    holes = np.where(np.arange(2000) % 3 == 0, np.float32(-np.inf), ties)
    zeros = np.where(np.arange(400) % 2 == 0, np.float32(-0.0), np.float32(0.0))
    cases += [
        one("TopK", ties, i64(300), held=(1,), outputs=2, label="ties"),
        one("TopK", ties, i64(2000), held=(1,), outputs=2, label="all"),
        one("TopK", ties, i64(1), held=(1,), outputs=2, label="one"),
        one("TopK", holes, i64(1800), held=(1,), outputs=2, label="-inf"),
        one("TopK", zeros, i64(100), held=(1,), outputs=2, label="both zeros"),
        one("TopK", ties.reshape(4, 500), i64(50), held=(1,), outputs=2, label="last axis"),
        one("TopK", ties.reshape(5, 100, 4), i64(7), held=(1,), outputs=2, axis=1),
        one("TopK", ties, i64(300), held=(1,), outputs=2, largest=0),
        one("TopK", whole(300), i64(40), held=(1,), outputs=2, label="int64"),
    ]
    grid = ties.reshape(50, 40)
    for op in ("ArgMax", "ArgMin"):
        cases.append(one(op, grid, axis=1, keepdims=0))
        cases.append(one(op, grid, axis=0))
        cases.append(one(op, grid, axis=-1, select_last_index=1))
    return cases


def reducing() -> list[Single]:
    x, z = floats(2, 5, 6, 7), whole(4, 6)
    cases = []
    for op in ("ReduceMax", "ReduceMin"):
        cases += [
            one(op, x, axes=[1, 2]),
            one(op, x, axes=[-1], keepdims=0),
            one(op, x),
            one(op, z, axes=[0], keepdims=0, label="int64"),
        ]
    cases += [
        one("ReduceSum", x, i64(1, 2), held=(1,), close=SUM),
        one("ReduceSum", x, i64(), held=(1,), noop_with_empty_axes=1),
        one("ReduceSum", z, i64(0), held=(1,), keepdims=0, label="int64"),
        one("ReduceSum", z, keepdims=0, label="int64 all"),
        one("ReduceProd", z, axes=[1], keepdims=0, label="int64"),
        one("ReduceMean", x, axes=[2, 3], close=SUM),
        one("ReduceMean", x, close=SUM),
        one("ReduceL1", x, axes=[-1], close=SUM),
        one("ReduceL2", x, axes=[-1], close=SUM),
        one("ReduceSumSquare", x, axes=[1], close=SUM),
        one("ReduceLogSum", np.abs(x) + 1, axes=[1], close=SUM),
        one("ReduceLogSumExp", x, axes=[1], close=SUM, keepdims=0),
    ]
    return cases


def network() -> list[Single]:
    x, wide = floats(1, 6, 9, 9), floats(2, 6, 11, 13)
    w, deep = floats(4, 6, 3, 3), floats(6, 1, 3, 3)
    given: dict[str, Any] = {"held": (1, 2), "close": SUM}
    window: dict[str, Any] = {"kernel_shape": [2, 2], "strides": [2, 2]}
    wide_window: dict[str, Any] = {"kernel_shape": [3, 3], "strides": [2, 2]}
    padded: dict[str, Any] = {**wide_window, "pads": [1, 1, 1, 1]}
    cases = [
        one("Conv", x, w, strides=[2, 2], auto_pad="SAME_UPPER", **given),
        one("Conv", x, w, strides=[2, 2], auto_pad="SAME_LOWER", **given),
        one("Conv", wide, w, floats(4), pads=[1, 1, 2, 1], **given),
        one("Conv", wide, w, auto_pad="VALID", **given),
        one("Conv", wide, deep, floats(6), group=6, dilations=[2, 2], **given),
        one("Conv", wide, floats(4, 3, 3, 3), group=2, **given),
        one("Conv", floats(1, 6, 20), floats(4, 6, 3), floats(4), pads=[1, 1], label="1d", **given),
        one(
            "ConvTranspose",
            x,
            floats(6, 4, 3, 3),
            floats(4),
            strides=[2, 2],
            pads=[1, 1, 1, 1],
            output_padding=[1, 1],
            **given,
        ),
        one("ConvTranspose", x, floats(6, 4, 2, 2), strides=[2, 2], **given),
        one("ConvTranspose", x, floats(6, 4, 3, 3), strides=[2, 2], auto_pad="SAME_UPPER", **given),
        one("MaxPool", x, ceil_mode=1, **window),
        one("MaxPool", x, **padded),
        one("MaxPool", x, auto_pad="SAME_UPPER", **window),
        one("MaxPool", x, auto_pad="SAME_LOWER", **window),
        one("MaxPool", -np.abs(x), label="below zero", auto_pad="SAME_UPPER", **window),
        one("MaxPool", x, kernel_shape=[3, 3], dilations=[2, 2]),
        one("AveragePool", x, close=SUM, **padded),
        one("AveragePool", x, close=SUM, count_include_pad=1, **padded),
        one("AveragePool", x, close=SUM, ceil_mode=1, **window),
        one("AveragePool", x, close=SUM, auto_pad="SAME_UPPER", **window),
        one("GlobalAveragePool", x, close=SUM),
        one("GlobalMaxPool", x),
        one("MatMul", floats(4, 6), floats(6, 5), close=SUM),
        one("MatMul", floats(2, 4, 6), floats(6, 5), held=(1,), close=SUM, label="3d by 2d"),
        one("MatMul", floats(2, 3, 4, 6), floats(3, 6, 5), close=SUM, label="4d by 3d"),
        one("MatMul", floats(6), floats(6, 5), close=SUM, label="1d by 2d"),
        one("MatMul", floats(4, 6), floats(6), close=SUM, label="2d by 1d"),
        one("Gemm", floats(4, 6), floats(5, 6), floats(5), transB=1, alpha=0.5, beta=2.0, **given),
        one("Gemm", floats(6, 4), floats(6, 5), transA=1, **given),
        one(
            "BatchNormalization",
            x,
            *(floats(6), floats(6), floats(6), np.abs(floats(6)) + np.float32(0.1)),
            held=(1, 2, 3, 4),
            close=SUM,
        ),
        one("InstanceNormalization", x, floats(6), floats(6), held=(1, 2), close=4 * SUM),
        one("LayerNormalization", x, floats(9), floats(9), held=(1, 2), close=4 * SUM),
        one("LRN", x, size=3, close=SUM),
        one("LpNormalization", x, axis=1, close=SUM),
        one("Softmax", x, axis=1, close=SUM),
        one("Softmax", floats(5, 40), close=SUM),
        one("LogSoftmax", floats(5, 40), close=SUM),
        one("Hardmax", np.round(floats(5, 40)), axis=1),
        one("Einsum", floats(4, 6), floats(6, 5), equation="ij,jk->ik", close=SUM),
        one("Einsum", floats(2, 4, 6), floats(2, 5, 6), equation="bij, bkj -> bik", close=SUM),
        one("GridSample", x, (floats(1, 4, 5, 2, scale=0.6)), close=4 * SUM),
        one("GridSample", x, (floats(1, 4, 5, 2, scale=0.6)), close=4 * SUM, align_corners=1),
    ]
    levels, scale, zero = floats(3, 8), np.float32(0.05), np.uint8(128)
    cases += [
        one("QuantizeLinear", levels, scale, zero, held=(1, 2)),
        one("QuantizeLinear", f32(0.5, 1.5, 2.5, -0.5, 300, -300), f32(1).reshape(()), held=(1,)),
        one(
            "QuantizeLinear", levels, f32(0.1, 0.2, 0.3), np.zeros(3, np.int8), held=(1, 2), axis=0
        ),
        one("DequantizeLinear", whole(3, 8, low=0, high=255).astype(np.uint8), scale, zero),
        one(
            "DequantizeLinear",
            whole(3, 8).astype(np.int8),
            f32(0.1, 0.2, 0.3),
            np.array([1, 2, 3], np.int8),
            held=(1, 2),
            axis=0,
        ),
    ]
    return cases


def resizing() -> list[Single]:
    x = floats(1, 3, 9, 10)
    cases = []
    scales = {
        "double": f32(1, 1, 2, 2),
        "does not divide": f32(1, 1, 0.5, 0.7),
        "1.5": f32(1, 1, 1.5, 1.3),
    }
    modes = ("half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners")
    for label, scale in scales.items():
        for mode in modes:
            given: dict[str, Any] = {"coordinate_transformation_mode": mode, "label": label}
            cases.append(one("Resize", x, None, scale, held=(2,), mode="nearest", **given))
            cases.append(
                one("Resize", x, None, scale, held=(2,), mode="linear", close=ULP, **given)
            )
            cases.append(one("Resize", x, None, scale, held=(2,), mode="cubic", close=SUM, **given))
    for nearest in ("floor", "ceil", "round_prefer_ceil", "round_prefer_floor"):
        for mode in ("half_pixel", "asymmetric"):
            cases.append(
                one(
                    "Resize",
                    x,
                    None,
                    scales["does not divide"],
                    held=(2,),
                    mode="nearest",
                    nearest_mode=nearest,
                    coordinate_transformation_mode=mode,
                )
            )
    for mode in ("nearest", "linear"):
        cases.append(
            one("Resize", x, None, None, i64(1, 3, 13, 20), held=(3,), mode=mode, close=ULP)
        )
    cases.append(
        one(
            "Resize",
            x,
            f32(0, 0, 0.1, 0.2, 1, 1, 1.3, 0.8),
            None,
            i64(1, 3, 6, 7),
            held=(1, 3),
            mode="linear",
            coordinate_transformation_mode="tf_crop_and_resize",
            extrapolation_value=3.0,
            close=2 * ULP,
        )
    )
    return cases


def pooling_regions() -> list[Single]:
    x = floats(2, 5, 20, 24)
    corner = RNG.random((12, 2)).astype(np.float32) * 60
    rois = np.concatenate([corner, corner + RNG.random((12, 2)).astype(np.float32) * 60 + 2], 1)
    outside = rois - np.float32(40)
    batch = RNG.integers(0, 2, 12)
    cases = []
    for label, regions in (("inside", rois), ("outside", outside), ("reversed", rois[:, ::-1])):
        for sampling in (0, 2):
            for pixel in ("half_pixel", "output_half_pixel"):
                for mode in ("avg", "max"):
                    cases.append(
                        one(
                            "RoiAlign",
                            x,
                            regions.copy(),
                            batch,
                            label=label,
                            output_height=3,
                            output_width=4,
                            sampling_ratio=sampling,
                            spatial_scale=0.25,
                            mode=mode,
                            coordinate_transformation_mode=pixel,
                            close=ULP,
                        )
                    )
    return cases
