"""Arrays over a pipe: an eight-byte length, one line of JSON, then the arrays as `.npy`."""

import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

LENGTH = 8


def pack(header: Mapping[str, Any], arrays: Sequence[Any] = ()) -> bytes:
    """One message."""
    body = io.BytesIO()
    body.write(json.dumps(header).encode() + b"\n")
    for array in arrays:
        np.save(body, np.asarray(array), allow_pickle=False)
    data = body.getvalue()
    return len(data).to_bytes(LENGTH, "little") + data


def unpack(data: bytes) -> tuple[dict[str, Any], list[Any]]:
    """The header and the arrays of a message, its length taken off."""
    body = io.BytesIO(data)
    header = json.loads(body.readline())
    arrays = []
    while body.tell() < len(data):
        arrays.append(np.load(body, allow_pickle=False))
    return header, arrays
