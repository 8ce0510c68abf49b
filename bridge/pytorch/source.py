"""The model a user names: found, given its weights, and wrapped so that an exporter takes it."""

import importlib
import importlib.util
import itertools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType

import torch
import torchvision
from torch import Tensor, nn

from bridge.errors import UsageError
from bridge.pytorch.quiet import quiet

SEED = 0
"""Of the weights a model starts with, where no file of weights is given."""

_FIRST_OUTPUTS = ("boxes", "scores", "labels")


class Wrapped(nn.Module):
    """A detector as a function of tensors that returns a tuple of tensors.

    torchvision's detectors take a list of images and return a dict per image; exporters want
    neither.
    """

    def __init__(self, model: nn.Module, output_names: Sequence[str] = ()) -> None:
        super().__init__()
        self.model = model
        self.takes_list = isinstance(model, _detectors())
        self.output_names = tuple(output_names)

    def named(self, *inputs: Tensor) -> dict[str, Tensor]:
        """Every tensor that the model returns, nested or not, under the name it has there.

        `boxes`, `scores`, `labels` come first. What has no name is `output`, or `output_0`, ...

        Raises:
            UsageError: it returns no tensor, or not as many as there are names for them.
        """
        result = self.model(list(inputs[0].unbind(0))) if self.takes_list else self.model(*inputs)
        found = sorted(_tensors(result), key=lambda item: _rank(item[0]))
        if not found:
            raise UsageError(f"the model returns {type(result).__name__} without a tensor in it")
        number = itertools.count()
        own = [
            name or (f"output_{next(number)}" if len(found) > 1 else "output") for name, _ in found
        ]
        names = self.output_names or own
        if len(names) != len(found):
            raise UsageError(
                f"--output-names gives {len(names)} names and the model has {len(found)} outputs: "
                f"{', '.join(own)}"
            )
        return dict(zip(names, (tensor for _, tensor in found), strict=True))

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """The tensors of `named`."""
        return tuple(self.named(*inputs).values())


def build(
    spec: str,
    *,
    weights: Path | None = None,
    options: Mapping[str, object] | None = None,
    output_names: Sequence[str] = (),
) -> Wrapped:
    """The model of a specification, in evaluation mode.

    Without `weights` its weights are what its constructor makes of seed 0.

    Args:
        spec: `torchvision:NAME` (a builder of `torchvision.models.detection`), or
            `module:callable` or `file.py:callable` (a `torch.nn.Module`, or what returns one).
        weights: a state dict, or a dict that holds one as `state_dict` or `model`. Read with
            `weights_only=True`: such a file cannot run code.
        options: keyword arguments of the callable.
        output_names: in place of the names that the model gives its outputs.

    Raises:
        UsageError: nothing of that name, no module comes of it, or the weights do not fit.
    """
    origin, found, name = spec.rpartition(":")
    if not found or not origin or not name:
        raise UsageError(f"{spec}: write torchvision:NAME or module:callable")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        model = _made(spec, origin, name, dict(options or {}))
    if weights is not None:
        _load_weights(model, weights)
    wrapped: Wrapped = Wrapped(model, output_names).eval()
    return wrapped


def _made(spec: str, origin: str, name: str, options: dict[str, object]) -> nn.Module:
    if origin == "torchvision":
        options = {"weights": None, "weights_backbone": None, **options}
        builder = _torchvision_builder(name)
    else:
        builder = _attribute(spec, _module(spec, origin), name)
    if isinstance(builder, nn.Module):
        return builder
    try:
        model = builder(**options)
    except TypeError as error:
        raise UsageError(
            f"{spec} cannot be called with {options or 'no arguments'}: {error}"
        ) from error
    if not isinstance(model, nn.Module):
        raise UsageError(f"{spec} gives a {type(model).__name__}, not a torch.nn.Module")
    return model


def _torchvision_builder(name: str) -> Callable[..., object]:
    detection = torchvision.models.detection
    known = torchvision.models.list_models(module=detection)
    if name not in known:
        raise UsageError(f"torchvision has no detector {name!r}; it has {', '.join(known)}")
    builder: Callable[..., object] = torchvision.models.get_model_builder(name)
    return builder


def _module(spec: str, origin: str) -> ModuleType:
    """The user's own module; importing it runs it, which is what was asked for."""
    if origin.endswith(".py"):
        return _module_of_file(spec, Path(origin))
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        return importlib.import_module(origin)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{origin}.".startswith(f"{error.name}."):
            raise
        raise UsageError(f"{spec}: there is no module {error.name!r} here or installed") from error


def _module_of_file(spec: str, path: Path) -> ModuleType:
    module_spec = importlib.util.spec_from_file_location(path.stem, path)
    if not path.is_file() or module_spec is None or module_spec.loader is None:
        raise UsageError(f"{spec}: there is no file {path}")
    module = importlib.util.module_from_spec(module_spec)
    sys.modules[path.stem] = module
    module_spec.loader.exec_module(module)
    return module


def _attribute(spec: str, module: ModuleType, name: str) -> Callable[..., object]:
    found: Callable[..., object] | None = getattr(module, name, None)
    if not callable(found):
        raise UsageError(f"{spec}: module {module.__name__} has no callable {name!r}")
    return found


def _load_weights(model: nn.Module, path: Path) -> None:
    try:
        with quiet():
            loaded = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from error
    except Exception as error:
        # The restricted unpickler lets through whatever a damaged file makes it stumble over.
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UsageError(
            f"{path} does not hold plain weights ({reason}); "
            "save model.state_dict() with torch.save"
        ) from error
    for key in ("state_dict", "model"):
        if isinstance(loaded, dict) and isinstance(loaded.get(key), dict):
            loaded = loaded[key]
    try:
        unlike = model.load_state_dict(loaded, strict=False)
    except (RuntimeError, TypeError, AttributeError) as error:
        raise UsageError(f"the weights of {path} do not fit the model: {error}") from error
    missing, unexpected = unlike.missing_keys, unlike.unexpected_keys
    if missing or unexpected:
        raise UsageError(
            f"the weights of {path} do not fit the model: it needs {_first(missing)}, which the "
            f"file has not; the file has {_first(unexpected)}, which the model has not"
        )


def _first(names: Sequence[str]) -> str:
    if not names:
        return "nothing"
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


def _detectors() -> tuple[type[nn.Module], ...]:
    """Torchvision's detectors, which take a list of images and return a list of dicts."""
    detection = torchvision.models.detection
    return (
        detection.generalized_rcnn.GeneralizedRCNN,
        detection.ssd.SSD,
        detection.retinanet.RetinaNet,
        detection.fcos.FCOS,
    )


def _tensors(value: object, name: str = "", place: str = "") -> Iterator[tuple[str, Tensor]]:
    """Every tensor in a nest of tuples, lists and dicts with its name ("" where it has none).

    The same key in several items of a list becomes `key_0`, `key_1`, ...
    """
    if isinstance(value, Tensor):
        yield name and name + place, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _tensors(item, str(key), place)
    elif isinstance(value, tuple) and hasattr(value, "_asdict"):
        yield from _tensors(value._asdict(), name, place)
    elif isinstance(value, (tuple, list)):
        for i, item in enumerate(value):
            yield from _tensors(item, name, f"{place}_{i}" if len(value) > 1 else place)


def _rank(name: str) -> int:
    return _FIRST_OUTPUTS.index(name) if name in _FIRST_OUTPUTS else len(_FIRST_OUTPUTS)
