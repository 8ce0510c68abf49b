"""Random weights that detect something, the same every time."""

import pytest
import torch

from bridge.pytorch import Exporter, Input, exporters
from bridge.pytorch.random_weights import make_detect
from bridge.pytorch.source import Wrapped
from tests.pytorch.models import tiny

SHAPE = (1, 3, 64, 64)
KINDS = ["ssd", "retinanet", "fcos", "fasterrcnn"]


def made(kind: str) -> Wrapped:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model: Wrapped = Wrapped(tiny(kind)).eval()
    make_detect(model, SHAPE)
    return model


@pytest.mark.parametrize("kind", KINDS)
def test_something_is_detected(kind: str) -> None:
    picture = torch.randn(SHAPE, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        outputs = made(kind).named(picture)
    assert len(outputs["scores"]) > 5
    assert outputs["boxes"].isfinite().all()
    assert len(set(outputs["labels"].tolist())) > 1


@pytest.mark.parametrize("kind", KINDS)
def test_the_weights_are_the_same_every_time(kind: str) -> None:
    """On any number of threads."""
    first = made(kind).state_dict()
    torch.set_num_threads(2)
    try:
        second = made(kind).state_dict()
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_another_kind_of_model_stays_as_it_is() -> None:
    model = Wrapped(torch.nn.Conv2d(3, 4, 3))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    make_detect(model, SHAPE)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_the_dynamo_exporter_takes_every_kind(kind: str) -> None:
    """Without its patches it refuses all four."""
    exported = exporters.to_onnx(
        made(kind), [Input("images", SHAPE)], opset=17, exporter=Exporter.DYNAMO
    )
    assert [value.name for value in exported.graph.output] == ["boxes", "scores", "labels"]
    assert not any(node.op_type == "If" for node in exported.graph.node)
