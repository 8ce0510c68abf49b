"""The tables of a TFLite file that tell what is in it, and their field numbers.

Source: `tflite/schema/schema.fbs` in LiteRT. Field numbers never change.
"""

from typing import Final

from bridge.targets.tflite.tables import BYTES, TABLE, TEXT, Field, Schema, tables

IDENTIFIER: Final = b"TFL3"
ROOT: Final = "Model"

SCHEMA: Final[Schema] = {
    "Model": {
        "version": Field(0, "I"),
        "operator_codes": tables(1, "OperatorCode"),
        "subgraphs": tables(2, "SubGraph"),
        "description": Field(3, TEXT),
        "buffers": tables(4, "Buffer"),
        "metadata": tables(6, "Metadata"),
        "signature_defs": tables(7, "SignatureDef"),
    },
    "OperatorCode": {
        "deprecated_builtin_code": Field(0, "b"),
        "custom_code": Field(1, TEXT),
        "version": Field(2, "i"),
        "builtin_code": Field(3, "i"),
    },
    "SubGraph": {
        "tensors": tables(0, "Tensor"),
        "inputs": Field(1, "i", many=True),
        "outputs": Field(2, "i", many=True),
        "operators": tables(3, "Operator"),
        "name": Field(4, TEXT),
    },
    "Tensor": {
        "shape": Field(0, "i", many=True),
        "type": Field(1, "b"),
        "buffer": Field(2, "I"),
        "name": Field(3, TEXT),
        "quantization": Field(4, TABLE, "Quantization"),
        "shape_signature": Field(7, "i", many=True),
    },
    "Quantization": {
        "scale": Field(2, "f", many=True),
        "zero_point": Field(3, "q", many=True),
        "quantized_dimension": Field(6, "i"),
    },
    "Operator": {
        "opcode_index": Field(0, "I"),
        "inputs": Field(1, "i", many=True),
        "outputs": Field(2, "i", many=True),
        "custom_options": Field(5, BYTES),
    },
    "Buffer": {"data": Field(0, BYTES), "offset": Field(1, "Q"), "size": Field(2, "Q")},
    "Metadata": {"name": Field(0, TEXT), "buffer": Field(1, "I")},
    "SignatureDef": {
        "inputs": tables(0, "TensorMap"),
        "outputs": tables(1, "TensorMap"),
        "signature_key": Field(2, TEXT),
        "subgraph_index": Field(4, "I"),
    },
    "TensorMap": {"name": Field(0, TEXT), "tensor_index": Field(1, "I")},
}
