from importlib.resources import files

import pytest

from predictors.errors import StretchError
from scheduler.bundle.load import load_bundle
from scheduler.runner.sources import source_names, tflite_content, write_runner
from tests.scheduler.bundles import two_branches
from tests.scheduler.runner.exported import exported

pytest.importorskip("ai_edge_litert")
pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    return exported(tmp_path_factory.mktemp("sources"), two_branches)


@pytest.mark.slow
def test_the_folder_has_all_that_is_built(bundle, tmp_path):
    names = write_runner(bundle, tmp_path / "runner")
    assert sorted(path.name for path in (tmp_path / "runner").iterdir()) == names
    assert {"CMakeLists.txt", "main.cpp", "litert_api.h", "plan.h", "model.tflite"} <= set(names)
    assert (tmp_path / "runner" / "model.tflite").read_bytes() == bundle.file(bundle.manifest.tflite).read_bytes()
    assert [path.name for path in tmp_path.iterdir()] == ["runner"]


def test_every_source_that_is_built_is_there():
    names = source_names()
    assert len(names) > 10
    text = files("scheduler.runner").joinpath("cpp/CMakeLists.txt").read_text()
    assert {name for name in names if name.endswith(".cpp")} == {word for word in text.replace(")", " ").split() if word.endswith(".cpp")}


def test_a_folder_that_is_there_is_left_alone(bundle, tmp_path):
    (tmp_path / "mine").write_text("mine")
    with pytest.raises(StretchError, match="exists already"):
        write_runner(bundle, tmp_path / "mine")
    assert (tmp_path / "mine").read_text() == "mine"


def test_a_bundle_without_a_tflite_file_is_refused_with_what_to_do(tmp_path):
    with pytest.raises(StretchError, match="no TFLite file") as caught:
        write_runner(load_bundle(two_branches(tmp_path / "bundle")), tmp_path / "runner")
    assert "stretch export" in caught.value.hint
    assert not (tmp_path / "runner").exists()


def test_a_file_that_was_changed_is_refused(tmp_path):
    bundle = exported(tmp_path, two_branches)
    path = bundle.file(bundle.manifest.tflite)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(StretchError, match="SHA-256 differs"):
        tflite_content(bundle)
