"""Bundles with a TFLite file, for the tests of the runner."""

from scheduler.bundle.load import load_bundle
from stretch.export.tflite.bundle import export_tflite
from stretch.quantize.images import synthetic_images


def exported(folder, make, precision=None):
    """The bundle that `make` writes, again with a TFLite file."""
    floats = load_bundle(make(folder / "floats"))
    images = synthetic_images(floats.manifest.model.input_shape, 8)
    export_tflite(floats, folder / "bundle", images, "synthetic", precision=precision)
    return load_bundle(folder / "bundle", check_hashes=True)


def exported_file(folder, make, precision=None):
    """The TFLite file of such a bundle: a path that stays when the bundle is gone."""
    return folder / "bundle" / exported(folder, make, precision).manifest.tflite
