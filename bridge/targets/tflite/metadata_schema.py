"""The tables of TFLite Model Metadata that say how to use a detector, and their field numbers.

Source: `metadata_schema.fbs`, semantic version 1.5.0, in MediaPipe (`mediapipe/tasks/metadata`).
Field numbers never change; what a detector needs has been there since 1.0.0.
"""

from enum import IntEnum
from typing import Final

from bridge.targets.tflite.tables import TABLE, TEXT, Field, Schema, tables, union

IDENTIFIER: Final = b"M001"
ROOT: Final = "ModelMetadata"
NAME: Final = "TFLITE_METADATA"
"""Of the entry in the model's `metadata` whose buffer holds it."""

LEAST_PARSER: Final = "1.0.0"
"""The oldest parser that understands every field used here."""


class FileType(IntEnum):
    """`AssociatedFileType`."""

    UNKNOWN = 0
    TENSOR_AXIS_LABELS = 2
    TENSOR_VALUE_LABELS = 3


class ColorSpace(IntEnum):
    """`ColorSpaceType`."""

    UNKNOWN = 0
    RGB = 1
    GRAYSCALE = 2


class BoxType(IntEnum):
    """`BoundingBoxType`; BOUNDARIES: left, top, right, bottom."""

    UNKNOWN = 0
    BOUNDARIES = 1
    UPPER_LEFT = 2
    CENTER = 3


class Coordinates(IntEnum):
    """`CoordinateType`."""

    RATIO = 0
    PIXEL = 1


SCHEMA: Final[Schema] = {
    "ModelMetadata": {
        "name": Field(0, TEXT),
        "description": Field(1, TEXT),
        "version": Field(2, TEXT),
        "subgraph_metadata": tables(3, "SubGraphMetadata"),
        "author": Field(4, TEXT),
        "license": Field(5, TEXT),
        "associated_files": tables(6, "AssociatedFile"),
        "min_parser_version": Field(7, TEXT),
    },
    "SubGraphMetadata": {
        "name": Field(0, TEXT),
        "description": Field(1, TEXT),
        "input_tensor_metadata": tables(2, "TensorMetadata"),
        "output_tensor_metadata": tables(3, "TensorMetadata"),
        "associated_files": tables(4, "AssociatedFile"),
    },
    "TensorMetadata": {
        "name": Field(0, TEXT),
        "description": Field(1, TEXT),
        "content": Field(3, TABLE, "Content"),
        "process_units": tables(4, "ProcessUnit"),
        "stats": Field(5, TABLE, "Stats"),
        "associated_files": tables(6, "AssociatedFile"),
    },
    "AssociatedFile": {
        "name": Field(0, TEXT),
        "description": Field(1, TEXT),
        "type": Field(2, "b"),
        "locale": Field(3, TEXT),
    },
    "Content": {
        "content_properties": union(
            0, "FeatureProperties", "ImageProperties", "BoundingBoxProperties"
        ),
        "range": Field(2, TABLE, "ValueRange"),
    },
    "ValueRange": {"min": Field(0, "i"), "max": Field(1, "i")},
    "FeatureProperties": {},
    "ImageProperties": {
        "color_space": Field(0, "b"),
        "default_size": Field(1, TABLE, "ImageSize"),
    },
    "ImageSize": {"width": Field(0, "I"), "height": Field(1, "I")},
    "BoundingBoxProperties": {
        "index": Field(0, "I", many=True),
        "type": Field(1, "b"),
        "coordinate_type": Field(2, "b"),
    },
    "ProcessUnit": {"options": union(0, "NormalizationOptions")},
    "NormalizationOptions": {"mean": Field(0, "f", many=True), "std": Field(1, "f", many=True)},
    "Stats": {"max": Field(0, "f", many=True), "min": Field(1, "f", many=True)},
}
