"""Goldens: inputs, and what onnxruntime makes of them on the untouched source model."""

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from bridge.errors import InconclusiveError, UnsupportedModelError, UsageError
from bridge.model import Array, Source, as_declared, write_whole
from bridge.options import Options
from bridge.static_model import Rows
from bridge.targets.base import Port
from bridge.verify.inputs import SEED, InputSet, Photo, read_npz
from bridge.verify.rounding import EPSILON, perturbed

MOVE = 4 * EPSILON
"""How far the inputs move where a golden records what float noise can do."""

_FORMAT = 1


@dataclass(frozen=True, slots=True)
class GoldenSet:
    """One set of inputs and the outputs of the source model on it.

    Attributes:
        generated: the inputs are noise, not a photo or the user's own numbers.
        moved: further outputs, on inputs that differ in their last bits.
        photo: None where it is none.
    """

    name: str
    inputs: Mapping[str, Array]
    outputs: Mapping[str, Array]
    generated: bool = False
    moved: tuple[Mapping[str, Array], ...] = ()
    photo: Photo | None = None


@dataclass(frozen=True, slots=True)
class Golden:
    """What an artifact of this source is held to.

    Attributes:
        source_file: name of the source model, without its folder.
        frozen: inputs of the source that are constants of the artifact.
        failed: sets on which onnxruntime itself raised, with its message: nothing to compare.
        runtime: name and version of what made the outputs.
    """

    source_file: str
    source_sha256: str
    sets: tuple[GoldenSet, ...]
    frozen: Mapping[str, Array] = field(default_factory=dict)
    failed: tuple[str, ...] = ()
    runtime: str = f"onnxruntime {onnxruntime.__version__}"
    seed: int = SEED


def record(
    source: Source,
    sets: Sequence[InputSet],
    options: Options | None = None,
    *,
    moves: int = 0,
    seed: int = SEED,
) -> Golden:
    """Run the untouched file under onnxruntime, graph optimisations off, one thread.

    Args:
        source: the model.
        sets: what it is fed, without the inputs that `options` freezes.
        options: as for the conversion.
        moves: how often each set is run again with inputs that moved by a few units in the last
            place: what comes of it is what float noise can do, for who has nothing but the golden.
        seed: of the moves; kept with the golden.

    Raises:
        UnsupportedModelError: onnxruntime cannot load the source.
        InconclusiveError: it can run none of the sets.
    """
    frozen = _frozen(source, options or Options())
    session = reference_session(source)
    names = [output.name for output in session.get_outputs()]

    def run(arrays: Mapping[str, Array]) -> dict[str, Array]:
        values = session.run(names, {**arrays, **frozen})
        return dict(zip(names, map(np.asarray, values), strict=True))

    made: list[GoldenSet] = []
    failed: list[str] = []
    for one in sets:
        rng = np.random.default_rng(seed)
        try:
            outputs = run(one.arrays)
            moved = [run(perturbed(one.arrays, MOVE, rng)) for _ in range(moves)]
        except Exception as error:
            failed.append(f"{one.name}: {' '.join(str(error).split())}")
            continue
        made.append(
            GoldenSet(one.name, one.arrays, outputs, one.generated, tuple(moved), one.photo)
        )
    if not made:
        raise InconclusiveError(
            f"onnxruntime runs {source.path} on none of {len(sets)} inputs ({failed[0]}); "
            "give inputs it was made for with --images or --inputs"
        )
    return Golden(
        source_file=source.path.name,
        source_sha256=source.digest,
        sets=tuple(made),
        frozen=frozen,
        failed=tuple(failed),
        seed=seed,
    )


def reference_session(source: Source) -> onnxruntime.InferenceSession:
    """The source file itself under onnxruntime, graph optimisations off, one thread.

    Raises:
        UnsupportedModelError: onnxruntime refuses it.
    """
    try:
        return session_of(str(source.path))
    except Exception as error:
        raise UnsupportedModelError(
            f"onnxruntime, the judge of every artifact, cannot load {source.path}: "
            f"{' '.join(str(error).split())}"
        ) from error


def session_of(model: str | bytes) -> onnxruntime.InferenceSession:
    """A session whose bits can be compared: no graph optimisation, one thread."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def save(golden: Golden, path: Path) -> None:
    """Write a golden as `.npz` without pickles, whole or not at all.

    Layout: `meta`, a JSON text; `set/<i>/input/<j>`, `set/<i>/output/<j>` and, for the outputs of
    the k-th move, `set/<i>/moved/<k>/<j>`, numbered as the names in `meta`; `frozen/<j>`.

    Raises:
        UsageError: the folder is missing or cannot be written.
    """
    names = {
        "frozen": list(golden.frozen),
        "input": list(golden.sets[0].inputs),
        "output": list(golden.sets[0].outputs),
    }
    arrays = _numbered("frozen", names["frozen"], golden.frozen)
    for index, one in enumerate(golden.sets):
        arrays |= _numbered(f"set/{index}/input", names["input"], one.inputs)
        arrays |= _numbered(f"set/{index}/output", names["output"], one.outputs)
        for move, outputs in enumerate(one.moved):
            arrays |= _numbered(f"set/{index}/moved/{move}", names["output"], outputs)
    meta = {
        "format": _FORMAT,
        "source": {"file": golden.source_file, "sha256": golden.source_sha256},
        "runtime": golden.runtime,
        "seed": golden.seed,
        "names": names,
        "sets": [
            {
                "name": one.name,
                "generated": one.generated,
                "moves": len(one.moved),
                "photo": None if one.photo is None else asdict(one.photo),
            }
            for one in golden.sets
        ],
        "failed": list(golden.failed),
    }
    stream = io.BytesIO()
    np.savez_compressed(stream, meta=np.array(json.dumps(meta)), **arrays)  # type: ignore[arg-type]  # the stub takes **kwds for allow_pickle
    write_whole(path, stream.getvalue())


def load(path: Path) -> Golden:
    """Read what `save` wrote.

    Raises:
        UsageError: there is no such file, or it is not a golden.
    """
    arrays = read_npz(path)
    try:
        meta = json.loads(str(arrays["meta"]))
        if meta["format"] != _FORMAT:
            raise ValueError(f"format {meta['format']}, not {_FORMAT}")  # noqa: TRY301  # one message for all that is wrong
        names = meta["names"]
        sets = tuple(
            GoldenSet(
                one["name"],
                _named(f"set/{i}/input", names["input"], arrays),
                _named(f"set/{i}/output", names["output"], arrays),
                one["generated"],
                tuple(
                    _named(f"set/{i}/moved/{move}", names["output"], arrays)
                    for move in range(one["moves"])
                ),
                _photo(one.get("photo")),
            )
            for i, one in enumerate(meta["sets"])
        )
        return Golden(
            source_file=meta["source"]["file"],
            source_sha256=meta["source"]["sha256"],
            sets=sets,
            frozen=_named("frozen", names["frozen"], arrays),
            failed=tuple(meta["failed"]),
            runtime=meta["runtime"],
            seed=meta["seed"],
        )
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path} is not a golden ({error}); record it again") from error


def ports_of(golden: Golden) -> tuple[Port, ...]:
    """The source's outputs as far as their recorded shapes tell which axis counts rows."""
    ports = []
    for name, first in golden.sets[0].outputs.items():
        shapes = [one.outputs[name].shape for one in golden.sets]
        varies = [axis for axis, sizes in enumerate(zip(*shapes, strict=True)) if len({*sizes}) > 1]
        dims: tuple[int | None, ...] = tuple(
            None if axis in varies else size for axis, size in enumerate(first.shape)
        )
        rows = tuple(Rows(axis, "count") for axis in varies[:1])
        ports.append(Port(name, first.dtype.name, first.shape, dims, rows=rows))
    return tuple(ports)


def _photo(entry: Mapping[str, Any] | None) -> Photo | None:
    if entry is None:
        return None
    sizes = tuple((int(width), int(height)) for width, height in entry["sizes"])
    files = tuple(map(str, entry["files"]))
    return Photo(files, sizes, int(entry["width"]), int(entry["height"]), str(entry["fed"]))


def _numbered(prefix: str, names: Sequence[str], arrays: Mapping[str, Array]) -> dict[str, Array]:
    return {f"{prefix}/{number}": arrays[name] for number, name in enumerate(names)}


def _named(prefix: str, names: Sequence[str], arrays: Mapping[str, Array]) -> dict[str, Array]:
    return {name: arrays[f"{prefix}/{number}"] for number, name in enumerate(names)}


def _frozen(source: Source, options: Options) -> dict[str, Array]:
    declared = {value.name: value for value in source.model.graph.input}
    unknown = sorted(set(options.freeze) - set(declared))
    if unknown:
        known = ", ".join(map(repr, declared))
        raise UsageError(f"--freeze {unknown[0]}: no such input; there are {known}")
    return {name: as_declared(declared[name], value) for name, value in options.freeze.items()}
