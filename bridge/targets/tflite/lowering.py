"""A static model to one TFLite file: cut, convert the network, emit the rest, link."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Final

import numpy as np
import onnx

from bridge.errors import LoweringError, UsageError
from bridge.options import NmsForm, Options, Outputs, Quantize
from bridge.static_model import StaticModel, TensorType, tensor_types
from bridge.static_nms import StaticNms
from bridge.targets.base import Array, Lowered, LoweredNms, Port, ports
from bridge.targets.tflite import detections, metadata, postprocess, suppression
from bridge.targets.tflite.cut import Cut, cut, images
from bridge.targets.tflite.flatbuffer import Builder, Tensor
from bridge.targets.tflite.form import Form, own_outputs
from bridge.targets.tflite.link import Part, link
from bridge.targets.tflite.network import OUTPUT, Network, convert
from bridge.targets.tflite.operators import Emitter
from bridge.targets.tflite.quantise import COMPUTED, Quantised, quantise
from bridge.targets.tflite.quantise_ranges import Feeds, Floats, stored_sets
from bridge.targets.tflite.quantise_report import PROBED, Count
from bridge.targets.tflite.session import TfliteSession

TO_NHWC: Final = (0, 2, 3, 1)
TO_NCHW: Final = (0, 3, 1, 2)


def lower(static: StaticModel, options: Options, workdir: Path) -> Lowered:
    """See `TfliteTarget.lower`."""
    form = _form(static, options)
    plan = _Plan.of(form, keep_nchw=options.keep_nchw)
    inputs = tuple(_input(port, plan) for port in ports(static)[0])
    described = metadata.describe(inputs, form, options)
    network = _network(plan, inputs, options, workdir)
    files, nms = _files(plan, None if network is None else network.network)
    if described is not None:
        files["model"] = metadata.attach(files["model"], described)
    paths = {name: workdir / f"{name}.tflite" for name in files}
    for name, content in files.items():
        paths[name].write_bytes(content)
    _check(paths, inputs, form.outputs)
    return Lowered(
        path=paths["model"],
        inputs=inputs,
        outputs=form.outputs,
        nms=(*nms, *form.nms),
        assumptions=(*form.assumptions, *_bounds(nms)),
        warnings=(*form.warnings, *_unusable(described)),
        border=plan.cut.border if "tail" in paths else (),
        tail=paths.get("tail"),
        network=paths.get("network"),
        reference=form.reference,
        rounding=form.rounding,
        rounded_reference=form.rounded_reference,
        quantised=network is not None and network.narrow,
        details={
            "network_nodes": len(plan.cut.network),
            "tail_nodes": len(plan.cut.tail),
            **(network.details if network is not None else {}),
        },
    )


def _unusable(described: metadata.Metadata | None) -> tuple[str, ...]:
    """Who asks for labels learns whether a client that goes by metadata can do without more."""
    if described is None or described.missing is None:
        return ()
    return (f"MediaPipe Tasks will not take this file as a detector: {described.missing}",)


def _bounds(nms: Sequence[LoweredNms]) -> tuple[str, ...]:
    """What the suppressions take for granted that compare their best candidates only."""
    return tuple(
        f"NonMaxSuppression '{one.node}' compares the {one.candidates} best of "
        f"{one.classes} x {one.boxes} (class, box) pairs: {one.because}"
        for one in nms
        if one.candidates is not None
    )


def _form(static: StaticModel, options: Options) -> Form:
    if options.nms is NmsForm.POSTPROCESS:
        if options.outputs is Outputs.OWN:
            raise UsageError(
                "--nms postprocess returns the four outputs of its operator, and --outputs own "
                "asks for the model's: leave one of them out"
            )
        return postprocess.form(static, options)
    if options.outputs is Outputs.DETECTIONS:
        return detections.form(static, options)
    return own_outputs(static, options)


@dataclass(frozen=True, slots=True)
class _Plan:
    """A cut model and the layouts of what goes in.

    Attributes:
        inputs: the graph inputs, in order.
        nhwc_ports: graph inputs that the artifact takes as NHWC.
        nhwc: what the network takes as NHWC: some of those, and tensors of the head.
    """

    form: Form
    cut: Cut
    types: Mapping[str, TensorType]
    constants: Mapping[str, onnx.TensorProto]
    inputs: tuple[str, ...]
    nhwc_ports: frozenset[str]
    nhwc: frozenset[str]

    @classmethod
    def of(cls, form: Form, *, keep_nchw: bool) -> "_Plan":
        """Cut the form's model, and decide which images turn."""
        graph, types, parts = form.model.graph, tensor_types(form.model), cut(form.model)
        inputs = tuple(value.name for value in graph.input)
        head_reads = {name for node in parts.head for name in node.input}
        head_makes = {name for node in parts.head for name in node.output}
        # What two parts read, or the tail alone, stays as the model has it.
        direct = set(parts.network_inputs) - head_reads - head_makes - set(parts.border)
        through_head = head_reads - set(parts.network_inputs) - set(parts.border)
        turned = images((*parts.head, *parts.network), inputs, types)
        nhwc_ports = frozenset() if keep_nchw else turned & (direct | through_head)
        in_network = images(parts.network, parts.network_inputs, types)
        return cls(
            form=form,
            cut=parts,
            types=types,
            constants={tensor.name: tensor for tensor in graph.initializer},
            inputs=inputs,
            nhwc_ports=nhwc_ports,
            nhwc=(nhwc_ports & direct) | (in_network & head_makes),
        )

    def internal(self, name: str) -> str:
        """A name inside the file that no input or output of the model has."""
        taken = {*self.inputs, *(port.name for port in self.form.outputs)}
        while (name := f"bridge/{name}") in taken:
            pass
        return name

    def internal_output(self, name: str) -> str:
        """What an output is called until the parts are linked: an input may have its name."""
        return self.internal(f"output/{name}")


def _input(port: Port, plan: _Plan) -> Port:
    if port.name not in plan.nhwc_ports:
        return port
    shape = tuple(port.shape[axis] for axis in TO_NHWC)
    return Port(port.name, port.dtype, shape, port.source_shape, TO_NHWC)


def _network(
    plan: _Plan, inputs: Sequence[Port], options: Options, workdir: Path
) -> Quantised | None:
    """The converted network, narrow where that is asked for; None where all is tail.

    Raises:
        UsageError: something is to be narrow, and there is no network.
    """
    asked = options.quantization
    if plan.cut.network:
        network = convert(plan.cut, plan.form.model, plan.types, plan.nhwc, options.qdq)
        sets = _noise(inputs) if asked.calibrate is None else _sets(inputs, asked.calibrate)
        feeds = list(_feeds(plan, network, sets, workdir)) if asked.form in COMPUTED else []
        if asked.report is None:
            return quantise(network, asked, feeds)
        with _counting(plan, network, workdir) as count:
            return quantise(network, asked, feeds, count)
    if asked.form is not Quantize.NONE:
        raise UsageError(
            f"--quantize {asked.form}: nothing of this model is a network; its arithmetic decides "
            "which detections there are, and stays float32"
        )
    return None


@contextmanager
def _counting(plan: _Plan, network: Network, workdir: Path) -> Iterator[Count | None]:
    """What counts the detections that the tail makes of a network's output.

    None where outputs are not padded, or the tail reads inputs of the model as well.
    """
    counts = {rows.count for port in plan.form.outputs for rows in port.rows}
    if not counts or network.border != plan.cut.border:
        yield None
        return
    path = workdir / "count.tflite"
    path.write_bytes(_tail(plan, lambda emitter: _declare(emitter, plan.cut.border))[0])
    with TfliteSession(path, threads=1) as tail:

        def count(flat: Floats) -> int:
            ends = np.cumsum(network.sizes)[:-1]
            border = {
                name: part.reshape(plan.types[name].shape)
                for name, part in zip(network.border, np.split(flat, ends), strict=True)
            }
            made = tail.run(border)
            return sum(int(made[name].sum()) for name in counts)

        yield count


def _noise(inputs: Sequence[Port]) -> Iterator[dict[str, Array]]:
    """Numbers that show which layers do not stand int8, where there are no data."""
    rng = np.random.default_rng(0)
    for _ in range(PROBED):
        yield {
            port.name: (
                rng.standard_normal(port.shape).astype(port.dtype)
                if port.dtype.startswith("float")
                else rng.integers(0, 128, port.shape).astype(port.dtype)
            )
            for port in inputs
        }


def _sets(inputs: Sequence[Port], calibration: Path) -> Iterator[dict[str, Array]]:
    """Sets of an `.npz` file, laid as the artifact takes them."""
    for arrays in stored_sets(calibration, [port.name for port in inputs]):
        yield {
            port.name: arrays[port.name]
            if port.transpose is None
            else arrays[port.name].transpose(port.transpose)
            for port in inputs
        }


def _feeds(
    plan: _Plan,
    network: Network,
    sets: Iterable[Mapping[str, Array]],
    workdir: Path,
) -> Iterator[Feeds]:
    """What the network takes where the artifact takes these sets."""
    made = {name for node in plan.cut.head for name in node.output}
    from_head = {inner: name for name, inner in network.inputs.items() if name in made}
    direct = {inner: name for name, inner in network.inputs.items() if name not in made}
    if not from_head:
        yield from ({inner: one[name] for inner, name in direct.items()} for one in sets)
        return
    path = workdir / "head.tflite"
    read = {name for node in plan.cut.head for name in node.input}
    ends = {inner: plan.internal(inner) for inner in from_head}
    path.write_bytes(
        link([Part(_head(plan, network))], [name for name in plan.inputs if name in read], ends)
    )
    with TfliteSession(path, threads=1) as head:
        for one in sets:
            yield {**{inner: one[name] for inner, name in direct.items()}, **head.run(one)}


def _files(plan: _Plan, network: Network | None) -> tuple[dict[str, bytes], tuple[LoweredNms, ...]]:
    """`model`, and where there is a network, `tail` and `network` apart; and the suppressions."""
    if network is None:
        content, nms = _tail(plan, lambda emitter: _declare(emitter, plan.inputs))
        return {"model": content}, nms
    front = _front(plan, network)
    whole, nms = _tail(plan, lambda emitter: _receive(emitter, plan, network), plan.internal_output)
    outputs = {port.name: plan.internal_output(port.name) for port in plan.form.outputs}
    alone, _ = _tail(plan, lambda emitter: _declare(emitter, plan.cut.border))
    shown = {name: plan.internal_output(name) for name in plan.cut.border}
    return {
        "model": link([*front, Part(whole)], plan.inputs, outputs),
        "tail": alone,
        "network": link([*front, Part(_border(plan, network))], plan.inputs, shown),
    }, nms


# In front of the border


def _front(plan: _Plan, network: Network) -> list[Part]:
    """Head and network, the tensors between them under internal names."""
    head_makes = {name for node in plan.cut.head for name in node.output}
    names = {
        inner: plan.internal(inner) if name in head_makes else name
        for name, inner in network.inputs.items()
    }
    part = Part(network.content, {**names, OUTPUT: plan.internal(OUTPUT)})
    if not plan.cut.head:
        return [part]
    return [Part(_head(plan, network)), part]


def _head(plan: _Plan, network: Network) -> bytes:
    """Integer work in front of the network, an image of it in the layout the network wants."""
    emitter = _emitter(plan, [])
    read = {name for node in plan.cut.head for name in node.input}
    for name in (name for name in plan.inputs if name in read):
        if name in plan.nhwc_ports:
            type_ = plan.types[name]
            shape = [type_.shape[axis] for axis in TO_NHWC]
            given = emitter.builder.input(name, shape, type_.dtype)
            emitter.tensors[name] = emitter.builder.transpose(given, TO_NCHW)
        else:
            emitter.input(name)
    emitter.emit(plan.cut.head)
    made = {name for node in plan.cut.head for name in node.output}
    for name, inner in network.inputs.items():
        if name in made:
            tensor = emitter.tensor(name)
            turned = emitter.builder.transpose(tensor, TO_NHWC) if name in plan.nhwc else tensor
            emitter.builder.output(plan.internal(inner), turned)
    return emitter.builder.pack()


def _border(plan: _Plan, network: Network) -> bytes:
    """What cuts the network's flat output into the border tensors, under internal names."""
    emitter = _emitter(plan, [])
    _receive(emitter, plan, network)
    for name in plan.cut.border:
        emitter.builder.output(plan.internal_output(name), emitter.tensor(name))
    return emitter.builder.pack()


# Behind the border


def _emitter(plan: _Plan, nms: list[LoweredNms]) -> Emitter:
    def suppress(
        builder: Builder, call: StaticNms, boxes: Tensor, scores: Tensor
    ) -> tuple[Tensor, Tensor]:
        best_first = call.name in plan.form.best_first
        selected, count, lowered = suppression.emit(
            builder, call, boxes, scores, best_first=best_first
        )
        nms.append(lowered)
        return selected, count

    return Emitter(Builder(), plan.types, plan.constants, suppress)


def _tail(
    plan: _Plan, feed: Callable[[Emitter], None], named: Callable[[str], str] = str
) -> tuple[bytes, tuple[LoweredNms, ...]]:
    """The tail as a file, and its suppressions.

    Args:
        plan: what to emit.
        feed: gives the emitter what the tail reads.
        named: what the file calls an output.
    """
    nms: list[LoweredNms] = []
    emitter = _emitter(plan, nms)
    feed(emitter)
    emitter.emit(plan.cut.tail)
    made = {value.name: emitter.tensor(value.name) for value in plan.form.model.graph.output}
    finished = plan.form.finish(emitter.builder, made)
    for port in plan.form.outputs:
        emitter.builder.output(named(port.name), finished[port.name])
    return emitter.builder.pack(), tuple(nms)


def _declare(emitter: Emitter, names: tuple[str, ...]) -> None:
    """Inputs as the model has them."""
    for name in names:
        emitter.input(name)


def _receive(emitter: Emitter, plan: _Plan, network: Network) -> None:
    """The network's flat output, cut up, and the graph inputs that no part before has."""
    total = sum(prod(plan.types[name].shape) for name in network.border)
    flat = emitter.builder.input(plan.internal(OUTPUT), (total,), "float32")
    at = 0
    for name in network.border:
        shape = plan.types[name].shape
        part = emitter.builder.slice(flat, [at], [prod(shape)])
        emitter.tensors[name] = emitter.builder.reshape(part, shape)
        at += prod(shape)
    read_before = {name for node in (*plan.cut.head, *plan.cut.network) for name in node.input}
    border = set(plan.cut.border)
    _declare(emitter, tuple(x for x in plan.inputs if x in border or x not in read_before))


# The check


def _check(paths: Mapping[str, Path], inputs: tuple[Port, ...], outputs: tuple[Port, ...]) -> None:
    """Load the file and run it: some faults show only then.

    Raises:
        LoweringError: the interpreter refuses it, or an output is not what was promised.
    """
    zeros = {port.name: np.zeros(port.shape, port.dtype) for port in inputs}
    try:
        with TfliteSession(paths["model"], threads=1) as session:
            found = session.run(zeros)
    except (RuntimeError, ValueError) as error:
        raise LoweringError(_blame(paths.get("network"), zeros, error)) from error
    for port in outputs:
        array = found[port.name]
        if (array.dtype.name, array.shape) != (port.dtype, port.shape):
            raise LoweringError(
                f"output {port.name} came out as {array.dtype}{list(array.shape)} in place of "
                f"{port.dtype}{list(port.shape)}; please report it with the model"
            )


def _blame(network: Path | None, zeros: Mapping[str, Array], error: Exception) -> str:
    """Which part it is that the interpreter refuses."""
    text = " ".join(str(error).split())[:500]
    if network is not None:
        try:
            with TfliteSession(network, threads=1) as session:
                session.run(zeros)
        except (RuntimeError, ValueError):
            return (
                f"the network does not run as onnx2tf wrote it, or as it was quantised: {text}; "
                "replace that operator, or leave it float (--keep-float)"
            )
    return f"the interpreter refuses the tail: {text}; please report it with the model"
