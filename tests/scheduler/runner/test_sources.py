import pytest

from predictors.errors import StretchError
from scheduler.runner.sources import tflite_content
from tests.scheduler.bundles import two_branches
from tests.scheduler.runner.exported import exported

pytest.importorskip("ai_edge_litert")
pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    return exported(tmp_path_factory.mktemp("sources"), two_branches)


def test_a_file_that_was_changed_is_refused(tmp_path):
    bundle = exported(tmp_path, two_branches)
    path = bundle.file(bundle.manifest.tflite)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(StretchError, match="SHA-256 differs"):
        tflite_content(bundle)
