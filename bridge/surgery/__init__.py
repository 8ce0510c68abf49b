"""From any detector to a static one: the passes, in order, each with the reason for its place."""

import onnx

from bridge.options import Options
from bridge.surgery import runner
from bridge.surgery.batch_topk import batch_topk
from bridge.surgery.box_layout import fix_box_layout
from bridge.surgery.classes import recover_classes
from bridge.surgery.runner import Dump, Pass, SurgeryResult
from bridge.surgery.simplify import simplify

# First, in runner.run:
#   normalise          one spelling, so that nothing after it need know another;
#   remove-empty-if    and
#   static-max-output  in one walk, since the branch to take and the shapes behind it are known
#                      only together. From here on every suppression is one StaticNMS call.
PASSES: tuple[Pass, ...] = (
    # Before anything that looks at what a suppression reads: from here on that is corners.
    Pass("fix-box-layout", fix_box_layout),
    # Before the small steps below blur which branches are alike.
    Pass("batch-topk", batch_topk),
    # Behind the passes that leave idle nodes, in front of the one they would hide a pattern from.
    Pass("simplify", simplify),
    # Last: an option, and the one pass whose result may differ from the source.
    Pass("recover-classes", recover_classes),
)


def run(source: onnx.ModelProto, options: Options, *, dump: Dump | None = None) -> SurgeryResult:
    """The static model of a source model, which is left alone; see `runner.run`."""
    return runner.run(source, options, PASSES, dump=dump)
