from dataclasses import replace

import msgspec
import numpy as np
import onnxruntime
import pytest

from predictors.errors import StretchError
from scheduler.bundle.load import load_bundle
from scheduler.bundle.problems import graph_problems
from scheduler.bundle.recommended import as_recommended
from scheduler.checks.verify import compare_with_reference, random_input
from scheduler.runtime.session import Session


def recommending(folder, recommended, **changes):
    bundle = load_bundle(folder)
    return replace(bundle, manifest=msgspec.structs.replace(bundle.manifest, recommended=recommended, **changes))


@pytest.mark.parametrize(
    ("recommended", "file", "processor"),
    [
        ("single:cpu", "controls/original.onnx", "cpu"),
        ("single:gpu", "controls/original.onnx", "gpu"),
        ("whole_graph:cpu[1large]", "model.onnx", "cpu[1large]"),
        ("sequential_same_macs", "controls/sequential_same_macs.onnx", "gpu"),
    ],
)
def test_recommended_network_runs_on_its_processor_with_the_outputs_of_its_file(bundle_dir, recommended, file, processor):
    bundle = as_recommended(recommending(bundle_dir, recommended, predicted={"sequential_same_macs_processor": "gpu"}))
    assert list(graph_problems(bundle.manifest)) == []
    x = random_input(bundle)
    session = onnxruntime.InferenceSession(bundle_dir / file)
    [expected] = session.run(None, {session.get_inputs()[0].name: x})
    with Session(bundle) as running:
        assert set(running.placements) == {processor}
        np.testing.assert_allclose(running.run(x), expected, rtol=1e-4, atol=1e-4)
        assert compare_with_reference(running, x).check.against == file


@pytest.mark.parametrize("recommended", ["branched", "no clear winner"])
def test_bundle_that_recommends_branches_or_nothing_stays_unchanged(bundle_dir, recommended):
    bundle = recommending(bundle_dir, recommended)
    assert as_recommended(bundle) is bundle


@pytest.mark.parametrize("recommended", ["sequential_same_macs", "single:gpu", "nonsense"])
def test_recommended_network_that_the_bundle_lacks_is_refused(bundle_dir, recommended):
    with pytest.raises(StretchError, match="does not contain it"):
        as_recommended(recommending(bundle_dir, recommended, controls={}))
