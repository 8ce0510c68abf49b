"""The flow of one conversion, top to bottom: load, surgery, lower, verify, publish."""

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import onnx

import bridge
from bridge import artifact, calibration, surgery
from bridge.artifact import Manifest, PassRecord
from bridge.completion import Completion, completed
from bridge.errors import (
    GoldenMismatchError,
    InconclusiveError,
    TargetMissingError,
    UsageError,
)
from bridge.model import Source, load, save
from bridge.options import Options
from bridge.static_model import Finding
from bridge.surgery.runner import PassReport, SurgeryResult
from bridge.targets import table
from bridge.targets.base import Lowered, Target, ports
from bridge.verify import Comparison, Terms, Verdict, verify
from bridge.verify.precision import read_ground_truth

Stage = Callable[[str], None]

UNVERIFIED = "unverified"
PLANNED = "planned"


@dataclass(frozen=True, slots=True)
class Checks:
    """What the golden check feeds beside the generated inputs, or that it is skipped.

    Attributes:
        ground_truth: COCO JSON of what is on the `images`, by file name; quantised files only.
        max_ap_drop: the average precision that a quantised file may lose.
    """

    images: tuple[Path, ...] = ()
    inputs: Path | None = None
    skip: bool = False
    ground_truth: Path | None = None
    max_ap_drop: float | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """What a conversion came to.

    Attributes:
        path: the artifact; None after a dry run, and where the check was inconclusive.
        comparison: None where the golden check was skipped.
    """

    path: Path | None
    manifest: Manifest
    comparison: Comparison | None = None

    def check(self) -> None:
        """Raise unless the artifact may be used.

        Raises:
            GoldenMismatchError: it differs from onnxruntime; it is kept as `….mismatch`.
            InconclusiveError: nothing was detected, so nothing was shown.
        """
        if self.comparison is None or self.comparison.verdict is Verdict.MATCH:
            return
        if self.comparison.verdict is Verdict.MISMATCH:
            problems = self.comparison.problems
            what = (
                f"the outputs differ from onnxruntime's in {len(problems)} places, first"
                if self.comparison.quantised is None
                else "the quantised file does not hold what it must"
            )
            raise GoldenMismatchError(f"{what}: {problems[0]}; the artifact is kept as {self.path}")
        raise InconclusiveError(
            f"nothing was detected in any of {self.comparison.inputs} golden inputs, so nothing "
            "was shown and no artifact is kept; give inputs with detections in them: "
            "--images PHOTOS or --inputs FILE.npz (or --no-verify to go without a proof)"
        )


@dataclass(frozen=True, slots=True)
class _Clock:
    """Tells the stage that begins, and keeps the seconds that each took."""

    stage: Stage
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        self.stage(name)
        start = time.perf_counter()
        yield
        self.seconds[name] = round(time.perf_counter() - start, 3)


def convert(
    model: str | os.PathLike[str],
    to: str,
    output: str | os.PathLike[str] | None = None,
    options: Options | None = None,
    *,
    completion: Completion | None = None,
    checks: Checks | None = None,
    dry_run: bool = False,
    dump: Path | None = None,
    stage: Stage | None = None,
) -> Result:
    """Convert a model and prove the result against onnxruntime on the untouched source.

    Args:
        model: the ONNX file; never changed.
        to: the target's name: onnx, tflite or tvm.
        output: the artifact; by default the model's stem with the target's suffix, here.
        options: as `bridge.options` says.
        completion: a head or preprocessing to add first.
        checks: what the golden check feeds, or that it is skipped.
        dry_run: do the surgery, lower and write nothing.
        dump: a folder that gets the model after each stage, numbered.
        stage: is told the name of each stage as it begins.

    Raises:
        BridgeError: as `bridge.errors` lists; a mismatch is a result, see `Result.check`.
    """
    options, checks = options or Options(), checks or Checks()
    target = table.find(to, options)
    calibration.check(options, target.name)
    _check_scope(options, completion or Completion(), target)
    terms = _terms(checks, options, target)
    path = _output(Path(model), target, output)
    missing = target.missing(options)
    if missing and not dry_run:
        raise TargetMissingError(f"target {target.name} cannot run here: {missing}")
    clock = _Clock(stage or _silent)
    with tempfile.TemporaryDirectory(prefix="bridge-") as scratch:
        workdir = Path(scratch)
        with clock("inspect"):
            source = load(model)
            judged, options, added = completed(source, completion or Completion(), options, workdir)
        with clock("surgery"):
            operated = surgery.run(judged.model, options, dump=_dump(dump))
        if dry_run:
            return Result(None, _planned(source, target, operated, added, clock.seconds))
        with clock("lower"):
            static = replace(operated.static, source=judged.model)
            data = calibration.calibration(judged, operated.static, options, workdir)
            lowered = data.told(target.lower(static, data.options, workdir))
        _check_terms(checks, lowered)
        comparison = None
        if not checks.skip:
            judged_too = calibration.judged_too(options, checks.images)
            lowered = replace(lowered, warnings=(*lowered.warnings, *judged_too))
            with clock("verify"):
                comparison = verify(
                    judged,
                    operated.static,
                    lowered,
                    target,
                    options,
                    checks.images,
                    checks.inputs,
                    terms=terms,
                )
        manifest = _manifest(source, target, operated, lowered, comparison, added, clock.seconds)
        if comparison is not None and comparison.verdict is Verdict.INCONCLUSIVE:
            return Result(None, manifest, comparison)
        published, complete = artifact.publish(lowered.path, manifest, path)
    return Result(published, complete, comparison)


def _silent(stage: str) -> None:
    del stage


def _check_scope(options: Options, completion: Completion, target: Target) -> None:
    """Refuse what only a TFLite file can hold.

    Raises:
        UsageError: it was asked of another target.
    """
    if target.name == "tflite":
        return
    told = completion.source_box_units is not None and completion.box_units is None
    for name, given, why in (
        ("labels", options.labels, "a TFLite file has metadata for them"),
        ("outputs", options.outputs, "they are an application's for TFLite files"),
        ("source-box-units", told or None, "without --box-units it says something to metadata"),
    ):
        if given is not None:
            raise UsageError(
                f"--{name} does nothing with --to {target.name}: {why}; leave it out, or convert "
                "with --to tflite"
            )


def _terms(checks: Checks, options: Options, target: Target) -> Terms:
    """What is asked of a quantised file; the ground truth is read before any work is done.

    Raises:
        UsageError: it cannot be read, or nothing that is asked for could come of it.
    """
    asked = _asked(checks)
    if not asked:
        return Terms()
    if target.name != "tflite":
        raise UsageError(f"{asked} judges a quantised file, and --to {target.name} makes none")
    if checks.skip:
        raise UsageError(f"{asked} is for the golden check, and --no-verify skips it")
    if checks.ground_truth is None:
        return Terms(max_ap_drop=checks.max_ap_drop)
    if not checks.images:
        raise UsageError(
            "--ground-truth says what is on photos: give them with --images, called as there"
        )
    names: tuple[str, ...] = ()
    if options.labels is not None:
        from bridge.targets.tflite.metadata import read_labels

        names = read_labels(options.labels)
    return Terms(read_ground_truth(checks.ground_truth), names, checks.max_ap_drop)


def _check_terms(checks: Checks, lowered: Lowered) -> None:
    """Refuse what only a quantised file is held to; a model may bring its own quantisation.

    Raises:
        UsageError: the file is not quantised.
    """
    asked = _asked(checks)
    if asked and not lowered.quantised:
        raise UsageError(
            f"{asked} judges a quantised file, and this one is not: its detections are held to "
            "onnxruntime's one by one; leave it out, or give --quantize {weights,dynamic,int8,fp16}"
        )


def _asked(checks: Checks) -> str:
    """The option that asks something of a quantised file, if one does."""
    if checks.ground_truth is not None:
        return "--ground-truth"
    return "" if checks.max_ap_drop is None else "--max-ap-drop"


def _output(model: Path, target: Target, output: str | os.PathLike[str] | None) -> Path:
    """Where the artifact goes, checked before any work is done.

    Raises:
        UsageError: it is the source itself, a folder, or in a folder that is not there.
    """
    path = Path(output) if output is not None else Path(model.stem + target.suffix)
    if not path.parent.is_dir():
        raise UsageError(f"--output {path}: the folder {path.parent} is not there; make it first")
    if path.is_dir():
        raise UsageError(f"--output {path} is a folder; name a file in it")
    written = {path, artifact.manifest_path(path)}
    if any(file.exists() and model.exists() and file.samefile(model) for file in written):
        raise UsageError(f"--output {path} would overwrite the source model; name another file")
    return path


def _dump(folder: Path | None) -> Callable[[str, onnx.ModelProto], None] | None:
    """Write each stage's model as `00-normalise.onnx`, `01-…` into the folder."""
    if folder is None:
        return None
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--dump {folder}: {error.strerror}") from error
    numbers = iter(range(1000))

    def write(name: str, model: onnx.ModelProto) -> None:
        save(model, folder / f"{next(numbers):02d}-{name}.onnx")

    return write


def _manifest(
    source: Source,
    target: Target,
    operated: SurgeryResult,
    lowered: Lowered,
    comparison: Comparison | None,
    added: tuple[str, ...],
    seconds: Mapping[str, float],
) -> Manifest:
    return Manifest(
        bridge=bridge.__version__,
        target=target.name,
        verdict=UNVERIFIED if comparison is None else comparison.verdict.value,
        source_file=source.path.name,
        source_sha256=source.digest,
        inputs=lowered.inputs,
        outputs=lowered.outputs,
        nms=lowered.nms,
        assumptions=(*added, *operated.static.assumptions, *lowered.assumptions),
        warnings=(*lowered.warnings, *_warnings(comparison)),
        passes=_records(operated.reports),
        golden=None if comparison is None else comparison.as_dict(),
        quantised=lowered.quantised,
        seconds=seconds,
        details=lowered.details,
    )


def _planned(
    source: Source,
    target: Target,
    operated: SurgeryResult,
    added: tuple[str, ...],
    seconds: Mapping[str, float],
) -> Manifest:
    """What a dry run can say: what was found and what the surgery would change."""
    inputs, outputs = ports(operated.static)
    return Manifest(
        bridge=bridge.__version__,
        target=target.name,
        verdict=PLANNED,
        source_file=source.path.name,
        source_sha256=source.digest,
        inputs=inputs,
        outputs=outputs,
        assumptions=(*added, *operated.static.assumptions),
        passes=_records(operated.reports),
        seconds=seconds,
    )


def _records(reports: tuple[PassReport, ...]) -> tuple[PassRecord, ...]:
    return tuple(
        PassRecord(
            report.name, report.changed, tuple(map(_sentence, report.findings)), report.seconds
        )
        for report in reports
    )


def _sentence(finding: Finding) -> str:
    return f"{finding.node}: {finding.what}" if finding.node else finding.what


def _warnings(comparison: Comparison | None) -> tuple[str, ...]:
    return () if comparison is None else comparison.warnings
