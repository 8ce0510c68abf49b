"""A converted model and the manifest beside it: written together or not at all, and read back."""

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from bridge.errors import TargetMissingError, UsageError
from bridge.model import digest
from bridge.options import Options
from bridge.static_model import Rows
from bridge.targets import table
from bridge.targets.base import Array, Closing, LoweredNms, Port, Session, Target

MISMATCH = ".mismatch"


@dataclass(frozen=True, slots=True)
class PassRecord:
    """What one pass of the surgery did."""

    name: str
    changed: bool
    findings: tuple[str, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class Manifest:
    """What stands beside every artifact as `<artifact>.json`.

    Attributes:
        bridge: version that wrote it.
        verdict: match, mismatch, inconclusive; `unverified` where the golden check was skipped.
        source_file: name of the source model, without its folder.
        artifact_file: name of the artifact, without its folder.
        golden: what the golden check measured; None where it was skipped.
        quantised: its network holds narrow numbers, so that it is judged by what it detects.
        details: the target's own entry, shown under the target's name.
    """

    bridge: str
    target: str
    verdict: str
    source_file: str
    source_sha256: str
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    nms: tuple[LoweredNms, ...] = ()
    assumptions: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    passes: tuple[PassRecord, ...] = ()
    golden: Mapping[str, object] | None = None
    quantised: bool = False
    seconds: Mapping[str, float] = field(default_factory=dict)
    details: Mapping[str, object] = field(default_factory=dict)
    artifact_file: str = ""
    artifact_sha256: str = ""
    artifact_bytes: int = 0

    def as_dict(self) -> dict[str, object]:
        """The manifest as JSON holds it, keys in their fixed order."""
        entry: dict[str, object] = {
            "bridge": self.bridge,
            "target": self.target,
            "verdict": self.verdict,
            "source": {"file": self.source_file, "sha256": self.source_sha256},
            "artifact": {
                "file": self.artifact_file,
                "sha256": self.artifact_sha256,
                "bytes": self.artifact_bytes,
            },
            "inputs": [_port_entry(port, rows=False) for port in self.inputs],
            "outputs": [_port_entry(port, rows=True) for port in self.outputs],
            "nms": [_nms_entry(nms) for nms in self.nms],
            "assumptions": list(self.assumptions),
            "warnings": list(self.warnings),
            "passes": [
                {
                    "name": record.name,
                    "changed": record.changed,
                    "findings": list(record.findings),
                    "seconds": record.seconds,
                }
                for record in self.passes
            ],
            "golden": None if self.golden is None else dict(self.golden),
            "quantised": self.quantised,
            "seconds": dict(self.seconds),
        }
        if self.details:
            entry[self.target] = dict(self.details)
        return entry

    def as_json(self) -> str:
        """The text of the file; a number that JSON has no word for is null."""
        return json.dumps(_finite(self.as_dict()), indent=2, ensure_ascii=False) + "\n"


def read_manifest(artifact: Path) -> Manifest:
    """The manifest beside an artifact.

    Raises:
        UsageError: there is none, or it is not one of ours.
    """
    path = manifest_path(artifact)
    try:
        entry = json.loads(path.read_bytes())
        return _manifest(entry)
    except OSError as error:
        raise UsageError(
            f"cannot read {path}: {error.strerror}; an artifact needs its manifest beside it"
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(
            f"{path} is not a manifest of bridge ({type(error).__name__}: {error}); convert again"
        ) from error


def manifest_path(artifact: Path) -> Path:
    """Where the manifest of an artifact stands: `model.tflite.json` for `model.tflite`."""
    return artifact.with_name(artifact.name + ".json")


def publish(made: Path, manifest: Manifest, output: Path) -> tuple[Path, Manifest]:
    """Copy an artifact to where the user asked for it, its manifest beside it.

    Both are written under temporary names in the same folder, then renamed. An artifact with the
    verdict `mismatch` is called `<output>.mismatch`.

    Returns:
        The path, and the manifest completed with name, digest and size of the artifact.

    Raises:
        UsageError: the folder is missing or cannot be written.
    """
    path = output.with_name(output.name + MISMATCH) if manifest.verdict == "mismatch" else output
    data = made.read_bytes()
    complete = _with_artifact(manifest, path.name, data)
    text = complete.as_json().encode()
    beside = manifest_path(path)
    with _parts(path, beside) as (artifact_part, manifest_part):
        artifact_part.write_bytes(data)
        manifest_part.write_bytes(text)
        artifact_part.replace(path)
        try:
            manifest_part.replace(beside)
        except OSError:
            # An artifact without its manifest is of no use to anybody.
            path.unlink()
            raise
    return path, complete


@contextmanager
def _parts(*paths: Path) -> Iterator[tuple[Path, ...]]:
    """Temporary names in the folder of each path, gone at the end whatever happens."""
    parts = tuple(path.with_name(f".{path.name}.{os.getpid()}.part") for path in paths)
    try:
        yield parts
    except OSError as error:
        raise UsageError(f"cannot write {paths[0]}: {error.strerror}") from error
    finally:
        for part in parts:
            with suppress(OSError):
                part.unlink()


class Detector(Closing):
    """An artifact that is fed and read as the source model was: names, layouts, real rows only."""

    def __init__(self, session: Session, manifest: Manifest) -> None:
        self.manifest = manifest
        self._session = session

    def __call__(self, **inputs: Array) -> dict[str, Array]:
        """Run once; see `run`."""
        return self.run(inputs)

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Every output by its ONNX name, in the source's layout, padded rows cut off.

        Args:
            inputs: every input by its ONNX name, in the source's layout and type.

        Raises:
            UsageError: an input is missing, unknown, or not of the type and shape it must have.
        """
        raw = self._session.run(to_artifact(self.manifest.inputs, inputs))
        return trim(self.manifest.outputs, to_source(self.manifest.outputs, raw))

    def close(self) -> None:
        """Free what the target holds."""
        self._session.close()


def load(path: str | os.PathLike[str], *, threads: int = 1) -> Detector:
    """Open any artifact by the manifest beside it.

    Raises:
        UsageError: artifact or manifest are missing or do not belong together.
        TargetMissingError: the runtime of its target is not installed.
    """
    path = Path(path)
    manifest, target = identify(path)
    return Detector(open_session(target, path, threads), manifest)


def open_session(target: Target, path: Path, threads: int) -> Session:
    """Load an artifact with what its target needs to run, which may be less than to convert.

    Raises:
        TargetMissingError: that is not installed.
    """
    try:
        return target.open(path, threads=threads)
    except ImportError as error:
        needed = target.missing(Options()) or str(error)
        raise TargetMissingError(f"{path} cannot run here: {needed}") from error


def identify(path: Path) -> tuple[Manifest, Target]:
    """What an artifact is, and the target it was made for.

    Raises:
        UsageError: artifact or manifest are missing or do not belong together.
    """
    manifest = read_manifest(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    if digest(data) != manifest.artifact_sha256:
        raise UsageError(
            f"{path} is not the artifact that {manifest_path(path).name} describes "
            "(another sha256); convert again, or keep the two together"
        )
    return manifest, table.find(manifest.target)


def to_artifact(ports: Sequence[Port], inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Inputs in the source's layout as the artifact takes them.

    Raises:
        UsageError: an input is missing, unknown, or not of the type and shape it must have.
    """
    unknown = sorted(set(inputs) - {port.name for port in ports})
    if unknown:
        known = ", ".join(repr(port.name) for port in ports)
        raise UsageError(f"no input is called {unknown[0]!r}; there are {known}")
    feeds = {}
    for port in ports:
        wanted = f"{port.dtype}{list(port.source_shape)}"
        if port.name not in inputs:
            raise UsageError(f"input {port.name!r} is missing: {wanted}")
        array = np.asarray(inputs[port.name])
        if array.dtype.name != port.dtype or array.shape != port.source_shape:
            raise UsageError(
                f"input {port.name!r} must be {wanted}, not {array.dtype.name}{list(array.shape)}"
            )
        laid = array if port.transpose is None else array.transpose(port.transpose)
        feeds[port.name] = np.ascontiguousarray(laid)
    return feeds


def to_source(ports: Sequence[Port], outputs: Mapping[str, Array]) -> dict[str, Array]:
    """Outputs of an artifact in the source's layout, still padded."""
    return {
        port.name: outputs[port.name]
        if port.transpose is None
        else outputs[port.name].transpose(np.argsort(port.transpose))
        for port in ports
    }


def source_dims(port: Port) -> tuple[int, ...]:
    """The static shape of a port in the source's layout."""
    if port.transpose is None:
        return port.shape
    return tuple(port.shape[axis] for axis in np.argsort(port.transpose))


def trim(ports: Sequence[Port], outputs: Mapping[str, Array]) -> dict[str, Array]:
    """Padded outputs cut to the rows that their counts call real."""
    cut = dict(outputs)
    for port in ports:
        for rows in port.rows:
            count = int(outputs[rows.count].reshape(-1)[0])
            whole = slice(None)
            cut[port.name] = cut[port.name][(*[whole] * rows.axis, slice(0, max(count, 0)))]
    return cut


def _with_artifact(manifest: Manifest, name: str, data: bytes) -> Manifest:
    return replace(
        manifest, artifact_file=name, artifact_sha256=digest(data), artifact_bytes=len(data)
    )


def _port_entry(port: Port, *, rows: bool) -> dict[str, object]:
    entry: dict[str, object] = {
        "name": port.name,
        "dtype": port.dtype,
        "shape": list(port.shape),
        "source_shape": list(port.source_shape),
    }
    if rows:
        entries = [{"axis": padded.axis, "count": padded.count} for padded in port.rows]
        # One padded axis is the rule; an output with several lists them.
        entry["rows"] = entries if len(entries) > 1 else next(iter(entries), None)
    if not rows or port.transpose is not None:
        entry["transpose"] = None if port.transpose is None else list(port.transpose)
    if port.key is not None:
        entry["key"] = port.key
    return entry


def _nms_entry(nms: LoweredNms) -> dict[str, object]:
    return {
        "node": nms.node,
        "lowered_to": nms.lowered_to,
        "boxes": nms.boxes,
        "classes": nms.classes,
        "max_output": nms.max_output,
        "iou_threshold": nms.iou_threshold,
        "score_threshold": nms.score_threshold,
        "exact": nms.exact,
        "because": nms.because,
        "candidates": nms.candidates,
    }


def _finite(value: object) -> object:
    """The value with null for infinities and NaN, and plain numbers for numpy's."""
    if isinstance(value, Mapping):
        return {str(key): _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value


def _manifest(entry: Mapping[str, Any]) -> Manifest:
    return Manifest(
        bridge=entry["bridge"],
        target=entry["target"],
        verdict=entry["verdict"],
        source_file=entry["source"]["file"],
        source_sha256=entry["source"]["sha256"],
        inputs=tuple(map(_port, entry["inputs"])),
        outputs=tuple(map(_port, entry["outputs"])),
        nms=tuple(map(_nms, entry["nms"])),
        assumptions=tuple(entry["assumptions"]),
        warnings=tuple(entry.get("warnings", ())),
        passes=tuple(
            PassRecord(p["name"], p["changed"], tuple(p["findings"]), p["seconds"])
            for p in entry["passes"]
        ),
        golden=entry["golden"],
        quantised=bool(entry.get("quantised", False)),
        seconds=entry["seconds"],
        details=entry.get(entry["target"], {}),
        artifact_file=entry["artifact"]["file"],
        artifact_sha256=entry["artifact"]["sha256"],
        artifact_bytes=entry["artifact"]["bytes"],
    )


def _port(entry: Mapping[str, Any]) -> Port:
    rows = entry.get("rows") or ()
    transpose = entry.get("transpose")
    return Port(
        name=entry["name"],
        dtype=entry["dtype"],
        shape=tuple(entry["shape"]),
        source_shape=tuple(entry["source_shape"]),
        transpose=None if transpose is None else tuple(transpose),
        rows=tuple(
            Rows(padded["axis"], padded["count"])
            for padded in (rows if isinstance(rows, list | tuple) else (rows,))
        ),
        key=entry.get("key"),
    )


def _nms(entry: Mapping[str, Any]) -> LoweredNms:
    threshold = entry["score_threshold"]
    return LoweredNms(
        node=entry["node"],
        lowered_to=entry["lowered_to"],
        boxes=entry["boxes"],
        classes=entry["classes"],
        max_output=entry["max_output"],
        iou_threshold=entry["iou_threshold"],
        # JSON has no infinity; only an absent threshold is one.
        score_threshold=-math.inf if threshold is None else threshold,
        exact=entry["exact"],
        because=entry["because"],
        candidates=entry.get("candidates"),
    )
