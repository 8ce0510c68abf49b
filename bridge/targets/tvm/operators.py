"""Relay operators of our own: what relay lacks, or computes unlike onnxruntime.

They are registered with the running TVM, once per process; the worker process is ours, so nothing
else sees them. A registered operator goes through `relay.build` like any other: fused where it is
element by element, lowered through the tensor expressions given here.
"""

from collections.abc import Callable
from typing import Any

import tvm
from tvm import relay, te, tir, topi
from tvm.relay import op as relay_op
from tvm.relay.transform.infer_layout_utils import InferCorrectLayoutOutput

from bridge.targets.tvm.heap import RANK_OF_INFINITY, int32
from bridge.targets.tvm.kernel import Limits, fence, suppress
from bridge.targets.tvm.roi_align import RoiAlign
from bridge.targets.tvm.roi_align import roi_align as roi_align_kernel
from bridge.targets.tvm.topk import top_k

_BORDER = "bridge.border"
_FENCE = "bridge.fence"
_RINT = "bridge.rint"
_IS_NAN = "bridge.is_nan"
_ROI_ALIGN = "bridge.roi_align"
_STATIC_NMS = "bridge.static_nms"
_TOPK = "bridge.topk"


def register() -> None:
    """Make the operators known to this process; once is enough, twice does no harm."""
    if _STATIC_NMS in tvm.ir.Op.list_op_names():
        return
    _register_elementwise(_BORDER, lambda x: x, keep_layout=True)
    _register_elementwise(_FENCE, fence)
    _register_elementwise(_RINT, tir.nearbyint)
    _register_elementwise(_IS_NAN, _is_nan, dtype="bool")
    _register_opaque(_STATIC_NMS, ("boxes", "scores"), _static_nms_type, _static_nms_compute)
    inputs = ("features", "rois", "batch_indices")
    _register_opaque(_ROI_ALIGN, inputs, _roi_align_type, _roi_align_compute)
    _register_opaque(_TOPK, ("data",), _topk_type, _topk_compute)


def border(x: Any) -> Any:
    """The tensor itself. Where it is an output as well, there is this one copy of it in memory.

    Without it, relay may compute such a tensor twice, once per layout, and a tail that starts at it
    would not.
    """
    return relay.Call(relay_op.get(_BORDER), [x], _attributes())


def rounded(product: Any) -> Any:
    """A product that no addition behind it is fused with, or a constant that nothing folds."""
    return relay.Call(relay_op.get(_FENCE), [product], _attributes())


def rint(x: Any) -> Any:
    """To the nearest whole number, halves to even; `relay.round` takes halves away from zero."""
    return relay.Call(relay_op.get(_RINT), [x], _attributes())


def is_nan(x: Any) -> Any:
    """Which elements of a float32 tensor are NaN, as bool."""
    return relay.Call(relay_op.get(_IS_NAN), [x], _attributes())


def roi_align(features: Any, rois: Any, batch_indices: Any, given: RoiAlign) -> Any:
    """Features float32[B, C, H, W], rois float32[R, 4], batch_indices int64[R]."""
    attributes = _attributes(
        output_height=given.output_height,
        output_width=given.output_width,
        sampling_ratio=given.sampling_ratio,
        spatial_scale=given.spatial_scale.hex(),
        average=int(given.average),
        half_pixel=int(given.half_pixel),
    )
    return relay.Call(relay_op.get(_ROI_ALIGN), [features, rois, batch_indices], attributes)


def static_nms(boxes: Any, scores: Any, limits: Limits) -> Any:
    """A tuple of `selected` int64[rows, 3] and `count` int64[1]."""
    attributes = _attributes(
        max_output_boxes_per_class=str(limits.max_output_boxes_per_class),
        iou_threshold=limits.iou_threshold.hex(),
        score_threshold=limits.score_threshold.hex(),
        center_point_box=int(limits.center_point_box),
        rows=limits.rows,
    )
    return relay.Call(relay_op.get(_STATIC_NMS), [boxes, scores], attributes)


def topk(data: Any, k: int, *, largest: bool) -> Any:
    """Along the middle axis of `float32[outer, N, inner]`: a tuple of values and int64 indices."""
    return relay.Call(relay_op.get(_TOPK), [data], _attributes(k=k, largest=int(largest)))


def _attributes(**values: int | float | str) -> Any:
    """Floats are passed as hexadecimal strings, so that no bit and no infinity is lost."""
    return tvm.ir.make_node("DictAttrs", **values)


def _is_nan(x: Any) -> Any:
    """By its bits: TVM promises LLVM that there is no NaN, and `x != x` is folded to false."""
    magnitude = tir.reinterpret("int32", x) & int32(0x7FFFFFFF)
    return magnitude > int32(RANK_OF_INFINITY)


def _register_elementwise(
    name: str,
    compute: Callable[[Any], Any],
    *,
    dtype: str | None = None,
    keep_layout: bool = False,
) -> None:
    """One input, one output of its shape, fused with what stands around it.

    Args:
        name: of the operator.
        compute: an element of the output from that of the input.
        dtype: of the output; None: that of the input.
        keep_layout: whether it takes its operand in the layout of the model only.
    """

    def tensor(attributes: Any, inputs: Any, out_type: Any) -> list[Any]:
        del attributes, out_type
        (x,) = inputs
        # By the tag the schedule of a kernel that it is fused into knows that it can be inlined.
        made = te.compute(
            x.shape, lambda *i: compute(x(*i)), name=name.replace(".", "_"), tag=topi.tag.ELEMWISE
        )
        return [made]

    def same_layout(
        attributes: Any, new_layouts: Any, old_layouts: Any, old_types: Any
    ) -> InferCorrectLayoutOutput:
        del old_types
        layout = (new_layouts or old_layouts)[0]
        return InferCorrectLayoutOutput([layout], [layout], attributes)

    def type_of(types: Any, attributes: Any) -> Any:
        del attributes
        return relay.TensorType(types[0].shape, dtype or types[0].dtype)

    _declare(name, ("x",), type_of, relay_op.op.OpPattern.ELEMWISE)
    # So that no pass computes it of a constant: a fence around a constant is there to stay.
    relay_op.op.register_stateful(name, True, level=11)
    relay_op.op.register_compute(name, tensor)
    relay_op.op.register_injective_schedule(name)
    if not keep_layout:
        # Without it the layout of a convolution would be undone before every such operator.
        relay_op.op.register_infer_correct_layout(name, same_layout)


def _register_opaque(
    name: str,
    inputs: tuple[str, ...],
    infer: Callable[[Any, Any], Any],
    compute: Callable[[Any, Any, Any], list[Any]],
) -> None:
    """A kernel that nothing is fused into."""
    _declare(name, inputs, infer, relay_op.op.OpPattern.OPAQUE)
    relay_op.op.register_compute(name, compute)
    strategy = tvm.target.get_native_generic_func(f"{name}.strategy")

    def implementation(attributes: Any, ins: Any, out_type: Any, target: Any) -> Any:
        del attributes, ins, out_type, target
        made = relay_op.op.OpStrategy()
        made.add_implementation(compute, _extern_schedule, name=f"{name}.cpu")
        return made

    strategy.set_default(implementation)
    tvm.ir.register_op_attr(name, "FTVMStrategy", strategy)


def _declare(
    name: str, inputs: tuple[str, ...], infer: Callable[[Any, Any], Any], pattern: int
) -> None:
    relay_op.op.register(name, "bridge")
    operator = relay_op.get(name)
    operator.set_num_inputs(len(inputs))
    for given in inputs:
        operator.add_argument(given, "Tensor", given)
    operator.set_attrs_type_key("DictAttrs")
    operator.add_type_rel(f"{name}.type", infer)
    relay_op.op.register_pattern(name, pattern)
    relay_op.op.register_stateful(name, False)


def _extern_schedule(attributes: Any, outs: Any, target: Any) -> Any:
    del attributes
    with target:
        return te.create_schedule([out.op for out in outs])


def _limits(attributes: Any) -> Limits:
    return Limits(
        max_output_boxes_per_class=int(attributes["max_output_boxes_per_class"]),
        iou_threshold=float.fromhex(attributes["iou_threshold"]),
        score_threshold=float.fromhex(attributes["score_threshold"]),
        center_point_box=bool(attributes["center_point_box"]),
        rows=int(attributes["rows"]),
    )


def _static_nms_type(types: Any, attributes: Any) -> Any:
    del types
    rows = int(attributes["rows"])
    return relay.TupleType([relay.TensorType((rows, 3), "int64"), relay.TensorType((1,), "int64")])


def _static_nms_compute(attributes: Any, inputs: Any, out_type: Any) -> list[Any]:
    del out_type
    boxes, scores = inputs
    return suppress(boxes, scores, _limits(attributes))


def _topk_type(types: Any, attributes: Any) -> Any:
    outer, _, inner = types[0].shape
    shape = (outer, int(attributes["k"]), inner)
    return relay.TupleType([relay.TensorType(shape, "float32"), relay.TensorType(shape, "int64")])


def _topk_compute(attributes: Any, inputs: Any, out_type: Any) -> list[Any]:
    del out_type
    return top_k(inputs[0], int(attributes["k"]), largest=bool(attributes["largest"]))


def _roi_align_type(types: Any, attributes: Any) -> Any:
    features, rois, _ = types
    height, width = int(attributes["output_height"]), int(attributes["output_width"])
    return relay.TensorType((rois.shape[0], features.shape[1], height, width), "float32")


def _roi_align_compute(attributes: Any, inputs: Any, out_type: Any) -> list[Any]:
    del out_type
    given = RoiAlign(
        output_height=int(attributes["output_height"]),
        output_width=int(attributes["output_width"]),
        sampling_ratio=int(attributes["sampling_ratio"]),
        spatial_scale=float.fromhex(attributes["spatial_scale"]),
        average=bool(attributes["average"]),
        half_pixel=bool(attributes["half_pixel"]),
    )
    features, rois, batch_indices = inputs
    return [roi_align_kernel(features, rois, batch_indices, given)]
