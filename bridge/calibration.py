"""What a quantised network is calibrated with: given, checked, and laid in the work folder.

Ranges of activations are taken from these numbers, so a wrong set makes a wrong file and no error.
What can be told to be wrong is refused here, by name.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import batched
from pathlib import Path
from typing import Final

import numpy as np

from bridge.errors import UsageError
from bridge.model import Source, digest
from bridge.options import NmsForm, Normalization, Options, Qdq, Quantization, Quantize
from bridge.static_model import StaticModel
from bridge.targets.base import Lowered, ports
from bridge.verify import golden
from bridge.verify.inputs import InputSet, as_fed, given_sets, photo_files
from bridge.verify.rows import groups, table

OPTION: Final = "--calibrate"
ENOUGH: Final = 8
"""So many pictures are seldom too few: ranges of activations hardly grow with more."""
MOST: Final = 64
"""So many are read: beyond it a conversion only takes longer."""
_AT_ONCE: Final = 8


@dataclass(frozen=True, slots=True)
class Calibration:
    """Options whose `Quantization.calibrate` is an `.npz` of sets, and what is to be told.

    Attributes:
        assumptions: for the manifest.
        warnings: for the manifest.
    """

    options: Options
    assumptions: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def told(self, lowered: Lowered) -> Lowered:
        """What is known of an artifact, with what is to be told of its calibration."""
        return replace(
            lowered,
            assumptions=(*self.assumptions, *lowered.assumptions),
            warnings=(*self.warnings, *lowered.warnings),
        )


def check(options: Options, to: str) -> None:
    """Refuse what does not go together, before any work is done.

    Raises:
        UsageError: says which options and what to give instead.
    """
    asked = options.quantization
    if to != "tflite" and options.qdq is not Qdq.INTEGER:
        raise UsageError(f"--qdq {options.qdq}: only --to tflite has integer kernels, not {to}")
    if asked.form is Quantize.NONE:
        # Integer kernels for a model that is quantised already need the interpreter, too.
        if replace(asked, python=None) != Quantization():
            raise UsageError(
                "--calibrate, --keep-float, --integer-postprocess, --quantize-report and "
                "--quantize-python say how to quantise; give --quantize "
                "{weights,dynamic,int8,fp16}, too"
            )
        return
    if to != "tflite":
        raise UsageError(f"--quantize {asked.form}: only --to tflite is quantised, not {to}")
    if asked.form is Quantize.INT8 and asked.calibrate is None:
        raise UsageError(
            "--quantize int8 takes the ranges of activations from data: give --calibrate DIR, "
            "photos like those it will see (50 or so), or --calibrate FILE.npz, arrays by input "
            "name"
        )
    eight_bit = asked.form is Quantize.INT8 and options.nms is NmsForm.POSTPROCESS
    if asked.integer_postprocess and not eight_bit:
        raise UsageError(
            "--integer-postprocess hands uint8 to the operator of --nms postprocess, and takes "
            "ranges from calibration: give --nms postprocess and --quantize int8 with it"
        )
    if asked.form in (Quantize.WEIGHTS, Quantize.FP16):
        _check_stored(asked)
    if asked.report is not None and asked.calibrate is None:
        raise UsageError("--quantize-report measures layers on data: give --calibrate, too")
    if asked.report is not None and not asked.report.parent.is_dir():
        folder = asked.report.parent
        raise UsageError(f"--quantize-report {asked.report}: the folder {folder} is not there")


def _check_stored(asked: Quantization) -> None:
    """Weights that are only stored narrow need neither data nor a second interpreter."""
    if asked.calibrate is not None:
        raise UsageError(f"--quantize {asked.form} needs no data: leave --calibrate out")
    if asked.report is not None:
        raise UsageError(
            f"--quantize-report measures layers that compute in int8, and --quantize {asked.form} "
            "leaves the arithmetic in float32: leave it out, or give --quantize int8"
        )
    if asked.python is not None:
        raise UsageError(f"--quantize {asked.form} needs no second interpreter: leave it out")


def calibration(
    source: Source, static: StaticModel, options: Options, workdir: Path
) -> Calibration:
    """Read and check what is given, and write it into the work folder.

    Args:
        source: the model that is converted, its head and preprocessing inside.
        static: what it became.
        options: of the conversion; nothing is done unless `Quantization.calibrate` is given.
        workdir: gets the sets, as arrays called `<input>/<number>` in the source's layout.

    Raises:
        UsageError: the data cannot be used, or onnxruntime detects nothing in them.
    """
    given = options.quantization.calibrate
    if given is None:
        return Calibration(options)
    sets, told = _read(source, options, given)
    warnings = [*_checked(sets, given)]
    if len(sets) < ENOUGH:
        warnings.append(
            f"{OPTION} {given}: {len(sets)} sets are few; activations beyond what these reach are "
            "clipped: give 50 photos or so"
        )
    _detects(source, static, options, sets)
    path = workdir / "calibration.npz"
    arrays = {f"{n}/{i}": a for i, one in enumerate(sets) for n, a in one.arrays.items()}
    # savez's own keyword, `file`, could be the name of an input.
    with path.open("wb") as stream:
        np.savez(stream, allow_pickle=False, **arrays)
    quantization = replace(options.quantization, calibrate=path)
    return Calibration(replace(options, quantization=quantization), told, tuple(warnings))


def judged_too(options: Options, images: Sequence[Path]) -> tuple[str, ...]:
    """What is to be warned of where a file is judged on pictures that it was calibrated on."""
    given = options.quantization.calibrate
    if given is None or not given.is_dir() or not images:
        return ()
    # What cannot be read is refused where it is read as a photo.
    known = {digest(file.read_bytes()) for file in photo_files([given], OPTION) if file.is_file()}
    files = [file for file in photo_files(images, "--images") if file.is_file()]
    same = [file.name for file in files if digest(file.read_bytes()) in known]
    if not same:
        return ()
    return (
        f"{len(same)} of {len(files)} --images, first {same[0]}, are among {OPTION} {given}: what "
        "a file finds on pictures it was calibrated on is too good; give others",
    )


def _read(
    source: Source, options: Options, given: Path
) -> tuple[tuple[InputSet, ...], tuple[str, ...]]:
    """The sets, and what was assumed of them."""
    if not given.exists():
        raise UsageError(f"{OPTION} {given}: there is no such folder or file")
    fed = as_fed(options.normalization or Normalization())
    if not given.is_dir():
        if given.suffix != ".npz":
            raise UsageError(f"{OPTION} {given}: give a folder of photos or an .npz file")
        sets = given_sets(source, options, given, fed, option=OPTION)
        return sets, (f"calibrated on {len(sets)} sets of {given.name}",)
    files = photo_files([given], OPTION)
    chosen = [files[i * len(files) // MOST] for i in range(MOST)] if len(files) > MOST else files
    sets = given_sets(source, options, chosen, fed, option=OPTION)
    told = f"calibrated on {len(chosen)} of {len(files)} photos, stretched to the input"
    if options.normalization is None:
        told += (
            ", fed as bytes 0..255: say otherwise with --mean and --std, and --normalize outside "
            "where the application normalises"
        )
    return sets, (told,)


def _checked(sets: Sequence[InputSet], given: Path) -> Iterator[str]:
    """What is to be warned of.

    Raises:
        UsageError: there is no set, a number is not finite, or every picture is one colour.
    """
    if not sets:
        raise UsageError(f"{OPTION} {given}: there is nothing in it")
    plain = []
    for one in sets:
        for name, array in one.arrays.items():
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                raise UsageError(f"{OPTION} {given}: {name!r} of {one.name} holds NaN or infinity")
        if all(array.size > 1 and array.min() == array.max() for array in one.arrays.values()):
            plain.append(one.name)
    if len(plain) == len(sets):
        raise UsageError(
            f"{OPTION} {given}: every picture is of one colour (black?), first {plain[0]}: "
            "nothing can be learnt of what the network will see"
        )
    if plain:
        yield f"{OPTION} {given}: {len(plain)} pictures are of one colour, first {plain[0]}"


def _detects(
    source: Source, static: StaticModel, options: Options, sets: Sequence[InputSet]
) -> None:
    """Make sure that the float model sees something in one of the sets.

    Raises:
        UsageError: it does not.
    """
    if not static.padded:
        return
    tables = [one for one in groups(ports(static)[1]) if one.count is not None]
    for some in batched(sets, _AT_ONCE):
        for run in golden.record(source, some, options).sets:
            if any(table(one, run.outputs).detections().any() for one in tables):
                return
    raise UsageError(
        f"{OPTION} {options.quantization.calibrate}: onnxruntime detects nothing in any of "
        f"{len(sets)} sets with the float model, so they are not what it was made for; is "
        "preprocessing missing (--mean, --std, --channel-order), or are they other pictures?"
    )
