"""Teeth: each rule of the static surgery, broken on purpose, is caught by a test of its own."""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
STATIC = Path("bridge/surgery/static")


@dataclass(frozen=True, slots=True)
class Mutation:
    """One line of one file written otherwise; `caught_by` must then fail."""

    what: str
    file: str
    right: str
    wrong: str
    caught_by: str


MUTATIONS = (
    Mutation(
        "positions are returned as they are, not as ranks",
        "rows.py",
        "    if x.space is None:\n        return x\n    if isinstance(x.space, Columns):",
        "    if x.dtype is not None:\n        return x\n    if isinstance(x.space, Columns):",
        "test_suppression.py",
    ),
    Mutation(
        "TopK sees masked rows",
        "selection.py",
        "    return fill(g, x, axis, extreme)",
        "    return x",
        "test_selection.py",
    ),
    Mutation(
        "TopK over a real -inf is not compacted first",
        "selection.py",
        "        x = compact(g, x, axis)\n    return fill(g, x, axis, extreme)",
        "        pass\n    return fill(g, x, axis, extreme)",
        "test_selection.py",
    ),
    Mutation(
        "a selection of a selection forgets the outer mask",
        "selection.py",
        "    mask = fill_all(g, x, value=False)",
        "    mask = x",
        "test_selection.py",
    ),
    Mutation(
        "the suppression sees masked boxes",
        "suppression.py",
        "[boxes, fill(g, scores, 2, -np.inf)]",
        "[boxes, scores]",
        "test_suppression.py",
    ),
    Mutation(
        "masked entries of an index are not made legal",
        "rows.py",
        "    return index if legal else fill_all(g, index, 0)",
        "    return index",
        "test_indexing.py",
    ),
    Mutation(
        "the first rows of a scattered group are cut without compaction",
        "slices.py",
        "        return compact(g, x, axis, end)",
        "        return compact(g, replace(x, dims=x.shape), axis, end)",
        "test_slices.py",
    ),
    Mutation(
        "rows are reversed from the end of the padding",
        "slices.py",
        'g.emit("Sub", [g.count(rows - 1), iota])',
        'g.emit("Sub", [g.int64(length(dim) - 1), iota])',
        "test_slices.py",
    ),
    Mutation(
        "reductions see masked rows",
        "reductions.py",
        "        x = fill(g, x, k, _neutral(call.op_type, x.dtype))",
        "        pass",
        "test_reductions.py",
    ),
    Mutation(
        "the maximum of no integers is the lowest one",
        "reductions.py",
        "        result = _zero_without_rows(g, result, [x.dims[k] for k in masked])",
        "        pass",
        "test_reductions.py",
    ),
    Mutation(
        "CumSum adds masked rows",
        "reductions.py",
        "    x = fill(g, x, axis, 0)",
        "    pass",
        "test_reductions.py",
    ),
    Mutation(
        "masked rows of a scatter write",
        "scatter.py",
        "            index = fill(g, index, k, x.shape[axis])",
        "            index = fill(g, index, k, 0)",
        "test_scatter.py",
    ),
    Mutation(
        "masked rows of ScatterND write",
        "scatter.py",
        '        index = tagged(g.emit("Where", [mask, index, spare]), index.dims)',
        "        del mask, spare",
        "test_scatter.py",
    ),
    Mutation(
        "masked rows show behind a Pad",
        "padding.py",
        "        x = tagged(choose(g, mask, x, value), x.dims)",
        "        del mask",
        "test_padding.py",
    ),
    Mutation(
        "outputs are not zero behind their rows",
        "outputs.py",
        "        x = fill(g, x, axis, x.dtype.type(0).item())",
        "        pass",
        "test_outputs.py",
    ),
    Mutation(
        "rows of different selections meet",
        "rows.py",
        "    if len({group.count for group in groups}) > 1:",
        "    if not groups:",
        "test_elementwise.py",
    ),
    Mutation(
        "masked rows count in a selection's number of rows",
        "groups.py",
        '    ones = g.emit("Cast", [mask], to=TensorProto.INT64)',
        '    ones = g.emit("Cast", [g.emit("Or", [mask, g.emit("Not", [mask])])], to=7)',
        "test_selection.py",
    ),
    Mutation(
        "an If is taken without comparing its branches",
        "control.py",
        "        if not _equal_without_rows(g, nothing, result, zeros):",
        "        if nothing is None:",
        "test_control.py",
    ),
)


def _mutated(mutation: Mutation, folder: Path) -> Path:
    """A copy of the package with one line written otherwise."""
    shutil.copytree(
        ROOT / "bridge", folder / "bridge", ignore=shutil.ignore_patterns("__pycache__")
    )
    shutil.copytree(ROOT / "tests", folder / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    path = folder / STATIC / mutation.file
    text = path.read_text(encoding="utf-8")
    assert text.count(mutation.right) == 1, f"{mutation.file} no longer reads {mutation.right!r}"
    path.write_text(text.replace(mutation.right, mutation.wrong), encoding="utf-8")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.what)
def test_a_broken_rule_is_caught_by_its_own_test(mutation: Mutation, tmp_path: Path) -> None:
    folder = _mutated(mutation, tmp_path)
    test = f"tests/surgery/static/{mutation.caught_by}"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", test, "-q", "-x", "-p", "no:cacheprovider"],
        cwd=folder,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(folder), "BRIDGE_SHARED": str(ROOT)},
    )
    # 1 is "tests failed"; anything else would be a copy that does not even run.
    assert done.returncode == 1, done.stdout[-2000:] + done.stderr[-2000:]
    assert "error" not in done.stdout.splitlines()[-1], done.stdout[-2000:]
