"""What is read off a TFLite file, ours or anybody's, and that no file can do harm."""

import json
import struct
from pathlib import Path

import numpy as np
import pytest

from bridge.errors import UnsupportedModelError, UsageError
from bridge.inspect_tflite import as_dict
from bridge.targets.tflite import metadata_schema, model_schema, tables
from bridge.targets.tflite.contents import Contents, read
from bridge.targets.tflite.flatbuffer import Builder
from tests.shared import SHARED, needs_shared

MODELS = SHARED / "models"


def _small() -> bytes:
    """A file of one operator and a constant."""
    builder = Builder()
    x = builder.input("x", (2, 3), "float32")
    y = builder.binary("ADD", x, builder.constant(np.arange(3, dtype=np.float32)))
    builder.output("y", y)
    return builder.pack()


def _read(content: bytes, folder: Path) -> Contents:
    path = folder / "file.tflite"
    path.write_bytes(content)
    return read(path)


def test_a_file_of_ours(tmp_path: Path) -> None:
    found = _read(_small(), tmp_path)
    assert [(t.name, t.dtype, t.shape) for t in found.inputs] == [("x", "float32", (2, 3))]
    (signature,) = found.signatures
    assert signature.key == "serving_default"
    assert (list(signature.inputs), list(signature.outputs)) == (["x"], ["y"])
    assert [(o.name, o.count, o.custom) for o in found.operators] == [("ADD", 1, False)]
    (share,) = found.shares
    assert (share.tensors, share.constants, share.constant_bytes) == (3, 1, 12)
    assert found.notes is None


@needs_shared
def test_a_quantised_file_with_the_custom_operator() -> None:
    found = read(MODELS / "coco-ssd-mobilenet-v1-quant.tflite")
    (image,) = found.inputs
    assert (image.dtype, image.shape) == ("uint8", (1, 300, 300, 3))
    assert image.quantized is not None
    assert (image.quantized.scale, image.quantized.zero_point) == ((0.0078125,), (128,))
    assert len(found.outputs) == 4
    (custom,) = (operator for operator in found.operators if operator.custom)
    assert (custom.name, custom.count) == ("TFLite_Detection_PostProcess", 1)
    (suppression,) = found.suppressions
    assert (suppression.boxes, suppression.scores) == ((1, 1917, 4), (1, 1917, 91))
    settings = suppression.settings
    assert settings["max_detections"] == 10
    assert settings["nms_iou_threshold"] == pytest.approx(0.6)
    assert (settings["y_scale"], settings["h_scale"]) == (10, 5)
    (bytes_,) = (share for share in found.shares if share.dtype == "uint8")
    assert (bytes_.tensors, bytes_.quantized, bytes_.per_channel) == (112, 112, 0)


@needs_shared
def test_a_half_precision_file_with_builtin_suppressions() -> None:
    found = read(MODELS / "yolox-n-body-head-hand-f16.tflite")
    assert [one.operator for one in found.suppressions] == ["NON_MAX_SUPPRESSION_V4"] * 3
    for one in found.suppressions:
        assert (one.boxes, one.settings["max_output_size"]) == ((1680, 4), 20)
        assert one.settings["iou_threshold"] == pytest.approx(0.4, abs=1e-3)
    assert not any(operator.custom for operator in found.operators)
    (halves,) = (share for share in found.shares if share.dtype == "float16")
    assert halves.constant_bytes == 1_788_984
    json.dumps(as_dict(found), allow_nan=False)


# Broken, on purpose or not.


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read"):
        read(tmp_path / "none.tflite")


@pytest.mark.parametrize("content", [b"", b"TFL3", b"\x08\x08" * 40, b"PK\3\4" + bytes(60)])
def test_what_is_no_tflite_file(content: bytes, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match="not a usable TFLite file"):
        _read(content, tmp_path)


def test_every_truncation_is_read_or_refused(tmp_path: Path) -> None:
    content = _small()
    refused = 0
    for size in range(0, len(content), 3):
        try:
            _read(content[:size], tmp_path)
        except UnsupportedModelError:
            refused += 1
    assert refused > len(content) // 6


@pytest.mark.parametrize("seed", range(4))
def test_any_change_of_bytes_is_read_or_refused(seed: int, tmp_path: Path) -> None:
    rng, content = np.random.default_rng(seed), _small()
    refused = 0
    for _ in range(400):
        changed = np.frombuffer(content, np.uint8).copy()
        places = rng.integers(8, len(changed), rng.integers(1, 4))
        changed[places] = rng.choice([0, 1, 0x7F, 0x80, 0xFF], len(places))
        try:
            _read(changed.tobytes(), tmp_path)
        except UnsupportedModelError:
            refused += 1
    assert refused > 20


def test_a_file_that_refers_to_one_table_a_million_times_ends(tmp_path: Path) -> None:
    """A small file whose reading would fill the memory."""
    tensor = {"name": "t" * 100, "shape": [1] * 100}
    graph = {"tensors": [tensor] * 1000, "name": "MARK"}
    content = tables.pack(
        model_schema.SCHEMA, model_schema.ROOT, {"subgraphs": [graph]}, model_schema.IDENTIFIER
    )
    # A new vector of subgraphs, all the one in a copy of the file behind it: offsets go forward.
    body = bytearray(content)
    root = struct.unpack_from("<I", body, 0)[0]
    table = root - struct.unpack_from("<i", body, root)[0]
    field = root + struct.unpack_from("<H", body, table + 4 + 2 * 2)[0]
    vector = field + struct.unpack_from("<I", body, field)[0]
    only = vector + 4 + struct.unpack_from("<I", body, vector + 4)[0]
    count, start = 1_000_000, len(body)
    struct.pack_into("<I", body, field, start - field)
    body += struct.pack("<I", count)
    places = start + 4 + 4 * np.arange(count, dtype=np.int64)
    body += (start + 4 + 4 * count + only - places).astype("<u4").tobytes() + content
    with pytest.raises(UnsupportedModelError, match="again and again"):
        _read(bytes(body), tmp_path)


def test_a_document_comes_back_as_it_was_written() -> None:
    document = {
        "name": "größer",
        "min_parser_version": "1.0.0",
        "subgraph_metadata": [
            {
                "input_tensor_metadata": [
                    {
                        "name": "image",
                        "content": {"content_properties": ("ImageProperties", {"color_space": 1})},
                        "process_units": [
                            {"options": ("NormalizationOptions", {"mean": [127.5], "std": [2.0]})}
                        ],
                        "stats": {"max": [1.0], "min": [-1.0]},
                    }
                ],
                "output_tensor_metadata": [
                    {
                        "content": {
                            "content_properties": (
                                "BoundingBoxProperties",
                                {"index": [1, 0, 3, 2]},
                            ),
                            "range": {"min": 2, "max": 2},
                        },
                        "associated_files": [{"name": "labels.txt", "type": 3}],
                    }
                ],
            }
        ],
    }
    schema, root = metadata_schema.SCHEMA, metadata_schema.ROOT
    packed = tables.pack(schema, root, document, metadata_schema.IDENTIFIER)
    assert tables.unpack(schema, root, packed, metadata_schema.IDENTIFIER) == document
