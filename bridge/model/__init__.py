"""Source models: files in and out, their graphs, what their inputs take, and made-up inputs."""

from bridge.model.files import Source, digest, load, save, serialise, write_whole
from bridge.model.graphs import (
    graphs,
    inferred,
    operator,
    place,
    skeleton,
    subgraphs,
    with_weights,
)
from bridge.model.inputs import InputKind, seeded_inputs
from bridge.model.shapes import Array, as_declared, declared_shape, input_shapes_of, spelt

__all__ = [
    "Array", "InputKind", "Source", "as_declared", "declared_shape", "digest", "graphs",
    "inferred", "input_shapes_of", "load", "operator", "place", "save", "seeded_inputs",
    "serialise", "skeleton", "spelt", "subgraphs", "with_weights", "write_whole",
]  # fmt: skip
