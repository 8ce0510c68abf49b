"""What the runner holds every pass to: deliberately bad passes must be caught and named."""

from collections.abc import Callable

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import pytest
from onnx import helper, parser

from bridge import surgery
from bridge.errors import PassError, UnsupportedModelError
from bridge.options import Options
from bridge.static_model import Finding
from bridge.surgery import runner
from bridge.surgery.edit import Builder, replace_uses
from bridge.surgery.runner import Outcome, Pass
from tests.surgery.judge import assert_same

HEAD = """
<ir_version: 8, opset_import: ["" : 17], doc_string: "a detector", model_version: 3>
head (float[1, 9, 4] boxes, float[1, 2, 9] scores) => (int64[k, 3] found)
<int64 limit = {3}, float iou = {0.5}, float score = {0.1}>
{
  [double] twice = Add(scores, scores)
  [nms] found = NonMaxSuppression(boxes, twice, limit, iou, score)
}
"""

DONE = Outcome((Finding("", "something", changed=True),))
NOTHING = Outcome((Finding("", "declined", changed=False),), ("it is so",))


def head() -> onnx.ModelProto:
    model = parser.parse_model(HEAD)
    helper.set_model_props(model, {"names": "cat, dog"})
    model.graph.node[0].doc_string = "why"
    return model


def negate_scores(graph: gs.Graph, options: Options) -> Outcome:
    """A pass that is fine, if odd: it negates twice."""
    del options
    builder = Builder.of(graph)
    twice = graph.tensors()["twice"]
    readers = list(twice.outputs)
    minus = builder.node("Neg", "minus", [twice], twice.shape)
    plus = builder.node("Neg", "plus", [minus], twice.shape)
    for reader in readers:
        reader.inputs = [plus if tensor is twice else tensor for tensor in reader.inputs]
    builder.done()
    return DONE


def nothing(graph: gs.Graph, options: Options) -> Outcome:
    del graph, options
    return NOTHING


def claims_too_much(graph: gs.Graph, options: Options) -> Outcome:
    del graph, options
    return DONE


def hides_its_change(graph: gs.Graph, options: Options) -> Outcome:
    negate_scores(graph, options)
    return NOTHING


def wrong_type(graph: gs.Graph, options: Options) -> Outcome:
    negate_scores(graph, options)
    graph.tensors()["minus"].dtype = np.dtype(np.int64)
    return DONE


def loses_a_shape(graph: gs.Graph, options: Options) -> Outcome:
    negate_scores(graph, options)
    graph.tensors()["minus"].shape = None
    return DONE


def leaves_a_dimension_free(graph: gs.Graph, options: Options) -> Outcome:
    negate_scores(graph, options)
    graph.tensors()["minus"].shape = [1, "c", 9]
    return DONE


def cuts_the_graph(graph: gs.Graph, options: Options) -> Outcome:
    del options
    loose = gs.Variable("loose", np.dtype(np.float32), [1, 2, 9])
    replace_uses(graph.tensors()["twice"], loose)
    return DONE


def swaps_outputs(graph: gs.Graph, options: Options) -> Outcome:
    del options
    graph.outputs = graph.outputs[::-1]
    return DONE


def crashes(graph: gs.Graph, options: Options) -> Outcome:
    raise KeyError("no\nsuch thing")


def refuses(graph: gs.Graph, options: Options) -> Outcome:
    raise UnsupportedModelError("not this one")


def run(*applies: Callable[[gs.Graph, Options], Outcome]) -> runner.SurgeryResult:
    passes = tuple(Pass(apply.__name__, apply) for apply in applies)
    return runner.run(head(), Options(), passes)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (claims_too_much, "says it changed something"),
        (hides_its_change, "says it changed nothing"),
        (wrong_type, "minus"),
        (loses_a_shape, "tensor minus has no static shape"),
        (leaves_a_dimension_free, "tensor minus has no static shape"),
        (cuts_the_graph, "loose"),
        (crashes, "could not run: KeyError: 'no such thing'|could not run: KeyError"),
    ],
)
def test_a_bad_pass_is_caught_and_named(
    bad: Callable[[gs.Graph, Options], Outcome], message: str
) -> None:
    with pytest.raises(PassError, match=message) as caught:
        run(negate_scores, bad, nothing)
    assert f"pass {bad.__name__} " in str(caught.value)
    assert caught.value.exit_status == 4


def test_outputs_keep_their_order() -> None:
    result = run(swaps_outputs)
    names = [value.name for value in result.static.model.graph.output]
    assert names == ["found", "num_detections"]


def test_a_refusal_passes_through() -> None:
    with pytest.raises(UnsupportedModelError, match="not this one"):
        run(refuses)


def test_a_good_pass_is_reported_and_exact() -> None:
    source = head()
    before = source.SerializeToString(deterministic=True)
    passes = (Pass("odd", negate_scores), Pass("idle", nothing))
    dumped: list[str] = []
    result = runner.run(source, Options(), passes, dump=lambda name, _: dumped.append(name))
    assert source.SerializeToString(deterministic=True) == before
    plain = runner.run(source, Options(), ())
    names = ["normalise", "remove-empty-if", "static-max-output", "odd", "idle"]
    assert [report.name for report in result.reports] == names
    assert [report.changed for report in result.reports] == [False, False, True, True, False]
    assert dumped == ["normalise", "static-max-output", "odd"]
    assert result.static.assumptions == (*plain.static.assumptions, "it is so")
    assert_same(plain.static.model, result.static.model)
    order = [node.op_type for node in result.static.model.graph.node]
    assert order.index("Add") < order.index("Neg") < order.index("StaticNMS")


def test_what_graphsurgeon_loses_is_kept() -> None:
    model = run(negate_scores).static.model
    assert model.doc_string == "a detector"
    assert model.model_version == 3
    assert [(p.key, p.value) for p in model.metadata_props] == [("names", "cat, dog")]
    assert {n.name: n.doc_string for n in model.graph.node}["double"] == "why"
    assert [f.name for f in model.functions] == ["StaticNMS"]
    assert {o.domain: o.version for o in model.opset_import} == {"": 17, "bridge": 1}


def test_an_idle_run_gives_the_very_same_model() -> None:
    static = runner.run(head(), Options(), ()).static.model
    edited, (report,), _ = runner.edit(static, Options(), (Pass("idle", nothing),))
    assert edited is static
    assert not report.changed


def test_guards_are_reported_under_the_name_users_know() -> None:
    model = parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[1, 9, 4] boxes, float[1, 2, 9] scores) => (int64[k, 3] found)
        <int64 limit = {3}, int64 zero = {0}>
        {
          [size] n = Size(boxes)
          [test] none = Equal(n, zero)
          [guard] found = If (none) <
            then_branch = t () => (int64[0, 3] a) {
              [nothing] a = Constant<value = int64[0, 3] {}>() },
            else_branch = e () => (int64[m, 3] b) { [nms] b = NonMaxSuppression(boxes, scores, limit) }
          >
        }
    """)  # noqa: E501 - one line of ONNX text
    reports = {report.name: report for report in surgery.run(model, Options()).reports}
    assert reports["remove-empty-if"].changed
    assert {finding.node for finding in reports["remove-empty-if"].findings} == {"guard"}
    assert reports["static-max-output"].changed


def test_the_same_model_gives_the_same_bytes() -> None:
    first, second = (
        surgery.run(head(), Options()).static.model.SerializeToString(deterministic=True)
        for _ in range(2)
    )
    assert first == second


MISFITS = [
    "float[1, 1, 9] boxes, float[1, 9, 4] scores",
    "float[1, 9, 4] boxes, float[1, 2, 8] scores",
    "float[1, 9, 5] boxes, float[1, 2, 9] scores",
    "float[2, 9, 4] boxes, float[1, 2, 9] scores",
    "float[9, 4] boxes, float[1, 2, 9] scores",
    "float[1, 9, 4] boxes, float[2, 9] scores",
    "double[1, 9, 4] boxes, double[1, 2, 9] scores",
]


@pytest.mark.parametrize("inputs", MISFITS)
def test_a_suppression_of_what_is_no_boxes_and_scores_is_refused(inputs: str) -> None:
    model = parser.parse_model(f"""
        <ir_version: 8, opset_import: ["" : 17]>
        g ({inputs}) => (int64[k, 3] y) <int64 limit = {{3}}>
        {{ [nms] y = NonMaxSuppression(boxes, scores, limit) }}
    """)
    with pytest.raises(UnsupportedModelError, match=r"NonMaxSuppression 'nms' reads boxes"):
        surgery.run(model, Options())


def test_a_model_that_contradicts_itself_is_not_our_fault() -> None:
    model = parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[2, 3] x, double[2, 3] y) => (float[2, 6] z) { [join] z = Concat<axis = 1>(x, y) }
    """)
    with pytest.raises(UnsupportedModelError, match=r"not valid ONNX.*join"):
        surgery.run(model, Options())
