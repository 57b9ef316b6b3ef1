"""Foreign files, each written once."""

import pytest

from tests.scheduler.tools.explain.files import CHAINS, FOREIGN, write_onnx, write_tflite


@pytest.fixture(scope="session")
def foreign(tmp_path_factory):
    """Path of each foreign file by its name."""
    folder = tmp_path_factory.mktemp("foreign")
    return {name: write_onnx(folder, name) for name in FOREIGN} | {name: write_tflite(folder, name) for name in CHAINS}
