"""Bundles with a TFLite file, for the tests of the runner."""

import hashlib

from scheduler.bundle.load import load_bundle
from stretch.export.tflite.bundle import export_tflite, write_tflite
from stretch.quantize.images import synthetic_images
from tests.scheduler.bundles import edit


def exported(folder, make, precision=None):
    """The bundle that `make` writes, again with a TFLite file."""
    floats = load_bundle(make(folder / "floats"))
    images = synthetic_images(floats.manifest.model.input_shape, 8)
    export_tflite(floats, folder / "bundle", images, "synthetic", precision=precision)
    return load_bundle(folder / "bundle", check_hashes=True)


def exported_file(folder, make, precision=None):
    """The TFLite file of such a bundle: a path that stays when the bundle is gone."""
    return folder / "bundle" / exported(folder, make, precision).manifest.tflite


def with_file(folder, make):
    """The bundle that `make` writes, with a TFLite file that nothing was compared with: the export takes one input only."""
    path = make(folder / "bundle")
    content = write_tflite(load_bundle(path))
    (path / "model.tflite").write_bytes(content)
    entry = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    edit(path, lambda data: data.update(tflite="model.tflite", files=data["files"] | {"model.tflite": entry}))
    return load_bundle(path, check_hashes=True)
