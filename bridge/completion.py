"""What is put around a network before it is converted: a head behind, preprocessing before it."""

from dataclasses import dataclass, field, replace
from pathlib import Path

import onnx

from bridge.box_units import rescale
from bridge.errors import UsageError
from bridge.heads import HeadOptions, complete
from bridge.model import Source, save
from bridge.options import BoxLayout, BoxUnits, Options
from bridge.preprocess import InputLayout, PreprocessOptions, add_preprocessing


@dataclass(frozen=True, slots=True)
class Completion:
    """What to add to the source model; the defaults add nothing.

    Attributes:
        head: name of a built-in head or path of a head file, for a model without a suppression.
        preprocess: what happens to the image input inside the graph.
        box_units: what the boxes that come out count; None leaves them as they are.
        source_box_units: what they count in the source. None: pixels behind a head, and otherwise
            the unit that `box_units` is not.
    """

    head: str | None = None
    head_options: HeadOptions = field(default_factory=HeadOptions)
    preprocess: PreprocessOptions = field(default_factory=PreprocessOptions)
    box_units: BoxUnits | None = None
    source_box_units: BoxUnits | None = None

    @property
    def empty(self) -> bool:
        """Whether nothing is added."""
        declared = (self.box_units, self.source_box_units) != (None, None)
        return self.head is None and self.preprocess == PreprocessOptions() and not declared


def completed(
    source: Source, completion: Completion, options: Options, workdir: Path
) -> tuple[Source, Options, tuple[str, ...]]:
    """The model that is converted, what is still asked of it, and what was added, in sentences.

    The completed model is standard ONNX, written below `workdir`: it is what onnxruntime runs when
    it judges the artifact. `Options.input_shapes` are in the layout of the source's own inputs.

    Raises:
        UsageError: no such head, or it does not fit; no image input to put preprocessing before.
        UnsupportedModelError: the source cannot be completed.
    """
    if completion.empty:
        return source, options, ()
    model, added = source.model, []
    if completion.head is not None:
        head_options = replace(
            completion.head_options,
            max_detections=options.max_detections or completion.head_options.max_detections,
            input_shapes=options.input_shapes,
            # There are four outputs then, and none of them is for key points.
            extras=not options.gives_detections,
        )
        model = complete(model, completion.head, head_options)
        # The head has a bound of its own, fixed every dimension, and puts x before y.
        options = replace(options, max_detections=None, input_shapes={}, box_layout=BoxLayout.XYXY)
        added.append(f"the source ends in raw outputs: head {completion.head} was attached")
    model, options, told = _in_units(model, completion, options)
    added += told
    if completion.preprocess != PreprocessOptions():
        fed = add_preprocessing(model, completion.preprocess)
        options = _laid_as_fed(options, completion.preprocess, completion.head is None)
        model = fed
        added.append(f"preprocessing is inside: {_describe(completion.preprocess)}")
    if model is source.model:
        return source, options, tuple(added)
    path = workdir / source.path.name
    save(model, path)
    return Source(path, source.digest, model), options, tuple(added)


def _in_units(
    model: onnx.ModelProto, completion: Completion, options: Options
) -> tuple[onnx.ModelProto, Options, tuple[str, ...]]:
    """Boxes in the unit that is wanted, and options that say which it is."""
    wanted, given = completion.box_units, completion.source_box_units
    if completion.head is not None:
        if given is BoxUnits.FRACTIONS:
            raise UsageError(
                "--source-box-units fractions: the boxes of a head come in pixels; what the "
                "network gives is said by --head-option box.units=fractions"
            )
        given = BoxUnits.PIXELS
    if wanted is None or wanted is given:
        return model, replace(options, box_units=wanted or given), ()
    scaled = rescale(
        model,
        wanted,
        shapes=options.input_shapes,
        layout=options.box_layout,
        known=given is not None,
    )
    return scaled.model, replace(options, box_units=wanted), scaled.assumptions


def _laid_as_fed(options: Options, preprocess: PreprocessOptions, own_dims: bool) -> Options:
    """Shapes given for the source's image input, as the input of the fed model has them."""
    if not own_dims or preprocess.input_layout is not InputLayout.NHWC:
        return options
    shapes = {
        name: (shape[0], shape[2], shape[3], shape[1]) if len(shape) == 4 else shape
        for name, shape in options.input_shapes.items()
    }
    return replace(options, input_shapes=shapes)


def _describe(preprocess: PreprocessOptions) -> str:
    parts = [
        preprocess.input_dtype and f"{preprocess.input_dtype} input",
        preprocess.input_layout and f"{preprocess.input_layout} layout",
        f"{preprocess.channel_order} channels",
        preprocess.mean and f"mean {list(preprocess.mean)}",
        preprocess.std and f"std {list(preprocess.std)}",
    ]
    return ", ".join(part for part in parts if part)
