"""Fixture with the foreign files, each written once."""

import onnx
import pytest

from tests.scheduler.tools.explain.files import CHAINS, FOREIGN, write_chain


@pytest.fixture(scope="session")
def foreign(tmp_path_factory):
    """Paths of the foreign files by name."""
    folder = tmp_path_factory.mktemp("foreign")
    for name, make in FOREIGN.items():
        onnx.save(make(), str(folder / f"{name}.onnx"))
    chains = {name: write_chain(folder, name, **chain) for name, chain in CHAINS.items()}
    return {name: folder / f"{name}.onnx" for name in FOREIGN} | chains
