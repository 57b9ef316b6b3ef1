"""Load a model by name, with weights of known origin, and its preprocessing of pictures."""

import ast
import importlib
import importlib.util
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from predictors.errors import MissingBackendError, StretchError, UnknownNameError, UsageError, first_line, install_line, need
from predictors.files import MAX_WHOLE
from scheduler.bundle.preprocessing import IMAGENET, TABLE_HINT, Preprocessing
from stretch.network.models.families import find_family, model_names

if TYPE_CHECKING:
    import torch
    from torch import nn

    from stretch.network.capture.inputs import InputShapes

USUAL_INPUT = (1, 3, 224, 224)

#: Suffixes of model files: ONNX of any exporter, archives of torch.export, TFLite of any converter.
FILES = (".onnx", ".pt2", ".tflite")


@dataclass(frozen=True)
class LoadedModel:
    """A network ready to be captured."""

    module: "nn.Module"  # Network in evaluation mode.
    name: str  # Name as the user gave it.
    input_shape: "InputShapes"  # Default input shape, batch 1 first; for several inputs one shape each, by name or in order.
    weights_source: str  # ``default`` (trained), ``random``, ``file``, or ``given`` (as a factory returned them).
    weights_detail: str = ""  # Name of the weights, or why they are random.
    preprocessing: Preprocessing = IMAGENET  # Preprocessing of a picture for the model.
    warnings: list[str] = field(default_factory=list)  # Sentences for the user.


def load_model(
    name: str,
    *,
    weights: str = "default",
    seed: int = 0,
    trust_code: bool = False,
    input_shape: "InputShapes | None" = None,
    fit_statistics: bool = True,
) -> LoadedModel:
    """Build a model and give it weights.

    Args:
        name: A name of `model_names`, ``package.module:factory`` of an
            installed package, ``file.py:factory``, or a file of `FILES`.
        weights: ``default`` (trained ones if available, else random
            ones with a warning; a factory's own), ``none`` (random), or a
            .safetensors or .pth file.
        trust_code: Whether the code in ``file.py:factory`` or a ``.pt2`` archive may be executed.
        input_shape: Input shapes for a file or a factory's module, batch first, which a file may leave open; their own if None.
        fit_statistics: Whether random weights of a named network get fitting statistics by one inference; predictions need none.

    Raises:
        UnknownNameError: If there is no model with this name.
        UsageError: If a file of code is named without `trust_code`, or without a function.
        MissingBackendError: If torch is not installed.
        StretchError: If a factory fails or the weights do not fit.
    """
    if name.endswith(".py"):
        raise _without_factory(name)
    if name.endswith(".pt2") and not trust_code:
        raise UsageError(
            f"torch.export.load can execute what `{name}` says", "add --trust-code if you trust it, or give the network as .onnx"
        )
    if importlib.util.find_spec("torch") is None:
        raise MissingBackendError("building a model needs torch, which is not installed", install_line("torch"))
    import torch

    if not 0 <= seed <= MAX_WHOLE:
        raise UsageError(f"the seed {seed} is none", "a seed is a whole number from 0 of at most 63 bits")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        generator = torch.Generator().manual_seed(seed)
        if name.endswith(FILES):
            module = importlib.import_module(f"stretch.network.models.{name.rpartition('.')[2]}").read_module(name, input_shape)
            return _from_module(name, module, weights, generator if fit_statistics else None, "as the file has them", module.input_shape)
        family = find_family(name)
        if family is not None:
            return _from_family(name, *family, weights, generator if fit_statistics else None)
        # timm's own names have a colon too
        if ":" in name and not name.startswith("timm:"):
            return _from_factory(name, trust_code, weights, generator if fit_statistics else None, input_shape)
    if Path(name).exists():
        hint = f"give a file that ends in {', '.join(FILES)}, or `file.py:factory`; weights alone go to --weights"
        raise UsageError(f"`{name}` is no file that a network is read from", hint)
    raise UnknownNameError.among("model", name, [model_name for model_name, _ in model_names()])


def names_code(name: str) -> bool:
    """Return whether a model's name would execute code: ``file.py:factory``, ``package.module:factory`` or a ``.pt2`` archive."""
    if name.endswith(FILES):
        return name.endswith(".pt2")
    # prefixes of families may have a colon, such as timm's
    return ":" in name and find_family(name) is None and not name.startswith("timm:")


def is_file(name: str) -> bool:
    """Return whether a model's name is ``file.py:factory`` or a file of `FILES`."""
    return name.endswith(FILES) or name.rpartition(":")[0].endswith(".py")


def _from_family(name: str, family: Any, current: str, weights: str, generator: "torch.Generator | None") -> LoadedModel:
    module = family.build(current).eval()
    # families of other packages may leave the preprocessing to their modules
    value = getattr(family, "preprocessing", None)
    read = stated_preprocessing(module, name) if value is None else value(current)
    loaded = LoadedModel(module, name, family.input_shape(current), "random", "asked for", read, list(getattr(module, "warnings", [])))
    if weights == "default":
        reason = "nobody published trained ones"
        try:
            trained = family.default_weights(current)
        except OSError as error:
            trained, reason = None, str(error)
        if trained is not None:
            _load_exactly(module, name, *trained)
            return replace(loaded, weights_source="default", weights_detail=trained[1])
        loaded = replace(loaded, weights_detail=reason, warnings=[*loaded.warnings, f"`{name}` has random weights: {reason}"])
    return _with_weights(loaded, weights, generator)


def _from_factory(
    name: str, trust_code: bool, weights: str, generator: "torch.Generator | None", shape: "InputShapes | None"
) -> LoadedModel:
    from torch import nn

    module_name = name.rpartition(":")[0]
    with _import_from_folder(Path(module_name)) if module_name.endswith(".py") else nullcontext():
        factory = _factory(name, trust_code)
        try:
            module = factory()
        except Exception as error:
            raise StretchError(
                f"`{name}` cannot be built: {first_line(error)}", "name a function or class that needs no arguments and runs by itself"
            ) from error
    if not isinstance(module, nn.Module):
        raise StretchError(f"`{name}` returned {type(module).__name__}, not a torch.nn.Module")
    return _from_module(name, module.eval().float(), weights, generator, "as the factory returned them", shape)


def _from_module(
    name: str, module: "nn.Module", weights: str, generator: "torch.Generator | None", detail: str, shape: "InputShapes | None" = None
) -> LoadedModel:
    """Load a module that came with its own weights; without `shape`, the input shape is the module's own statement."""
    shape, read = _input_shape(module) if shape is None else shape, stated_preprocessing(module, name)
    if weights == "default":
        return LoadedModel(module, name, shape, "given", detail, read, list(getattr(module, "warnings", [])))
    if weights == "none":
        for child in module.modules():
            reset = getattr(child, "reset_parameters", None)
            if callable(reset):
                reset()
    return _with_weights(LoadedModel(module, name, shape, "random", "asked for", read), weights, generator)


def _with_weights(loaded: LoadedModel, weights: str, generator: "torch.Generator | None") -> LoadedModel:
    """Load weights from a file, or fit the statistics of random ones if there is a generator."""
    from stretch.network.models.weights import read_weights, settle

    if weights in ("default", "none"):
        try:
            if generator is not None:
                settle(loaded.module, loaded.input_shape, generator)
        except Exception as error:
            raise StretchError(f"`{loaded.name}` rejects an input of {loaded.input_shape}: {first_line(error)}") from error
        return loaded
    path = Path(weights)
    _load_exactly(loaded.module, loaded.name, read_weights(path), str(path))
    return replace(loaded, weights_source="file", weights_detail=str(path))


#: Modules that code from files imported from its own folder, by name, with their folders.
_NEIGHBOUR_MODULES: dict[str, str] = {}


@contextmanager
def _import_from_folder(file: Path) -> Iterator[None]:
    """Let code import modules from its file's folder; forget modules of other folders, which may have the same names."""
    folder, path = str(file.resolve().parent), list(sys.path)
    for name in [name for name, home in _NEIGHBOUR_MODULES.items() if home != folder]:
        sys.modules.pop(name, None)
        del _NEIGHBOUR_MODULES[name]
    modules = set(sys.modules)
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path[:] = path
        for name in sys.modules.keys() - modules:
            module = sys.modules[name]
            # a package without a file has folders
            paths = [getattr(module, "__file__", None) or "", *getattr(module, "__path__", ())]
            if any(path.startswith(os.path.join(folder, "")) and path != str(file.resolve()) for path in paths):
                _NEIGHBOUR_MODULES[name] = folder


def _factory(name: str, trust_code: bool) -> Callable[[], Any]:
    """Return the callable in ``module:factory`` or ``file.py:factory``."""
    module_name, _, attribute = name.rpartition(":")
    if module_name.endswith(".py"):
        if not trust_code:
            raise UsageError(f"`{module_name}` is code that would be executed", "add --trust-code if you trust it")
        module = _execute(Path(module_name))
    else:
        module = _import(module_name, name)
    factory: Callable[[], Any] | None = getattr(module, attribute, None)
    if not callable(factory):
        names = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise UnknownNameError.among(f"factory in {module_name}", attribute, names)
    return factory


def _without_factory(name: str) -> StretchError:
    """Return the error for a file of code that is given without a function; the file is parsed, not run."""
    path = Path(name)
    if not path.is_file():
        return StretchError(f"there is no file {path}", "give the path of your file as file.py:FUNCTION")
    try:
        body = ast.parse(path.read_bytes()).body
    except (SyntaxError, ValueError, RecursionError, OSError) as error:
        return StretchError(f"{path} is no Python code: {error}")
    result = [
        part.name for part in body if isinstance(part, ast.ClassDef) or (isinstance(part, ast.FunctionDef) and not _needs_arguments(part))
    ]
    public = [item for item in result if not item.startswith("_")]
    hint = f"{name}:{public[0]}" if len(public) == 1 else f"{name}:FUNCTION"
    names = f"; it has {', '.join(public)}" if len(public) > 1 else "" if public else "; it has none that needs no arguments"
    return UsageError(f"`{name}` is a file: name the function or class in it that makes the model", f"write `{hint}`{names}")


def _needs_arguments(function: ast.FunctionDef) -> bool:
    args = function.args
    positional = len(args.posonlyargs) + len(args.args) - len(args.defaults)
    return positional > 0 or any(default is None for default in args.kw_defaults)


def _execute(path: Path) -> Any:
    need(path.is_file(), f"there is no file {path}")
    spec = importlib.util.spec_from_file_location(f"_nn_stretch_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise StretchError(f"{path} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    # dataclasses look up their module in this table
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise StretchError(f"{path} cannot be imported: {type(error).__name__}: {error}") from error
    return module


def _import(module_name: str, name: str) -> Any:
    """Import an installed module; the current folder is not searched."""
    if not all(part.isidentifier() for part in module_name.split(".")):
        raise UnknownNameError(f"unknown model `{name}`", "`stretch list models` lists the names; a factory is package.module:factory")
    path = list(sys.path)
    sys.path[:] = [entry for entry in path if entry]
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise UnknownNameError(
            f"unknown model `{name}`: there is no module `{error.name}`", "is its package installed in this environment?"
        ) from error
    except Exception as error:
        raise StretchError(f"`{module_name}` cannot be imported: {type(error).__name__}: {error}") from error
    finally:
        sys.path[:] = path


def _input_shape(module: Any) -> "InputShapes":
    """Return a module's own statement of its inputs (``input_shape``, or timm's configuration), or the default shape."""
    stated = getattr(module, "input_shape", None)
    if isinstance(stated, Mapping) and stated and all(map(_is_shape, stated.values())):
        return {str(name): tuple(shape) for name, shape in stated.items()}
    if isinstance(stated, tuple | list) and _is_shape(stated):
        return tuple(stated)
    if isinstance(stated, tuple | list) and stated and all(map(_is_shape, stated)):
        return [tuple(shape) for shape in stated]
    config = getattr(module, "pretrained_cfg", None) or getattr(module, "default_cfg", None)
    size = config.get("input_size") if isinstance(config, dict) else None
    return (1, *size) if size else USUAL_INPUT


def _is_shape(stated: Any) -> bool:
    return isinstance(stated, tuple | list) and len(stated) > 0 and all(isinstance(n, int) for n in stated)


def _load_exactly(module: "nn.Module", name: str, tensors: "dict[str, torch.Tensor]", origin: str) -> None:
    """Load tensors whose names and shapes must equal the module's own."""
    state_dict = module.state_dict()
    needed = {key for key in state_dict if not key.endswith("num_batches_tracked")}
    for key in sorted(needed - tensors.keys()):
        raise StretchError(f"{origin} does not fit `{name}`: it lacks `{key}`")
    for key in sorted(tensors.keys() - state_dict.keys()):
        raise StretchError(f"{origin} does not fit `{name}`: it has `{key}`, the model has not")
    for key in sorted(needed):
        need(
            tensors[key].shape == state_dict[key].shape,
            f"{origin} does not fit `{name}`: `{key}` is {tuple(tensors[key].shape)}, the model needs {tuple(state_dict[key].shape)}",
        )
    module.load_state_dict(tensors, strict=False)


# A model's own statement of its preprocessing.


def stated_preprocessing(module: Any, name: str) -> Preprocessing:
    """Return the preprocessing in a module's attribute ``preprocessing`` or in timm's configuration; ImageNet's by default.

    Args:
        module: A model; its ``preprocessing`` is a `Preprocessing` or a table of the same fields.
    """
    stated = getattr(module, "preprocessing", None)
    if stated is None:
        return timm_preprocessing(getattr(module, "pretrained_cfg", None) or getattr(module, "default_cfg", None)) or IMAGENET
    try:
        table = msgspec.to_builtins(stated) if isinstance(stated, Preprocessing) else stated
        return msgspec.convert(table, Preprocessing)
    except msgspec.ValidationError as error:
        raise StretchError(f"the `preprocessing` of `{name}` cannot be used: {error}", TABLE_HINT) from error


def timm_preprocessing(config: Any) -> Preprocessing | None:
    """Return the preprocessing in a configuration of timm; None if it is not for colour pictures."""
    size = config.get("input_size") if isinstance(config, Mapping) else None
    if not size or len(size) != 3 or size[0] != 3:
        return None
    height = size[1]
    # timm rounds the side before the crop down
    crop = height / math.floor(height / (config.get("crop_pct") or IMAGENET.crop))
    interpolation = config.get("interpolation")
    try:
        return msgspec.convert(
            {
                "mean": config.get("mean") or IMAGENET.mean,
                "std": config.get("std") or IMAGENET.std,
                "crop": crop,
                # `random` is for training
                "interpolation": IMAGENET.interpolation if interpolation in (None, "", "random") else interpolation,
                "squash": config.get("crop_mode") == "squash",
            },
            Preprocessing,
        )
    except msgspec.ValidationError:
        return None
