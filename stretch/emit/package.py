"""Atomic writing of a package folder, and comparison of its results with the network's."""

import importlib.util
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import torch
from safetensors.torch import save_model
from torch import nn

from predictors.errors import StretchError, UsageError
from stretch.capture.structure import tensors
from stretch.capture.trace import agrees
from stretch.emit.network import Sources

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
