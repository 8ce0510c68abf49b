r"""A detector of drawn shapes: its scenes, its network, its weights.

`weights.pt` and `../shapes.onnx` were made by

    python -m scripts.train_shapes
    python -m bridge.export examples.shapes.model:detector --weights examples/shapes/weights.pt \
        --input 1x3x160x160 --output-names boxes,scores,labels -o examples/shapes.onnx
"""
