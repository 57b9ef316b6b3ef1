"""Last stage for who wants code: a model or a bundle as a package of plain torch."""

from pathlib import Path

import msgspec

from predictors.errors import UsageError
from scheduler.bundle.load import MANIFEST, load_bundle
from stretch.capture.inputs import InputShapes
from stretch.emit.network import branched_sources, captured_sources
from stretch.emit.package import check_folder, write_package
from stretch.models.load import names_code
from stretch.stages.network import read_network
from stretch.stages.reopen import reopen


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
