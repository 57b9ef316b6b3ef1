import dataclasses
import os
from itertools import product

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictors.errors import StretchError, UsageError
from scheduler.bundle.load import load_bundle
from scheduler.bundle.manifest import Alternative
from scheduler.delegates import CpuDelegate, delegates
from scheduler.placement import mapping as placing
from scheduler.placement.place import Placement, fallback_placement, interchangeable, place_subgraphs

FIRST, SECOND = ("cpu", (0,), "inline"), ("cpu", (1,), "blocking")


@pytest.mark.parametrize(
    ("processors", "mapping", "wanted"),
    [
        # the second core, with its own thread, replaces a missing GPU and a missing DSP
        ("cpu gpu", {}, {"cpu": FIRST, "gpu": SECOND}),
        ("cpu gpu dsp", {}, {"cpu": FIRST, "gpu": SECOND, "dsp": SECOND}),
        ("cpu gpu", {"gpu": "cpu0", "cpu": "cpu0"}, {"cpu": FIRST, "gpu": FIRST}),
        (
            "cpu gpu",
            {"cpu": "reference0+1", "gpu": "null_async"},
            {"cpu": ("reference", (0, 1), "inline"), "gpu": ("null_async", (), "async")},
        ),
        pytest.param("cpu dsp gpu", {}, {"cpu": FIRST, "dsp": ("dsp", (), "blocking"), "gpu": SECOND}, marks=pytest.mark.qnn),
    ],
)
def test_processors_get_delegates_cores_and_a_dispatch(processors, mapping, wanted):
    precisions = {"dsp": {"int8"}} if processors == "cpu dsp gpu" else {}
    placed = placing.place_processors(processors.split(), mapping, cores=(0, 1), precisions=precisions)
    assert {name: (p.delegate, p.cores, p.dispatch) for name, p in placed.items()} == wanted
    assert mapping or (placed["cpu"].stand_in, placed["gpu"].stand_in) == (False, True)
    assert len({place.queue for place in placed.values()}) == len(set(wanted.values()))


@pytest.mark.parametrize("mapping", [{"gpu": "cpu9"}, {"gpu": "cpu0+9"}, {"gpu": "1"}, {"gpu": "cpu1+"}, {"npu": "cpu1"}])
def test_targets_that_do_not_exist_and_repeated_processors_are_usage_errors(mapping):
    with pytest.raises(UsageError):
        placing.place_processors(["cpu", "gpu"], mapping, cores=(0, 1))
    with pytest.raises(UsageError, match="twice"):
        placing.parse_mapping(["gpu=cpu0", "gpu=cpu1"])


@given(
    st.lists(st.sampled_from(["cpu", "gpu", "dsp", "npu"]), min_size=1, unique=True), st.sets(st.integers(0, 63), min_size=1, max_size=6)
)
def test_every_processor_is_placed_on_existing_cores_and_at_most_one_queue_is_inline(processors, cores):
    placed = placing.place_processors(processors, cores=sorted(cores))
    assert list(placed) == processors
    assert all(set(p.cores) <= cores for p in placed.values())
    assert len({p.queue for p in placed.values() if p.dispatch == "inline"}) <= 1
    assert len({(p.queue, p.dispatch) for p in placed.values()}) == len({p.queue for p in placed.values()})


@pytest.mark.parametrize(
    ("processors", "mapping", "cores", "expected"),
    [
        # a GPU with its own queue reserves a core for the thread that feeds it
        (["cpu", "gpu"], {"gpu": "null_async"}, 16, 15),
        (["cpu[1large3med]", "gpu"], {"gpu": "null_async"}, 16, 4),
        (["cpu[16cores]", "gpu"], {"gpu": "null_async"}, 16, 15),
        (["cpu", "gpu"], {"gpu": "null_async"}, 1, 1),
        (["cpu"], {}, 16, 16),
        # if cores replace other processors, each of these gets one core
        (["cpu", "gpu"], {}, 16, 1),
        (["cpu[1large3med]", "gpu", "dsp"], {}, 16, 4),
        (["cpu[1large3med]", "gpu", "dsp"], {}, 4, 2),
        (["cpu", "gpu"], {"cpu": "cpu2+3"}, 16, 2),
    ],
)
def test_cpu_gets_the_cores_of_its_core_set_or_all_cores_that_no_other_processor_needs(processors, mapping, cores, expected):
    placed = placing.place_processors(processors, mapping, cores=range(cores))
    assert len(placed[processors[0]].cores) == expected
    other_cores = [core for name in processors[1:] for core in placed[name].cores]
    assert cores == 1 or not set(placed[processors[0]].cores) & set(other_cores)


def test_planned_delegate_is_preferred_if_it_runs_the_precision_and_otherwise_named_in_the_reason(monkeypatch):
    monkeypatch.delenv(placing.DRIVERS_VARIABLE, raising=False)
    for mapping, delegate in (({}, "reference"), ({"cpu": "cpu0"}, "cpu")):
        planned = {"cpu": "reference", "gpu": "null_async"}
        placed = placing.place_processors(["cpu", "gpu"], mapping, cores=(0, 1), planned=planned)
        assert (placed["cpu"].delegate, placed["cpu"].cores, placed["gpu"].delegate) == (delegate, (0,), "null_async")
    placed = placing.place_processors(["cpu"], cores=(0, 1), planned={"cpu": "openvino:half"}, precisions={"cpu": {"fp32"}})
    assert placed["cpu"].delegate == "cpu"
    assert "`openvino:half`" in placed["cpu"].reason


def test_target_is_placed_with_the_dispatch_of_an_existing_queue():
    core = min(os.sched_getaffinity(0))
    place = placing.target_placement("gpu", f"cpu{core}", {f"cpu{core}": "inline"})
    assert (place.processor, place.delegate, place.cores, place.dispatch) == ("gpu", "cpu", (core,), "inline")
    assert str(core) in place.reason
    assert [placing.target_placement("gpu", target, {}).dispatch for target in (f"cpu{core}", "null_async")] == ["blocking", "async"]


def test_fallback_uses_the_cores_of_the_placement_or_the_last_core():
    last = max(os.sched_getaffinity(0))
    for cores, core in (((), last), ((1,), 1)):
        result = fallback_placement(Placement("gpu", "opencl", cores, "opencl:gpu", "async", False, ""), "cpu", "", {})
        assert (result.cores, result.queue) == ((core,), f"cpu{core}")


@pytest.mark.parametrize(("change", "message"), [({"queue": "cpu0"}, "inline and blocking"), ({"dispatch": "inline"}, "calling thread")])
def test_inconsistent_queues_and_missing_processors_are_refused(bundle, change, message):
    placed = placing.place_processors(["cpu", "gpu"], cores=(0, 1))
    placed["gpu"] = dataclasses.replace(placed["gpu"], **change)
    with pytest.raises(StretchError, match=message):
        place_subgraphs(bundle.manifest.subgraphs, placed)
    with pytest.raises(StretchError, match=r"`s1\.gpu` needs processor `gpu`"):
        place_subgraphs(bundle.manifest.subgraphs, {"cpu": placed["cpu"]})


@pytest.mark.parametrize(
    ("targets", "movable", "kinds"),
    [
        (("cpu0", "cpu1", "reference2"), {"cpu"}, {"cpu0": ("cpu1",), "cpu1": ("cpu0",)}),
        (("cpu0", "cpu1", "reference2"), (), {}),
        (("cpu0+2", "cpu1", "reference1"), {"cpu"}, {"cpu0+2": ()}),
        # a queue with a subgraph that cannot move neither gives nor takes work
        (("cpu0", "cpu1", "reference1"), {"cpu"}, {"cpu0": ()}),
    ],
)
def test_queues_share_work_only_with_equal_movable_delegates_on_equally_many_cores(targets, movable, kinds):
    mapping = dict(zip(("cpu", "gpu", "dsp"), targets, strict=True))
    assert interchangeable(placing.place_processors(list(mapping), mapping, cores=(0, 1, 2)).values(), movable) == kinds


@pytest.mark.parametrize(
    ("name", "integers", "dispatch"),
    [
        *(("dsp", True, "blocking"), ("dsp[1]", True, "blocking"), ("vpu", True, "async"), ("gpu", False, "async")),
        *(("cpu", False, "inline"), ("cpu[1]", False, "inline"), ("tpu", False, "blocking")),
    ],
)
def test_delegates_of_a_processor_determine_integer_only_and_dispatch(monkeypatch, name, integers, dispatch):
    class Npu(CpuDelegate):
        """Delegate for a kind of processor that no other delegate drives."""

        drives, precisions, asynchronous = ("vpu",), ("int8",), True

    monkeypatch.setattr(delegates, "_items", {**delegates._items, "their_npu": Npu})
    assert (placing.is_integer_only(name), placing.device_dispatch(name)) == (integers, dispatch)


def test_drivers_after_a_preferred_one_are_not_checked():
    candidates = iter(["opencl", "openvino:GPU", "vulkan"])
    assert (placing.first_driver(candidates), list(candidates)) == ("openvino:GPU", ["vulkan"])
    assert (placing.first_driver(["opencl"]), placing.first_driver([])) == ("opencl", None)


@pytest.fixture(scope="module")
def manifest(bundles, tmp_path_factory):
    """A manifest in which every subgraph has one time and energy per processor; the GPU is faster and more efficient."""
    return with_times(load_bundle(bundles.two_branches(tmp_path_factory.mktemp("b"))).manifest, {"cpu": (3.0, 9.0), "gpu": (1.0, 2.0)})


def with_times(manifest, times, **changes):
    options = {name: Alternative(*time) for name, time in times.items()}
    entries = tuple(msgspec.structs.replace(s, alternatives=options, **changes) for s in manifest.subgraphs)
    return msgspec.structs.replace(manifest, subgraphs=entries)


def places(manifest):
    return {entry.name: entry.processor for entry in manifest.subgraphs}


def test_work_of_an_omitted_processor_moves_with_its_prediction_and_stays_at_equal_cost(manifest):
    moved = placing.choose_processors(manifest, ["gpu"])
    assert {(entry.processor, entry.predicted_ms) for entry in moved.subgraphs} == {("gpu", 1.0)}
    equal_times = with_times(manifest, {"cpu": (1.0, 1.0), "gpu": (1.0, 1.0)})
    assert places(placing.choose_processors(equal_times, priority="latency")) == places(manifest)


def test_float_subgraph_is_not_moved_to_a_processor_without_floating_point(bundles, tmp_path):
    options = {"cpu": (3.0, 9.0), "dsp": (1.0, 1.0)}
    manifest = load_bundle(bundles.two_branches(tmp_path / "b", processors=("cpu", "dsp"))).manifest
    for more, processor in (({}, "cpu"), ({"precision": "int8"}, "dsp")):
        assert places(placing.choose_processors(with_times(manifest, options, **more), priority="energy"))["stem"] == processor


@pytest.mark.parametrize(("options", "quantity"), [({"cpu": (1.0, 1.0)}, "time"), ({"cpu": (1.0, None), "gpu": (1.0, None)}, "energy")])
def test_priority_without_the_predictions_it_needs_is_a_usage_error(manifest, options, quantity):
    with pytest.raises(UsageError, match=f"needs the predicted {quantity}"):
        placing.choose_processors(with_times(manifest, options), priority="energy")


times = st.floats(0.1, 10)


@given(st.lists(st.tuples(times, times, times, times), min_size=6, max_size=6))
def test_chosen_distribution_of_a_segment_is_optimal(manifest, drawn):
    """Oracle: all distributions of a segment."""
    entries = tuple(
        msgspec.structs.replace(s, alternatives={"cpu": Alternative(a, b), "gpu": Alternative(c, d)})
        for s, (a, b, c, d) in zip(manifest.subgraphs, drawn, strict=True)
    )
    manifest_drawn = msgspec.structs.replace(manifest, subgraphs=entries)
    fast, frugal = (placing.choose_processors(manifest_drawn, priority=p) for p in ("latency", "energy"))
    for segment in ("s1", "s2"):
        branches = [e for e in entries if e.segment == segment]

        def slowest(names, branches=branches):
            return max(sum(e.alternatives[n].ms for e, n in zip(branches, names, strict=True) if n == p) for p in ("cpu", "gpu"))

        options = list(product(("cpu", "gpu"), repeat=len(branches)))
        assert slowest([places(fast)[e.name] for e in branches]) == min(map(slowest, options))
        least = min(sum(e.alternatives[n].mj for e, n in zip(branches, names, strict=True)) for names in options)
        assert sum(e.alternatives[places(frugal)[e.name]].mj for e in branches) == pytest.approx(least)
