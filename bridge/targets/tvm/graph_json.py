"""The graph executor's JSON, edited: other outputs, or only what stands behind given tensors.

`relay.build` gives machine code and a JSON that says in which order it runs. Two JSONs can share
one library, so the network and the tail of an artifact, each by itself, are the very machine code
of the whole and cost nothing to build. Source: src/runtime/graph_executor/graph_executor.h, whose
reader stops at the key `metadata`: what stands there is ours.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

Entry = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Graph:
    """A parsed JSON.

    Attributes:
        nodes: as the JSON has them.
        heads: the outputs, as (node, output of the node).
        first: the number of each node's first entry in the lists below.
        shapes, types, storage: of every entry.
        others: further lists of one number per entry.
    """

    nodes: tuple[Mapping[str, Any], ...]
    heads: tuple[Entry, ...]
    first: tuple[int, ...]
    shapes: tuple[tuple[int, ...], ...]
    types: tuple[str, ...]
    storage: tuple[int, ...]


def parse(text: str) -> Graph:
    """Read a JSON that `relay.build` wrote."""
    raw = json.loads(text)
    attributes = raw["attrs"]
    return Graph(
        nodes=tuple(raw["nodes"]),
        heads=tuple((head[0], head[1]) for head in raw["heads"]),
        first=tuple(raw["node_row_ptr"]),
        shapes=tuple(tuple(shape) for shape in attributes["shape"][1]),
        types=tuple(attributes["dltype"][1]),
        storage=tuple(attributes["storage_id"][1]),
    )


def renamed(graph: Graph, names: Mapping[str, str]) -> Graph:
    """The same graph with other names for inputs and parameters."""
    nodes = tuple(
        {**node, "name": names.get(node["name"], node["name"])} if node["op"] == "null" else node
        for node in graph.nodes
    )
    return replace(graph, nodes=nodes)


def write(
    graph: Graph,
    outputs: Mapping[str, Entry],
    inputs: Mapping[str, Entry] | None = None,
    notes: Mapping[str, Any] | None = None,
) -> str:
    """A JSON of what makes the outputs.

    Args:
        graph: the whole.
        outputs: name and entry of every output, in order.
        inputs: entries that become inputs of these names; what makes them is left out.
        notes: kept under `metadata`, beside the names of the outputs.
    """
    cut = {entry: name for name, entry in (inputs or {}).items()}
    needed = _needed(graph, list(outputs.values()), cut)
    nodes: list[dict[str, Any]] = []
    entries: list[int] = []
    row_ptr, place = [0], dict[Entry, Entry]()

    def add(node: dict[str, Any], old: Sequence[Entry]) -> None:
        for index, entry in enumerate(old):
            place[entry] = (len(nodes), index)
        nodes.append(node)
        entries.extend(graph.first[node_] + index for node_, index in old)
        row_ptr.append(len(entries))

    for entry, name in cut.items():
        add({"op": "null", "name": name, "inputs": []}, [entry])
    for number in needed:
        node = graph.nodes[number]
        count = graph.first[number + 1] - graph.first[number]
        made = [(number, index) for index in range(count)]
        moved = {**node, "inputs": [[*place[(i[0], i[1])], 0] for i in node["inputs"]]}
        kept = {entry: place[entry] for entry in made if entry in cut}
        add(moved, made)
        # An entry that was cut stays the input that it became.
        place.update(kept)
    storage = _storage(graph, nodes, row_ptr, entries, len(cut))
    written = {
        "nodes": nodes,
        "arg_nodes": [i for i, node in enumerate(nodes) if node["op"] == "null"],
        "heads": [[*place[entry], 0] for entry in outputs.values()],
        "attrs": {
            "dltype": ["list_str", [graph.types[entry] for entry in entries]],
            "shape": ["list_shape", [list(graph.shapes[entry]) for entry in entries]],
            "storage_id": ["list_int", storage],
        },
        "node_row_ptr": row_ptr,
        "metadata": {**(notes or {}), "outputs": list(outputs)},
    }
    # The runtime knows no \\u escape; it takes UTF-8 as it comes.
    return json.dumps(written, separators=(",", ":"), ensure_ascii=False)


def _storage(
    graph: Graph,
    nodes: Sequence[Mapping[str, Any]],
    row_ptr: Sequence[int],
    entries: Sequence[int],
    cut: int,
) -> list[int]:
    """The pool of memory of every entry; the first `cut` entries are inputs that were none before.

    The plan lets entries share a pool that do not live at once, and what became an input lives from
    the beginning: each gets a pool of its own, and so does what only gives it another shape.
    """
    pools: list[tuple[str, int]] = []
    for number, node in enumerate(nodes):
        for entry in range(row_ptr[number], row_ptr[number + 1]):
            if entry < cut:
                pools.append(("cut", entry))
            elif node.get("attrs", {}).get("func_name") == "__nop":
                source, index, _ = node["inputs"][0]
                pools.append(pools[row_ptr[source] + index])
            else:
                pools.append(("planned", graph.storage[entries[entry]]))
    compact = {pool: number for number, pool in enumerate(dict.fromkeys(pools))}
    return [compact[pool] for pool in pools]


def _needed(graph: Graph, wanted: list[Entry], cut: Mapping[Entry, str]) -> list[int]:
    """The nodes that make the wanted entries from those that are cut, in their order."""
    found = set[int]()
    pending = [entry for entry in wanted if entry not in cut]
    while pending:
        number, _ = pending.pop()
        if number in found:
            continue
        found.add(number)
        read = [(entry[0], entry[1]) for entry in graph.nodes[number]["inputs"]]
        pending.extend(entry for entry in read if entry not in cut)
    return sorted(found)
