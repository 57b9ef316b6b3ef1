"""What an export answers, against what was written and compared."""

import pytest

from scheduler.bundle.load import load_bundle
from stretch.export.answer import ChipSignature, aot_answer, contexts_answer, export_answer
from stretch.export.precision import export_precision
from stretch.export.tflite.aot import Compiled
from stretch.quantize.compare import Loss
from stretch.quantize.images import synthetic_images
from tests.scheduler.bundles import two_branches


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A bundle whose dsp is int8, and what its export came to."""
    folder = tmp_path_factory.mktemp("answer")
    floats = load_bundle(two_branches(folder / "floats", processors=("cpu", "dsp")))
    export = export_precision(floats, folder / "int8", {"dsp": "int8"}, synthetic_images((1, 3, 8, 8), 8), "synthetic")
    return folder / "int8", export


def test_only_what_was_compared_has_a_loss(made):
    folder, export = made
    answer = export_answer(folder, "onnx", export.manifest, export.losses, ["be careful"])
    assert {sub.name for sub in answer.subgraphs if sub.cosine is not None} == {
        s.name for s in export.manifest.subgraphs if s.precision == "int8"
    }
    for sub in answer.subgraphs:
        if sub.cosine is not None:
            assert (sub.cosine, sub.snr_db) == (export.losses[sub.name].cosine, export.losses[sub.name].snr_db)
    assert answer.checks == export.manifest.checks["precision"]
    assert answer.warnings == ["be careful"]


def test_code_for_chips_is_told_by_chip_and_subgraph(made):
    folder, export = made
    checked = {**export.manifest.checks, "contexts": {"some": 1}, "aot": {"other": 2}}
    manifest = type(export.manifest)(**{**{f: getattr(export.manifest, f) for f in export.manifest.__struct_fields__}, "checks": checked})
    losses = {"one": {"a": Loss(0.5, 3.0), "b": Loss(1.0, 60.0)}, "two": {"a": Loss(0.25, 1.0)}}
    contexts = contexts_answer(folder, manifest, losses, [])
    assert [(each.chip, each.name, each.cosine) for each in contexts.subgraphs] == [
        ("one", "a", 0.5),
        ("one", "b", 1.0),
        ("two", "a", 0.25),
    ]
    assert (contexts.format, contexts.checks) == ("qnn", {"some": 1})
    aot = aot_answer(folder, manifest, {"one": {"a": Compiled(7, losses["one"]["a"])}}, [])
    assert aot.subgraphs == [ChipSignature(name="a", chip="one", operators=7, cosine=0.5, snr_db=3.0)]
    assert (aot.format, aot.checks) == ("tflite", {"other": 2})
