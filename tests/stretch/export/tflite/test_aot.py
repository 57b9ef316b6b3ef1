import hashlib
import shutil
import sys

import msgspec
import numpy as np
import pytest

from predictors.errors import InfeasibleError, MissingBackendError, StretchError, UsageError
from predictors.install import install_line
from scheduler.bundle.load import load_bundle
from scheduler.checks.verify import verify_bundle
from stretch.export.precision import export_precision
from stretch.export.tflite import aot as module
from stretch.export.tflite.aot import export_aot
from stretch.export.tflite.bundle import FILE, export_tflite
from stretch.quantize.images import synthetic_images
from tests.scheduler.bundles import two_branches

pytestmark = pytest.mark.qnn
pytest.importorskip("ai_edge_litert")

IMAGES = synthetic_images((1, 3, 8, 8), 8)


@pytest.fixture(scope="module")
def floats(tmp_path_factory):
    return load_bundle(two_branches(tmp_path_factory.mktemp("floats") / "bundle", processors=("cpu", "dsp")))


@pytest.fixture(scope="module")
def int8(floats, tmp_path_factory):
    out = tmp_path_factory.mktemp("int8") / "bundle"
    export_tflite(floats, out, IMAGES, "synthetic", precision={"dsp": "int8"})
    return load_bundle(out)


@pytest.fixture(scope="module")
def compiled(int8, tmp_path_factory):
    out = tmp_path_factory.mktemp("compiled") / "bundle"
    steps = []
    export_aot(int8, out, ["sm8450"], steps.append)
    assert steps == ["sm8450"]
    return load_bundle(out, check_hashes=True)


@pytest.mark.slow
def test_copy_is_hashed_beside_a_tflite_file_that_stays_as_it_was(int8, compiled):
    assert compiled.manifest.aot == {"sm8450": "aot/sm8450.tflite"}
    content = compiled.file("aot/sm8450.tflite").read_bytes()
    assert compiled.manifest.files["aot/sm8450.tflite"].sha256 == hashlib.sha256(content).hexdigest()
    assert compiled.file(FILE).read_bytes() == int8.file(FILE).read_bytes() != content
    assert int8.manifest.files.items() <= compiled.manifest.files.items()
    assert verify_bundle(compiled.path).ok


@pytest.mark.slow
def test_another_tflite_file_drops_the_code_of_the_earlier_one(compiled, tmp_path):
    export_tflite(compiled, tmp_path / "again", IMAGES, "synthetic")
    again = load_bundle(tmp_path / "again", check_hashes=True).manifest
    assert again.aot == {}
    assert "aot" not in again.checks
    assert not (tmp_path / "again" / "aot").exists()
    assert again.files.keys() == compiled.manifest.files.keys() - {"aot/sm8450.tflite"}


@pytest.mark.slow
def test_file_of_code_without_a_hash_makes_the_bundle_unreadable(compiled, tmp_path):
    copy = shutil.copytree(compiled.path, tmp_path / "copy")
    files = {name: entry for name, entry in compiled.manifest.files.items() if not name.startswith("aot/")}
    (copy / "bundle.json").write_bytes(msgspec.json.encode(msgspec.structs.replace(compiled.manifest, files=files)))
    with pytest.raises(StretchError, match=r"uses the file `aot/sm8450.tflite` without stating its size and hash"):
        load_bundle(copy)


@pytest.mark.slow
def test_code_that_computes_something_else_is_refused_and_nothing_is_written(int8, tmp_path, monkeypatch):
    # The bound is moved above what rounding leaves, for the code itself is right.
    monkeypatch.setattr(module, "MIN_COSINE", 1.0)
    with pytest.raises(InfeasibleError, match=r"signature `s1.dsp` compiled for sm8450 has a cosine of"):
        export_aot(int8, tmp_path / "out", ["sm8450"])
    assert list(tmp_path.iterdir()) == []


def test_float_signatures_are_refused(floats, tmp_path):
    export_tflite(floats, tmp_path / "float", IMAGES, "synthetic")
    with pytest.raises(UsageError, match="no int8 subgraph on a dsp"):
        export_aot(load_bundle(tmp_path / "float"), tmp_path / "out", ["sm8450"])
    assert not (tmp_path / "out").exists()


def test_bundle_without_a_tflite_file_is_refused(floats, tmp_path):
    export_precision(floats, tmp_path / "onnx", {"dsp": "int8"}, IMAGES, "synthetic")
    with pytest.raises(UsageError, match="no TFLite file") as caught:
        export_aot(load_bundle(tmp_path / "onnx"), tmp_path / "out", ["sm8450"])
    assert "--format tflite" in caught.value.hint


@pytest.mark.parametrize("package", ["ai_edge_litert", "onnxruntime_qnn"])
def test_missing_package_ends_with_the_install_line(int8, tmp_path, monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingBackendError, match=r"is not installed") as caught:
        export_aot(int8, tmp_path / "out", ["sm8450"])
    assert install_line("litert", "qnn") in caught.value.hint
    assert list(tmp_path.iterdir()) == []


def test_channels_of_images_go_last_and_rows_stay():
    x = np.arange(24.0).reshape(1, 2, 3, 4)
    assert np.array_equal(module._last(x)[0, 1, 2], x[0, :, 1, 2])
    assert np.array_equal(module._last(x[0, 0]), x[0, 0])
