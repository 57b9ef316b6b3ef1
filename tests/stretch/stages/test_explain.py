"""Where operators run: here against the delegates' own words, on a device against the predictor."""

from dataclasses import replace

import msgspec
import onnx
import pytest

from predictors.devices import load_device
from predictors.predictor import LatencyPredictor
from scheduler.bundle.load import load_bundle
from scheduler.formats.onnx import open_onnx
from stretch.stages.explain import explain_here, explain_on
from tests.scheduler.bundles import two_branches

PIXEL6 = load_device("pixel6")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    return load_bundle(two_branches(tmp_path_factory.mktemp("explain") / "b"))


def silent(name):
    """A step that nobody watches."""


def with_precision(bundle, **changes):
    """The bundle, which states other things of its subgraphs on the gpu."""
    entries = [msgspec.structs.replace(e, **changes) if e.processor == "gpu" else e for e in bundle.manifest.subgraphs]
    return replace(bundle, manifest=msgspec.structs.replace(bundle.manifest, subgraphs=entries))


def test_every_node_of_every_file_is_told_once(bundle):
    found = explain_here(bundle, [], silent, [])
    for entry in bundle.manifest.subgraphs:
        nodes = [node.name for node in onnx.load(bundle.file(entry.file)).graph.node]
        # the runtime may add changes of layout, which are no nodes of the file
        assert sorted(op.name for op in found.ops if op.subgraph == entry.name and op.name in nodes) == sorted(nodes)
    assert found.device == "this machine"


def test_times_on_a_device_are_those_of_the_predictor(bundle):
    found = explain_on(bundle, PIXEL6, silent, [])
    predictor = LatencyPredictor(PIXEL6)
    for entry, told in zip(bundle.manifest.subgraphs, found.subgraphs, strict=True):
        expected = predictor.predict(open_onnx(bundle.file(entry.file)).graph, entry.processor, "fp32").computing_ms
        assert (told.name, told.macs, told.ms) == (entry.name, entry.macs, pytest.approx(expected))
    assert {op.source for op in found.ops} == {"predicted", None}
    assert all((op.ms is None) == (op.source is None) for op in found.ops)


def test_subgraph_with_another_reason_than_its_processors_first_adds_it(bundle):
    mixed = list(with_precision(bundle, planned_precision="fp16").manifest.subgraphs)
    first, *_, last = (i for i, entry in enumerate(mixed) if entry.processor == "gpu")
    mixed[first] = msgspec.structs.replace(mixed[first], planned_precision="fp32")
    one = replace(bundle, manifest=msgspec.structs.replace(bundle.manifest, subgraphs=mixed))
    reason = explain_on(one, PIXEL6, silent, []).processors["gpu"].reason
    assert reason.count(f"; {mixed[last].name}: ") == 1
    assert reason.count("planned was fp16") == 1
