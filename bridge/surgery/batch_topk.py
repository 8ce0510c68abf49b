"""Many equal branches, one per class, become one branch over all classes.

Given:   for each class c: Gather(%s float32[N, C], c) -> mask -> TopK(k = K) -> gathers [K, 4], [K]
         the branches of all classes -> Concat(axis = 0) [C * K, 4], [C * K]
Result:  Gather(%s, all c) -> Transpose [C, N] -> mask -> TopK(k = K) on the last axis [C, K]
         -> gathers [C, K, 4], [C, K] -> Reshape [C * K, 4], [C * K]

A lane is what one branch has where another branch has its own; lanes that are computed alike are
computed together, with the class as a new first axis. Every operator that has a rule here computes
each lane by itself, and computes it the same: the result is equal bit for bit. SSD heads have 90
such branches of a dozen nodes each, which every target pays for.

Declines: branches that differ in more than constants, operators without a rule, sums of floats
          (their order may differ), branches that are read one by one elsewhere.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_graphsurgeon as gs

from bridge.options import Options
from bridge.static_model import Finding
from bridge.surgery.edit import Builder, Tensor, producer_of, rewrite, shape_of, value_of
from bridge.surgery.lanes import Lane, Pack, emit, lane_of, pick_of
from bridge.surgery.runner import Outcome

_DEEPEST = 64
"""Steps from the end of a branch to its beginning; what is deeper is no branch of a head."""


def batch_topk(graph: gs.Graph, options: Options) -> Outcome:
    """Join the branches in front of every Concat where each of them holds a TopK."""
    del options
    if not any(node.op == "TopK" for node in graph.nodes):
        return Outcome()
    builder = Builder.of(graph)
    packer = _Packer(builder)
    found = []
    for node in [node for node in graph.nodes if _may_join(node)]:
        pack = packer.pack(tuple(node.inputs))
        if pack is not None and not pack.shared:
            found.append((node, pack))
    findings: list[Finding] = []
    for lanes in sorted({len(node.inputs) for node, _ in found}):
        joints = [(node, pack) for node, pack in found if len(node.inputs) == lanes]
        members = list(_members(pack for _, pack in joints))
        topks = [node for node in members if node.op == "TopK"]
        if not topks:
            continue
        alone = _read_alone(topks, [*members, *(node for node, _ in joints)])
        if alone is not None:
            what = f"{lanes} equal branches stay as they are: {alone} reads one of them"
            findings.append(Finding(topks[0].name, what, changed=False))
            continue
        for node, pack in joints:
            _join(builder, node, pack)
        what = f"{lanes} equal branches joined: {len(topks) // lanes} TopK in place of {len(topks)}"
        findings.append(Finding(topks[0].name, what, changed=True))
    builder.done()
    return Outcome(tuple(findings))


def _may_join(node: gs.Node) -> bool:
    if node.op != "Concat" or len(node.inputs) < 2 or node.attrs.get("axis") != 0:
        return False
    first = node.inputs[0]
    return all(
        tensor.shape == first.shape
        and tensor.dtype == first.dtype
        and producer_of(tensor) is not None
        for tensor in node.inputs
    )


def _members(packs: Iterable[Pack]) -> Iterator[gs.Node]:
    """Every node that computes a lane of the packs or of what they are computed from."""
    pending = list(packs)
    seen: set[int] = set()
    while pending:
        pack = pending.pop()
        if id(pack) not in seen:
            seen.add(id(pack))
            yield from (node for node in pack.nodes if id(node) not in seen)
            seen.update(id(node) for node in pack.nodes)
            pending.extend(pack.sources)


def _read_alone(topks: Iterable[gs.Node], inside: Iterable[gs.Node]) -> str | None:
    """The name of a node that reads a branch by itself, for which the branch would have to stay."""
    known = {id(node) for node in inside}
    readers = (reader for topk in topks for output in topk.outputs for reader in output.outputs)
    return next((reader.name for reader in readers if id(reader) not in known), None)


def _join(builder: Builder, node: gs.Node, pack: Pack) -> None:
    """Concat(lanes) is the pack with its first two axes made one."""
    (joined,) = node.outputs
    rewrite(node, [])
    target = builder.ints(f"{joined.name}/shape", shape_of(joined))
    builder.add("Reshape", joined.name, [pack.tensor, target], [joined], {})


@dataclass(slots=True)
class _Packer:
    """Packs lanes, each set of them once, so that the whole is linear in the graph."""

    builder: Builder
    packs: dict[tuple[int, ...], Pack | None] = field(default_factory=dict)
    results: dict[tuple[int, ...], tuple[Tensor, ...] | None] = field(default_factory=dict)

    def pack(self, lanes: tuple[Tensor, ...], depth: int = 0) -> Pack | None:
        """The lanes as one tensor; None where they are not computed alike, or by no rule."""
        key = tuple(id(tensor) for tensor in lanes)
        if key not in self.packs:
            self.packs[key] = self._pack(lanes, depth)
        return self.packs[key]

    def _pack(self, lanes: tuple[Tensor, ...], depth: int) -> Pack | None:
        first = lanes[0]
        if all(tensor is first for tensor in lanes):
            return Pack(first, shared=True)
        if any(not tensor.name for tensor in lanes):
            return Pack(first, shared=True) if all(not t.name for t in lanes) else None
        if any(t.shape != first.shape or t.dtype != first.dtype for t in lanes):
            return None
        known = [value for value in map(value_of, lanes) if value is not None]
        if len(known) == len(lanes):
            if all(np.array_equal(value, known[0]) for value in known):
                return Pack(first, shared=True)
            stacked = self.builder.constant(f"{first.name}/lanes", np.stack(known))
            return Pack(stacked, shared=False)
        if known or depth == _DEEPEST:
            return None
        return self._picked(lanes) or self._computed(lanes, depth)

    def _picked(self, lanes: Sequence[Tensor]) -> Pack | None:
        """Lanes that stand at constant positions on one axis of one tensor."""
        picks = [pick for pick in map(pick_of, lanes) if pick is not None]
        if len(picks) != len(lanes):
            return None
        source, axis, kept = picks[0].source, picks[0].axis, picks[0].kept
        if any(p.source is not source or (p.axis, p.kept) != (axis, kept) for p in picks):
            return None
        name = f"{lanes[0].name}/lanes"
        shape = list(shape_of(source))
        tensor = source
        if axis:
            # First, so that what is picked then lies in one piece.
            perm = [axis, *(a for a in range(len(shape)) if a != axis)]
            shape = [shape[a] for a in perm]
            tensor = self.builder.node("Transpose", name, [source], shape, perm=perm)
        tensor = self._rows(name, tensor, [pick.position for pick in picks])
        if kept:
            final = [len(lanes), *shape_of(lanes[0])]
            target = self.builder.ints(f"{name}/shape", final)
            tensor = self.builder.node("Reshape", name, [tensor, target], final)
        return Pack(tensor, shared=False)

    def _rows(self, name: str, tensor: Tensor, positions: Sequence[int]) -> Tensor:
        """The given positions of the first axis; a Slice where they are one run of it."""
        shape = [len(positions), *shape_of(tensor)[1:]]
        first, behind = positions[0], positions[0] + len(positions)
        if list(positions) != list(range(first, behind)):
            index = self.builder.ints(f"{name}/index", positions)
            return self.builder.node("Gather", name, [tensor, index], shape, axis=0)
        limits = [self.builder.ints(f"{name}/limit", [limit]) for limit in (first, behind, 0)]
        return self.builder.node("Slice", name, [tensor, *limits], shape)

    def _computed(self, lanes: Sequence[Tensor], depth: int) -> Pack | None:
        found = [lane for lane in map(lane_of, lanes) if lane is not None]
        if len(found) != len(lanes) or not all(lane.is_like(found[0]) for lane in found):
            return None
        sources: list[Pack] = []
        for column in zip(*(lane.operands for lane in found), strict=True):
            source = self.pack(tuple(column), depth + 1)
            if source is None:
                return None
            sources.append(source)
        if all(source.shared for source in sources):
            return None  # equal nodes with equal inputs: there is no class in it
        outputs = self._results(found, sources)
        if outputs is None:
            return None
        nodes = tuple(lane.node for lane in found)
        return Pack(outputs[found[0].output], False, nodes, tuple(sources))

    def _results(self, lanes: Sequence[Lane], sources: Sequence[Pack]) -> tuple[Tensor, ...] | None:
        """All outputs of the batched node, which is made once for all of them."""
        key = tuple(id(lane.node) for lane in lanes)
        if key not in self.results:
            self.results[key] = emit(self.builder, lanes[0], len(lanes), sources)
        return self.results[key]
