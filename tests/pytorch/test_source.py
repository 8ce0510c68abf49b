"""What a model returns becomes outputs with names."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from bridge.errors import UsageError
from bridge.pytorch.source import Wrapped
from tests.pytorch.models import Pair, Returns, tiny

Shape = Callable[[Tensor], object]


@pytest.mark.parametrize(
    ("shape", "names"),
    [
        (lambda x: x, ["output"]),
        (lambda x: (x, [x, x]), ["output_0", "output_1", "output_2"]),
        (lambda x: [{"labels": x, "boxes": x}], ["boxes", "labels"]),
        (lambda x: [{"boxes": x}, {"boxes": x}], ["boxes_0", "boxes_1"]),
        (lambda x: {"masks": x, "scores": x, "boxes": x}, ["boxes", "scores", "masks"]),
        (lambda x: {"maps": [x, x], "none": None}, ["maps_0", "maps_1"]),
        (lambda x: Pair(x, x), ["first", "second"]),
    ],
)
def test_outputs_are_named_as_the_model_names_them(shape: Shape, names: list[str]) -> None:
    model = Wrapped(Returns(shape))
    assert list(model.named(torch.zeros(2))) == names
    assert len(model(torch.zeros(2))) == len(names)


def test_a_model_without_tensors_is_refused() -> None:
    with pytest.raises(UsageError, match="returns str without a tensor"):
        Wrapped(Returns(lambda x: "none")).named(torch.zeros(2))


@pytest.mark.parametrize("kind", ["ssd", "retinanet", "fcos", "fasterrcnn"])
def test_a_detector_of_torchvision_takes_a_tensor(kind: str) -> None:
    outputs = Wrapped(tiny(kind)).eval().named(torch.rand(1, 3, 64, 64))
    assert list(outputs) == ["boxes", "scores", "labels"]
