"""The suppression kernel decides as onnxruntime does wherever kernels are known not to.

Many calls are built into one library: what a test costs is building, not running.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from bridge import surgery
from bridge.options import Options
from bridge.static_nms import StaticNms
from bridge.targets.base import Target
from bridge.targets.tvm import TVM
from bridge.verify.suppression import SuppressionCase, cases
from tests.targets.tvm.building import Array, judge, lowered, merged, nms_model

LIMITS = [(0.5, 0.05), (0.45, 0.25), (0.6, 0.0), (0.3, -2.0), (0.0, 0.5), (1.0, 0.1), (1 / 3, 0.7)]
INFINITE = float("-inf")


@dataclass(frozen=True)
class Setting:
    """A suppression and the sizes it is built for; `rows` None is the exact bound."""

    batch: int
    classes: int
    boxes: int
    iou: float
    score: float
    limit: int
    center: bool = False
    rows: int | None = None

    def call(self, index: int) -> StaticNms:
        most = self.batch * self.classes * min(self.limit, self.boxes)
        return StaticNms(
            name=f"nms{index}",
            boxes="boxes",
            scores="scores",
            selected="selected",
            count="count",
            max_output_boxes_per_class=self.limit,
            iou_threshold=self.iou,
            score_threshold=self.score,
            center_point_box=self.center,
            rows=most if self.rows is None else self.rows,
        )

    def model(self, index: int) -> onnx.ModelProto:
        return nms_model(
            self.call(index),
            (self.batch, self.boxes, 4),
            (self.batch, self.classes, self.boxes),
        )

    def sets(self, seed: int) -> Iterator[SuppressionCase]:
        most = min(self.limit, self.boxes) or None
        yield from cases(
            *(self.batch, self.classes, self.boxes, self.iou, self.score, self.center, seed),
            max_output_boxes_per_class=most,
        )


EVERY_RULE = [
    *(Setting(2, 3, 60, iou, score, 10) for iou, score in LIMITS),
    *(Setting(2, 3, 60, iou, score, 10, center=True) for iou, score in LIMITS[:5]),
    Setting(1, 2, 70, 0.5, INFINITE, 2**63 - 1),
    Setting(1, 1, 130, 0.5, 0.1, 200),
    Setting(3, 1, 64, 0.5, 0.1, 5),
    Setting(1, 4, 60, 0.5, 0.1, 10, rows=7),
    Setting(1, 4, 60, 0.5, 0.1, 10, rows=500),
    Setting(2, 2, 60, 0.5, 0.1, 0, rows=3),
    Setting(1, 1, 1, 0.5, 0.1, 3, rows=1),
]


def test_it_decides_as_onnxruntime_does_on_every_generated_set() -> None:
    hold(EVERY_RULE, seeds=(1, 2), threads=(1,))


def test_threads_change_nothing() -> None:
    # More scores than the kernel runs on one thread.
    hold([Setting(2, 21, 900, 0.5, 0.3, 20)], seeds=(3,), threads=(1, 2, 4))


def hold(
    settings: Sequence[Setting],
    seeds: Sequence[int],
    threads: Sequence[int],
    target: Target = TVM,
) -> None:
    """Compare every set of every setting with onnxruntime, on every number of threads."""
    models = [setting.model(index) for index, setting in enumerate(settings)]
    judges = [judge(model) for model in models]
    compared, wrong = 0, []
    with lowered(merged(models), target=target) as made, ExitStack() as stack:
        sessions = [stack.enter_context(target.open(made.path, threads=n)) for n in threads]
        for chosen in _turns(settings, seeds):
            feeds = {
                f"m{index}_{name}": array
                for index, one in enumerate(chosen)
                for name, array in (("boxes", one.boxes), ("scores", one.scores))
            }
            found = [session.run(feeds) for session in sessions]
            for index, one in enumerate(chosen):
                expected = judges[index]({"boxes": one.boxes, "scores": one.scores})
                compared += 1
                wrong += [
                    f"{settings[index]} {one.name}: {name}"
                    for name, array in expected.items()
                    for run in found
                    if not np.array_equal(array, run[f"m{index}_{name}"])
                ]
    assert compared >= 29 * len(seeds) * len(settings)
    assert not wrong


def _turns(
    settings: Sequence[Setting], seeds: Sequence[int]
) -> Iterator[tuple[SuppressionCase, ...]]:
    """One set for every setting, until all have had all; who has fewer repeats the last."""
    for seed in seeds:
        sets = [list(setting.sets(seed)) for setting in settings]
        for turn in range(max(map(len, sets))):
            yield tuple(own[min(turn, len(own) - 1)] for own in sets)


def _node_tests() -> list[Path]:
    folder = Path(onnx.__file__).parent / "backend" / "test" / "data" / "node"
    return sorted(folder.glob("test_nonmaxsuppression_*"))


def test_onnx_has_nine_node_tests_of_the_operator() -> None:
    assert len(_node_tests()) >= 9


def test_it_passes_the_node_tests_of_onnx() -> None:
    statics: list[onnx.ModelProto] = []
    feeds: dict[str, Array] = {}
    expected: dict[str, tuple[str, str, Array]] = {}
    for index, folder in enumerate(_node_tests()):
        model = onnx.load(folder / "model.onnx")
        data = folder / "test_data_set_0"
        values = {
            value.name: numpy_helper.to_array(onnx.load_tensor(str(data / f"input_{position}.pb")))
            for position, value in enumerate(model.graph.input)
        }
        frozen = {name: values[name] for name in values if name not in ("boxes", "scores")}
        operated = surgery.run(model, Options(freeze=frozen)).static
        statics.append(operated.model)
        feeds |= {f"m{index}_{name}": values[name] for name in ("boxes", "scores")}
        (output,) = model.graph.output
        rows = numpy_helper.to_array(onnx.load_tensor(str(data / "output_0.pb")))
        expected[folder.name] = (f"m{index}_{output.name}", f"m{index}_{operated.counts[0]}", rows)
    with lowered(merged(statics)) as made, TVM.open(made.path) as session:
        found = session.run(feeds)
    for name, (rows_name, count_name, rows) in expected.items():
        assert found[count_name].tolist() == [len(rows)], name
        assert np.array_equal(found[rows_name][: len(rows)], rows), name
        assert not found[rows_name][len(rows) :].any(), name


def test_many_boxes_of_many_classes() -> None:
    """8400 boxes of 80 classes, as a YOLO gives them, few above the threshold."""
    setting = Setting(1, 80, 8400, 0.5, 0.25, 100, rows=300)
    rng = np.random.default_rng(11)
    centre = rng.random((1, 8400, 2)) * 600
    boxes = np.concatenate([centre, centre + rng.random((1, 8400, 2)) * 80 + 4], 2)
    scores = rng.random((1, 80, 8400)) ** 12
    one = SuppressionCase("yolo", boxes.astype(np.float32), scores.astype(np.float32))
    feeds = {"boxes": one.boxes, "scores": one.scores}
    expected = judge(setting.model(0))(feeds)
    with lowered(setting.model(0)) as made, TVM.open(made.path, threads=2) as session:
        found = session.run(feeds)
    assert expected["count"] == 300
    assert all(np.array_equal(expected[name], found[name]) for name in expected)
