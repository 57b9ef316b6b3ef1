"""Networks of several inputs and outputs through the whole of the main job, against torch."""

import warnings

import numpy as np
import pytest
import torch

import stretch
from scheduler import Session
from scheduler.checks.verify import verify_bundle
from stretch.capture.results import keyed
from tests.stretch.several import FORMS, assert_equal, form

LOOSE = {"alpha": 1000.0, "beta": 1000.0, "balance": 0.001, "macs": (0.4, 2.0), "segment_macs": 0.1}


def inputs_of(graph, seed=3):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(op.shape, generator=generator) for op in graph.inputs]


@pytest.mark.representatives(2)
@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("requested", [{"lossless": True}, {}], ids=["exact", "stretched"])
def test_bundle_computes_what_torch_computes_under_the_names_of_what_is_returned(tmp_path, name, requested):
    module, given_shapes = form(name)
    result = stretch.branch(module, "mi9", out=tmp_path / "b", input_shape=given_shapes, processors=("cpu", "gpu"), **(requested or LOOSE))
    x = inputs_of(result.plan.graph)
    with torch.no_grad():
        want, original = result.model(*x), module(*x)
    if result.plan.exact:
        assert_equal(want, original)
    assert [key for key, _ in keyed(want)] == [key for key, _ in keyed(original)]
    fed = {op.name: item.numpy() for op, item in zip(result.plan.graph.inputs, x, strict=True)}
    with Session(tmp_path / "b", {"cpu": "cpu", "gpu": "cpu"}) as session, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        answers = [session.run(fed), session.submit(fed).result(60)]
    named = dict(keyed(want))
    for got in answers:
        got = got if isinstance(got, dict) else {"output": got}
        for key, value in got.items():
            assert np.abs(value - named[key].numpy()).max() <= 1e-4 * max(1e-3, float(named[key].abs().max()))
        assert set(got) == {key for key, value in named.items() if isinstance(value, torch.Tensor)}
    assert verify_bundle(tmp_path / "b").ok


def test_constants_are_returned_and_told():
    module, given_shapes = form("towers")
    result = stretch.branch(module, "mi9", input_shape=given_shapes, processors=("cpu", "gpu"), **LOOSE)
    assert any("`output_1_note`" in warning for warning in result.warnings)
    with torch.no_grad():
        assert result.model(*inputs_of(result.plan.graph))[1]["note"] is None
