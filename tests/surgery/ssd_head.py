"""An SSD head as ONNX text: per class a mask, the best K, and what is gathered with them."""

from collections.abc import Sequence

import onnx

from tests.surgery.static_text import static_model

N, K = 12, 5


def branch(c: int) -> str:
    """One class of an SSD head; every second minimum has its operands the other way round."""
    smaller = f"passed{c}, k" if c % 2 else f"k, passed{c}"
    return f"""
        c{c} = Constant<value_int = {c}>() label{c} = Constant<value_ints = [{c}]>()
        s{c} = Gather<axis = 1>(scores, c{c})
        mask{c} = Greater(s{c}, limit)
        bits{c} = Cast<to = 7>(mask{c})
        passed{c} = ReduceSum(bits{c}, zero)
        less{c} = Less({smaller}) count{c} = Where(less{c}, {smaller})
        masked{c} = Where(mask{c}, s{c}, low)
        top{c}, index{c} = TopK<axis = 0>(masked{c}, k)
        box{c} = Gather<axis = 0>(boxes, index{c})
        labels{c} = Expand(label{c}, k)
        valid{c} = Less(iota, count{c})
    """


def head(branches: Sequence[str], extra: str = "", outputs: str = "") -> onnx.ModelProto:
    """The best K of each class, side by side."""
    classes = range(1, len(branches) + 1)
    rows = len(branches) * K
    body = (
        f"zero = Constant<value_ints = [0]>() k = Constant<value_ints = [{K}]>() "
        "limit = Constant<value_float = 0.4>() low = Constant<value_float = -1.0>() "
        f"iota = Constant<value_ints = {list(range(K))}>() {''.join(branches)}"
    )
    for name, part in (("b", "box"), ("t", "top"), ("l", "labels"), ("v", "valid")):
        body += f"{name} = Concat<axis = 0>({', '.join(f'{part}{c}' for c in classes)}) "
    return static_model(
        f"float[{N}, 4] boxes, float[{N}, {len(branches) + 1}] scores",
        f"float[{rows}, 4] b, float[{rows}] t, int64[{rows}] l, bool[{rows}] v{outputs}",
        body + extra,
    )


def ssd(classes: int) -> onnx.ModelProto:
    return head([branch(c) for c in range(1, classes + 1)])


def with_output(model: onnx.ModelProto, name: str) -> onnx.ModelProto:
    """The model with one of its tensors returned too."""
    typed: onnx.ModelProto = onnx.shape_inference.infer_shapes(model, data_prop=True)
    value = next(value for value in typed.graph.value_info if value.name == name)
    typed.graph.output.append(value)
    typed.graph.value_info.remove(value)
    return typed
