"""Which rule an operator has. What is not listed has none, and touches no data-dependent rows."""

from collections.abc import Mapping
from types import MappingProxyType

from bridge.surgery.static import (
    indexing,
    movers,
    padding,
    reductions,
    rowwise,
    scatter,
    selection,
    shapes,
    slices,
    suppression,
)
from bridge.surgery.static.call import Rule
from bridge.surgery.static.elementwise import elementwise, per_axis_quantised
from bridge.surgery.static.operators import ELEMENTWISE

RULES: Mapping[str, Rule] = MappingProxyType(
    {
        **dict.fromkeys(ELEMENTWISE, elementwise),
        "DequantizeLinear": per_axis_quantised,
        "QuantizeLinear": per_axis_quantised,
        # movers
        "Cast": movers.cast,
        "CastLike": movers.cast_like,
        "Concat": movers.concat,
        "Dropout": movers.identity,
        "Identity": movers.identity,
        "Slice": slices.slice_,
        "Split": movers.split,
        "Squeeze": movers.squeeze,
        "Transpose": movers.transpose,
        "Unsqueeze": movers.unsqueeze,
        # shapes
        "ConstantOfShape": shapes.constant_of_shape,
        "Expand": shapes.expand,
        "Flatten": shapes.flatten,
        "Range": shapes.range_,
        "Reshape": shapes.reshape,
        "Shape": shapes.shape,
        "Size": shapes.size,
        "Tile": shapes.tile,
        # reading and writing at computed places
        "Compress": indexing.compress,
        "Gather": indexing.gather,
        "GatherElements": indexing.gather_elements,
        "GatherND": indexing.gather_nd,
        "Pad": padding.pad,
        "ScatterElements": scatter.scatter_elements,
        "ScatterND": scatter.scatter_nd,
        # selection
        "NonMaxSuppression": suppression.non_max_suppression,
        "NonZero": selection.nonzero,
        "TopK": selection.top_k,
        # across rows
        **dict.fromkeys(
            ("ReduceL1", "ReduceL2", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd",
             "ReduceSum", "ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp"),
            reductions.reduce,
        ),
        "ArgMax": reductions.arg,
        "ArgMin": reductions.arg,
        "CumSum": reductions.cumsum,
        **dict.fromkeys(
            ("Hardmax", "LogSoftmax", "LpNormalization", "Softmax"), reductions.along_axis
        ),
        "LayerNormalization": reductions.layer_norm,
        "EyeLike": reductions.by_place,
        "Trilu": reductions.by_place,
        # row by row
        **dict.fromkeys(
            ("AveragePool", "BatchNormalization", "Conv", "ConvTranspose", "DepthToSpace",
             "GlobalAveragePool", "GlobalMaxPool", "InstanceNormalization", "LRN", "MaxPool",
             "SpaceToDepth"),
            rowwise.rows_first,
        ),
        "Gemm": rowwise.gemm,
        "MatMul": rowwise.matmul,
        "OneHot": rowwise.one_hot,
        "Resize": rowwise.resize,
        "RoiAlign": rowwise.roi_align,
    }
)  # fmt: skip

ALWAYS = frozenset(
    {
        "ArgMax", "ArgMin", "Compress", "Dropout", "Identity", "NonMaxSuppression", "NonZero",
        "Shape", "Size", "TopK",
    }
)  # fmt: skip
"""Operators whose rule applies even where nothing before them depends on the data."""
