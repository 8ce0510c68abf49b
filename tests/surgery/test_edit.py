"""Edits of a graphsurgeon graph: wiring, order, and time linear in the graph."""

from functools import partial

import numpy as np
import onnx_graphsurgeon as gs
import pytest

from bridge.surgery.edit import (
    Builder,
    drop_dead,
    input_of,
    nms_calls,
    replace_uses,
    rewire,
    sort,
    value_of,
)
from tests.counting import calls
from tests.surgery.static_text import static_model

BODY = (
    "k = Constant<value_ints = [2, 2]>() a = Neg(x) b = Abs(a) dead = Reshape(a, k) "
    "y = Add(a, b) z = Reshape(y, k)"
)


@pytest.fixture
def graph() -> gs.Graph:
    return gs.import_onnx(static_model("float[4] x", "float[4] y, float[2, 2] z", BODY))


def operators(graph: gs.Graph) -> list[str]:
    return [node.op for node in graph.nodes]


def test_names_are_never_taken_twice(graph: gs.Graph) -> None:
    builder = Builder.of(graph)
    assert [builder.name(wish) for wish in ("a", "a", "n_a", "new", "new")] == [
        "a_1", "a_2", "n_a_1", "new", "new_1",
    ]  # fmt: skip


def test_values_come_from_constants_only(graph: gs.Graph) -> None:
    reshape = graph.nodes[2]
    np.testing.assert_array_equal(value_of(reshape.inputs[1]), [2, 2])
    assert value_of(reshape.inputs[0]) is None
    assert input_of(reshape, 2) is None


def test_a_rank_zero_constant_stays_rank_zero(graph: gs.Graph) -> None:
    assert Builder.of(graph).constant("c", np.array(1)).shape == ()


def test_uses_are_replaced_and_a_graph_output_keeps_its_maker(graph: gs.Graph) -> None:
    tensors = graph.tensors()
    replace_uses(tensors["a"], tensors["x"])
    add = next(node for node in graph.nodes if node.op == "Add")
    assert add.inputs[0] is tensors["x"]
    assert not tensors["a"].outputs
    replace_uses(tensors["y"], tensors["b"])
    assert graph.outputs[0] is tensors["y"]
    assert tensors["y"].inputs[0] is add


def test_a_node_that_reads_one_tensor_twice_is_rewired_in_both(graph: gs.Graph) -> None:
    add = next(node for node in graph.nodes if node.op == "Add")
    a, b = add.inputs
    rewire(add, [a, a])
    assert [reader is add for reader in a.outputs].count(True) == 2
    assert not b.outputs
    rewire(add, [b, b])
    assert not any(reader is add for reader in a.outputs)


def test_dead_nodes_go_and_are_no_readers_any_more(graph: gs.Graph) -> None:
    drop_dead(graph)
    assert operators(graph) == ["Neg", "Abs", "Add", "Reshape"]
    assert len(graph.tensors()["k"].outputs) == 1


def test_sorting_moves_only_what_must_move(graph: gs.Graph) -> None:
    neg, absolute, dead, add, reshape = graph.nodes
    graph.nodes = [add, dead, reshape, absolute, neg]
    sort(graph)
    assert [id(node) for node in graph.nodes] == [
        id(node) for node in (neg, absolute, add, dead, reshape)
    ]


def test_calls_are_read_with_all_they_say() -> None:
    model = static_model(
        "float[1, 3, 4] b, float[1, 1, 3] s",
        "int64[2, 3] y, int64[1] n",
        "y, n = bridge.StaticNMS<max_output_boxes_per_class = 2, iou_threshold = 0.5, "
        "score_threshold = 0.25, center_point_box = 1, rows = 2>(b, s)",
    )
    ((node, call),) = nms_calls(gs.import_onnx(model))
    assert call.name == node.name == "n_y"
    assert (call.boxes, call.scores, call.selected, call.count) == ("b", "s", "y", "n")
    assert (call.iou_threshold, call.score_threshold) == (0.5, 0.25)
    assert call.center_point_box is True
    assert call.max_output_boxes_per_class == call.rows == 2


def chain(nodes: int) -> gs.Graph:
    """Every node reads the one before and one constant that all share."""
    shared = gs.Constant("c", np.ones(1, np.float32))
    x = gs.Variable("x", np.dtype(np.float32), [1])
    graph = gs.Graph(inputs=[x], opset=17)
    tensors = [x]
    for number in range(nodes):
        tensors.append(gs.Variable(f"t{number}", np.dtype(np.float32), [1]))
        node = gs.Node("Add", f"n{number}", inputs=[tensors[-2], shared], outputs=[tensors[-1]])
        graph.nodes.append(node)
    graph.outputs = [tensors[-1]]
    return graph


def test_ten_times_the_graph_takes_about_ten_times_the_work() -> None:
    def work(graph: gs.Graph) -> None:
        drop_dead(graph)
        sort(graph)
        replace_uses(graph.tensors()["c"], gs.Constant("d", np.ones(1, np.float32)))

    counted = []
    for size in (300, 3000):
        graph = chain(size)
        graph.nodes.reverse()
        counted.append(calls(partial(work, graph)))
        assert graph.nodes[0].name == "n0"
    assert counted[1] < 11 * counted[0]
