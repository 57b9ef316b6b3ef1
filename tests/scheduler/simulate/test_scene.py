"""What is simulated: networks, their times, loads and requests."""

from dataclasses import replace
from itertools import islice
from math import inf

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictors.errors import UsageError
from predictors.predictor import LatencyPredictor
from scheduler.bundle.load import load_bundle
from scheduler.formats.onnx import open_onnx
from scheduler.simulate.networks import step_times, with_times
from scheduler.simulate.scene import Arrivals, Free, Load, Scene, parse_arrivals, parse_loads
from scheduler.tools.simulation import prepare
from tests.predictors.specified import specified


@pytest.mark.parametrize(
    ("requested", "message"),
    [
        ({"runs": 0}, "0 inferences cannot be simulated"),
        ({"runs": -3}, "-3 inferences cannot be simulated"),
        ({"runs": 10**9}, "inferences cannot be simulated"),
        ({"in_flight": 0}, "0 inferences cannot be in flight"),
        ({"in_flight": 65}, "65 inferences cannot be in flight"),
        ({"jitter": -0.1}, "a jitter of -0.1 is out of range"),
        ({"jitter": float("nan")}, "a jitter of nan is out of range"),
        ({"jitter": float("inf")}, "a jitter of inf is out of range"),
        ({"jitter": 1.5}, "a jitter of 1.5 is out of range"),
        ({"seed": -1}, "-1 is no seed"),
    ],
)
def test_number_out_of_its_range_is_refused_with_a_sentence(requested, message):
    with pytest.raises(UsageError) as error:
        Scene(**requested)
    assert message in error.value.message
    assert error.value.hint


def test_factors_are_log_normal_around_one():
    drawn = np.log(list(islice(Scene(jitter=0.1, seed=5).factors(2), 10_000)))
    assert drawn.shape == (10_000, 2)
    assert np.abs(drawn.mean(0)).max() < 0.005
    assert drawn.std(0) == pytest.approx([0.1, 0.1], rel=0.05)
    assert abs(np.corrcoef(drawn.T)[0, 1]) < 0.05


def test_loads_are_read_as_they_are_written():
    assert parse_loads(["gpu=0.9@50:155, cpu=0.5@0:1e3", "dsp=1@2.5:3"]) == (
        Load("gpu", 0.9, 50, 155),
        Load("cpu", 0.5, 0, 1000),
        Load("dsp", 1, 2.5, 3),
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gpu", "`gpu` is no load"),
        ("gpu=0.9", "`gpu=0.9` is no load"),
        ("", "`` is no load"),
        ("gpu=0.9@50", "`gpu=0.9@50` is no load"),
        ("gpu=much@0:1", "`gpu=much@0:1` has something in the place of a number"),
        ("gpu=nan@0:1", "takes nan of it, which is no share"),
        ("gpu=-0.1@0:1", "takes -0.1 of it, which is no share"),
        ("gpu=1.5@0:1", "takes 1.5 of it, which is no share"),
        ("gpu=0.5@nan:1", "has nan ms for a moment"),
        ("gpu=0.5@-1:1", "has -1 ms for a moment"),
        ("gpu=0.5@0:inf", "has inf ms for a moment"),
        ("gpu=0.5@0:1e10", "has 1e+10 ms for a moment"),
        ("gpu=0.5@5:4", "ends at 4 ms, and begins at 5 ms"),
        ("gpu=0.5@5:5", "ends at 5 ms, and begins at 5 ms"),
    ],
)
def test_load_that_makes_no_sense_is_refused_with_a_sentence(text, message):
    with pytest.raises(UsageError) as error:
        parse_loads([text])
    assert message in error.value.message
    assert error.value.hint


shares = st.builds(
    lambda processor, share, start, length: Load(processor, share, start, start + length),
    st.sampled_from(["cpu", "gpu"]),
    st.floats(0, 0.2),
    st.floats(0, 100),
    st.floats(0.01, 100),
)


@given(st.lists(shares, max_size=5))
def test_free_share_is_what_the_loads_of_the_moment_leave(loads):
    free, since = Free(loads, ["cpu", "gpu"]), -1.0  # before all loads
    while True:
        for processor, share in free.shares.items():
            taken = sum(load.share for load in loads if load.processor == processor and load.start_ms <= since < load.end_ms)
            assert abs(share - (1 - taken)) < 1e-9
        if free.until == inf:
            break
        assert free.until >= since
        since = free.until
        free.change()
    assert free.shares == {"cpu": 1, "gpu": 1}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "says nothing of arrivals"),
        ("poisson:many", "in the place of a number"),
        ("periodic:0", "requests cannot come as `periodic:0` says"),
        ("periodic:-5", "requests cannot come"),
    ],
)
def test_arrivals_that_make_no_sense_are_refused(text, message):
    with pytest.raises(UsageError) as error:
        parse_arrivals(text)
    assert message in error.value.message
    assert error.value.hint


def test_periodic_requests_come_at_equal_distances_from_the_start_on():
    assert list(islice(Arrivals("periodic", 2.5).times(7), 4)) == [0, 2.5, 5, 7.5]


def test_times_are_the_plans_on_its_device_and_the_files_on_another(bundle_dir):
    bundle, rows = load_bundle(bundle_dir), []
    here = prepare(bundle, specified("pixel6"), False, rows.append)
    there = prepare(bundle, specified("host"), False, rows.append)
    assert not rows
    assert all(dict(here.times[name].parts)["subgraph"] == 1.0 for name in here.plan.subgraphs)
    assert all(dict(there.times[name].parts).get("subgraph", 0) != 1.0 for name in there.plan.subgraphs)


PIXEL6 = specified("pixel6")


@pytest.fixture
def bundle(bundle_dir):
    return load_bundle(bundle_dir)


def test_subgraph_takes_its_planned_time_and_contention_between_its_exchanges(bundle):
    slowed = [msgspec.structs.replace(entry, predicted_ms=2.0, contention=1.5) for entry in bundle.manifest.subgraphs]
    times = step_times(msgspec.structs.replace(bundle.manifest, subgraphs=tuple(slowed)), PIXEL6)
    links = LatencyPredictor(PIXEL6).links
    # a segment of one branch has no company
    assert times["stem"].parts == (("subgraph", 2.0),)
    into, out = links.ms("cpu", "gpu", 6 * 64, "fp32"), links.ms("gpu", "cpu", 6 * 64, "fp32")
    # the CPU has no company before the GPU computes, and the GPU none once the CPU is done
    together = (2.0 - into) * 1.5
    assert times["s1.cpu"].parts == (("subgraph", pytest.approx(into + together, rel=1e-12)),)
    assert times["s1.gpu"].parts == (("in", into), ("subgraph", pytest.approx(together + 2.0 - together / 1.5, rel=1e-12)), ("out", out))
    ((doing, ms),) = times["s1.join"].parts
    assert (doing, times["s1.join"].processor) == ("join", "cpu")
    assert ms == LatencyPredictor(PIXEL6).join_ms("concat", (1, 10, 8, 8), 2, "cpu", "fp32")


def test_subgraph_without_a_planned_time_is_predicted_from_its_file(bundle):
    manifest = bundle.manifest
    silent = [msgspec.structs.replace(e, predicted_ms=None) if e.name in ("stem", "s1.gpu") else e for e in manifest.subgraphs]
    bundle = replace(bundle, manifest=msgspec.structs.replace(manifest, subgraphs=tuple(silent)))
    with pytest.raises(ValueError, match="`stem` has no predicted time"):
        step_times(bundle.manifest, PIXEL6)
    mapping = {entry.name: entry for entry in with_times(bundle, PIXEL6).subgraphs}
    for name in ("stem", "s1.gpu"):
        estimate = LatencyPredictor(PIXEL6).predict(open_onnx(bundle.file(f"{name}.onnx")).graph, mapping[name].processor, "fp32")
        assert mapping[name].predicted_ms == estimate.computing_ms
        assert mapping[name].contention == estimate.contended_ms / estimate.computing_ms >= 1
    assert [mapping[e.name] for e in silent if e.predicted_ms is not None] == [e for e in silent if e.predicted_ms is not None]
