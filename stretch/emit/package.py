"""A model or the network of a bundle as a package of plain torch, written in one step and compared with the network."""

import importlib.util
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import msgspec
import torch
from safetensors.torch import save_model
from torch import nn

from predictors.errors import StretchError, UsageError
from scheduler.bundle.load import MANIFEST, load_bundle
from stretch.capture.inputs import InputShapes
from stretch.capture.structure import tensors
from stretch.capture.trace import agrees
from stretch.emit.network import Sources, branched_sources, captured_sources
from stretch.models.load import names_code
from stretch.stages.network import read_network
from stretch.stages.reopen import reopen

WEIGHTS = "model.safetensors"

_INIT = '''"""{docstring}"""

from pathlib import Path

from safetensors.torch import load_model

from .network import {name}

__all__ = ["{name}", "load"]


def load() -> {name}:
    """The network with the weights of this folder, in evaluation mode."""
    model = {name}()
    load_model(model, Path(__file__).with_name("{weights}"))
    return model.eval()
'''

_EXAMPLE = '''"""Run the network on random input, and export it by torch: python -m {package}.example, from the folder above."""

import torch

from . import load

model = load()
example = ({inputs},)
with torch.no_grad():
    result = model(*example)
print([tuple(each.shape) for each in torch.utils._pytree.tree_leaves(result) if isinstance(each, torch.Tensor)])
torch.export.save(torch.export.export(model, example), "{package}.pt2")
'''


class EmitAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A package that was written."""

    package: Path  # Its folder.
    network: str  # Name of the network.
    branched: bool  # Whether it is the network of a bundle.
    files: list[str]  # Names of its files.
    segments: int  # Of a bundle's network, how many there are.
    max_error: float  # Largest difference of its outputs from the network's, as a share of the largest output.
    warnings: list[str]  # What a person should know.


def emit(
    source: str, out: str | Path, shape: InputShapes | None = None, *, weights: str = "default", seed: int = 0, trust_code: bool = False
) -> EmitAnswer:
    """Write a model as it is, or the branched network of a bundle, as a Python package without nn-stretch.

    Args:
        source: Folder of a float bundle, or a model: a name, Python code, a file.
        out: Folder of the package, which does not exist or is empty; its name is that of the package.
        shape: Of a model's input, batch first; its usual one if None.
        weights: Of a model: ``default``, ``none`` or a file.
    """
    folder = Path(out)
    check_folder(folder)
    if (Path(source) / MANIFEST).is_file() or (Path(source).is_dir() and not names_code(source)):
        if shape is not None or weights != "default":
            raise UsageError(f"{source} is a bundle, which has its own input and weights", "leave the options of a model out")
        bundle = load_bundle(source, check_hashes=True)
        networks = reopen(bundle)
        name = bundle.manifest.model.name
        sources = branched_sources(networks.original.graph, networks.model)
        files, error = write_package(folder, sources, networks.model, f"{sources.name} in branches, written by nn-stretch.")
        count = len(networks.model.design.segments)
        return EmitAnswer(package=folder, network=name, branched=True, files=files, segments=count, max_error=error, warnings=[])
    network = read_network(source, shape, weights=weights, seed=seed, trust_code=trust_code, portable=True)
    sources = captured_sources(network.captured)
    files, error = write_package(folder, sources, network.captured.module, f"{sources.name}, written by nn-stretch.")
    return EmitAnswer(
        package=folder,
        network=network.graph.name,
        branched=False,
        files=files,
        segments=1,
        max_error=error,
        warnings=list(network.loaded.warnings),
    )


def check_folder(out: Path) -> None:
    """Refuse a folder that the package cannot be written to, before any work is done."""
    if not out.name.isidentifier():
        raise UsageError(f"`{out.name}` is no name of a Python package", "name the folder by letters, digits and underscores")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"there is something at {out} already", "name another folder, or remove it")
    if not out.absolute().parent.is_dir():
        raise UsageError(f"the folder of {out} does not exist", "make it first")


def write_package(out: Path, sources: Sources, model: nn.Module, docstring: str) -> tuple[list[str], float]:
    """Write the files, import them, and see that they compute what the network computes.

    Args:
        out: The folder, which does not exist or is empty.

    Returns:
        Names of the files, and the largest difference from the network's outputs as a share of their largest.
    """
    out = out.absolute()
    try:
        staging = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
        try:
            folder = staging / out.name
            folder.mkdir()
            _write(folder, out.name, sources, docstring)
            error = _filled(folder, sources, model)
            names = sorted(file.name for file in folder.iterdir())
            if out.exists():
                out.rmdir()
            folder.rename(out)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    except OSError as error:
        raise StretchError(f"cannot write the package to {out}: {error.strerror or error}", "choose a writable folder") from error
    return names, error


def _write(folder: Path, package: str, sources: Sources, docstring: str) -> None:
    inputs = ", ".join(f"torch.randn({', '.join(map(str, shape))})" for shape in sources.inputs)
    for name, text in sources.modules.items():
        (folder / f"{name}.py").write_text(text)
    (folder / "__init__.py").write_text(_INIT.format(docstring=docstring, name=sources.name, weights=WEIGHTS))
    (folder / "example.py").write_text(_EXAMPLE.format(package=package, inputs=inputs))


def _filled(folder: Path, sources: Sources, model: nn.Module) -> float:
    """Fill the network of the package with its weights, write them, and compare."""
    with _imported(folder) as package:
        module = getattr(package, sources.name)()
        missing, unexpected = module.load_state_dict(sources.tensors, strict=False)
        names = set(sources.tensors)
        shared = {name for name in missing if _shared(module, name, names)}
        lacking = [name for name in missing if name not in shared and not name.endswith("num_batches_tracked")]
        if lacking or unexpected:
            raise StretchError(f"the package lacks `{(lacking or unexpected)[0]}`", "please report this")
        save_model(module, str(folder / WEIGHTS))
        loaded = package.load()
        generator = torch.Generator().manual_seed(0)
        xs = [torch.randn(shape, generator=generator) for shape in sources.inputs]
        with torch.no_grad():
            results, wanted = loaded(*(x.clone() for x in xs)), model(*(x.clone() for x in xs))
    largest = 0.0
    for a, b in zip(tensors(results), tensors(wanted), strict=True):
        if not agrees(a, b):
            raise StretchError("the package computes something else than the network", "please report this")
        largest = max(largest, float((a - b).abs().max() / b.abs().max().clamp_min(1e-30)))
    return largest


def _shared(model: nn.Module, name: str, stored_names: set[str]) -> bool:
    """Whether a tensor of the state dict is one that another name filled."""
    state = model.state_dict()
    return any(state[other].data_ptr() == state[name].data_ptr() for other in stored_names if state[other].shape == state[name].shape)


@contextmanager
def _imported(folder: Path) -> Iterator[ModuleType]:
    """The package of a folder, forgotten afterwards."""
    name = f"_nn_stretch_emitted_{folder.name}"
    spec = importlib.util.spec_from_file_location(name, folder / "__init__.py", submodule_search_locations=[str(folder)])
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    kept, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        spec.loader.exec_module(module)
        yield module
    finally:
        sys.dont_write_bytecode = kept
        for module_name in [module_name for module_name in sys.modules if module_name == name or module_name.startswith(f"{name}.")]:
            del sys.modules[module_name]
