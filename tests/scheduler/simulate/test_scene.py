"""What a simulation runs, and what goes on around it: arrivals, loads, jitter, tables of steps, heat."""

from dataclasses import replace
from itertools import islice
from math import exp, inf
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predictors.devices import load_device
from predictors.errors import StretchError, UsageError
from predictors.predictor import LatencyPredictor
from predictors.side_by_side import ProcessorWork, ends
from predictors.thermal import Thermal, Throttle
from scheduler.formats.onnx import open_onnx
from scheduler.simulate.clock import Clock
from scheduler.simulate.networks import StepTable, TableStep, network_of_steps, read_steps, step_times, with_times
from scheduler.simulate.scene import Arrivals, Free, Heat, Load, Power, Scene, parse_arrivals, parse_loads, powers, thermal_of
from scheduler.tools.simulation import prepare
from tests.effort import examples
from tests.predictors.specified import specified


@pytest.mark.parametrize(
    ("requested", "message"),
    [
        ({"runs": 0}, "0 inferences cannot be simulated"),
        ({"runs": 10**9}, "inferences cannot be simulated"),
        ({"in_flight": 0}, "0 inferences cannot be in flight"),
        ({"in_flight": 65}, "65 inferences cannot be in flight"),
        ({"jitter": -0.1}, "a jitter of -0.1 is out of range"),
        ({"jitter": float("nan")}, "a jitter of nan is out of range"),
        ({"jitter": 1.5}, "a jitter of 1.5 is out of range"),
        ({"seed": -1}, "-1 is no seed"),
        ("gpu", "`gpu` is no load"),
        ("gpu=0.9@50", "`gpu=0.9@50` is no load"),
        ("gpu=much@0:1", "`gpu=much@0:1` has something in the place of a number"),
        ("gpu=nan@0:1", "takes nan of it, which is no share"),
        ("gpu=-0.1@0:1", "takes -0.1 of it, which is no share"),
        ("gpu=1.5@0:1", "takes 1.5 of it, which is no share"),
        ("gpu=0.5@-1:1", "has -1 ms for a moment"),
        ("gpu=0.5@nan:1", "has nan ms for a moment"),
        ("gpu=0.5@0:1e10", "has 1e+10 ms for a moment"),
        ("gpu=0.5@5:5", "ends at 5 ms, and begins at 5 ms"),
    ],
)
def test_number_out_of_its_range_is_refused_with_a_sentence(requested, message):
    with pytest.raises(UsageError) as error:
        parse_loads([requested]) if isinstance(requested, str) else Scene(**requested)
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
    ],
)
def test_arrivals_that_make_no_sense_are_refused(text, message):
    with pytest.raises(UsageError) as error:
        parse_arrivals(text)
    assert message in error.value.message
    assert error.value.hint


def test_periodic_requests_come_at_equal_distances_from_the_start_on():
    assert list(islice(Arrivals("periodic", 2.5).times(7), 4)) == [0, 2.5, 5, 7.5]


def test_times_are_the_plans_on_its_device_and_the_files_on_another(bundle):
    rows = []
    here = prepare(bundle, specified("pixel6"), False, rows.append)
    there = prepare(bundle, specified("host"), False, rows.append)
    assert not rows
    assert all(dict(here.times[name].parts)["subgraph"] == 1.0 for name in here.plan.subgraphs)
    assert all(dict(there.times[name].parts).get("subgraph", 0) != 1.0 for name in there.plan.subgraphs)


PIXEL6 = specified("pixel6")


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


def makespan(steps, device=None):
    network = network_of_steps(StepTable(Path("table.csv"), tuple(steps)), device)
    return Clock(network, Scene()).run().latencies_ms[0]


@st.composite
def tables(draw, processors):
    """Steps that need some of those before them, each on one of the processors, or on one of its own."""
    steps = []
    for number in range(draw(st.integers(1, 8))):
        needs = draw(st.sets(st.sampled_from(range(number)))) if number else ()
        processor = draw(st.sampled_from(processors)) if processors else f"p{number}"
        steps.append(TableStep(f"s{number}", processor, draw(st.integers(1, 50)) / 8, ";".join(f"s{need}" for need in needs)))
    return steps


@settings(max_examples=examples(30))
@given(tables(()))
def test_steps_on_processors_of_their_own_take_the_longest_path(steps):
    end = {}
    for step in steps:
        end[step.name] = step.ms + max((end[name] for name in step.needed), default=0.0)
    assert makespan(steps) == pytest.approx(max(end.values()), rel=1e-12)


@settings(max_examples=examples(30))
@given(tables(("cpu", "gpu")))
def test_a_processor_takes_the_first_of_the_table_that_is_ready(steps):
    # another way to the same: at each moment, in steps of the times' common divisor, every idle processor looks through the table
    left, ended, doing, now = {step.name: round(8 * step.ms) for step in steps}, set(), {}, 0
    while len(ended) < len(steps):
        for step in steps:
            if step.name not in ended and step.processor not in doing and ended.issuperset(step.needed):
                doing[step.processor] = step.name
        for processor, name in list(doing.items()):
            left[name] -= 1
            if not left[name]:
                ended.add(name)
                del doing[processor]
        now += 1
    assert makespan(steps) == pytest.approx(now / 8, rel=1e-12)


def test_read_back_goes_through_the_queue_of_the_gpu_and_holds_up_its_next_step():
    device = load_device("mi9")
    link = device.links["gpu"]
    back = link.unmap_ms.value + link.sync_ms.value + 4e6 / ((link.convert_back_gbs or link.convert_gbs).value * 1e6)
    steps = [TableStep("a", "gpu", 2.0, bytes=4_000_000), TableStep("b", "gpu", 3.0), TableStep("c", "cpu", 1.0, "a")]
    slower = device.processors["gpu"].contention.value
    beside = 1.0 * device.processors["cpu"].contention.value  # the CPU's step runs while the GPU computes from its start to its end
    assert makespan(steps, device) == pytest.approx(2.0 + back + beside + 3.0 - beside / slower, rel=1e-12)


@settings(max_examples=examples(30))
@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 40)), min_size=2, max_size=3), st.sampled_from((0.0, 0.25)))
def test_contention_counts_only_while_another_processor_computes(times, feeder):
    names, slower = ("cpu", "gpu", "dsp"), (1.25, 1.5, 1.0)
    works = [
        ProcessorWork(name, start, ms, factor, feeder * (name == "gpu"))
        for name, factor, (start, ms) in zip(names, slower, times, strict=False)
    ]
    tick, left, rows, now = 1e-2, [work.ms for work in works], [0.0] * len(works), 0.0
    while max(left) > 0:
        running = [i for i, work in enumerate(works) if left[i] > 0 and work.start_ms <= now + tick / 2]
        for i in running:
            fed = sum(works[other].feeder for other in running if other != i) if i == 0 else 0.0
            left[i] -= tick * ((1 - fed) / works[i].contention if len(running) > 1 else 1.0)
            rows[i] = now + tick
        now += tick
    assert ends(works) == pytest.approx(rows, abs=0.15)


WRONG = {
    "a,cpu,1,b,\nb,cpu,1,c,\nc,cpu,1,b,": "line 3: steps wait for each other: `b` needs `c` needs `b`",
    "a,cpu,1,,\nb,cpu,1,d,": "line 3: `b` needs `d`, which is no step of the table",
    "a,cpu,0,,": "line 2: `ms` is wrong",
    "a,cpu,1,,\na,gpu,1,,": "line 3: the step `a` stands in line 2 already",
    "a b,cpu,1,,": "line 2: the name `a b`",
    "": "has a header and no step",
}


@pytest.mark.parametrize(("rows", "words"), WRONG.items(), ids=WRONG.values())
def test_table_that_makes_no_sense_is_refused_with_its_line(rows, words, tmp_path):
    path = tmp_path / "steps.csv"
    path.write_text(f"name,processor,ms,needs,bytes\n{rows}\n")
    with pytest.raises(StretchError) as refused:
        read_steps(path)
    assert words in str(refused.value)


STEPS = (Throttle(40.0, 0.8), Throttle(50.0, 0.5))
CHIP = Thermal("assumed", 10.0, 60.0, 25.0, STEPS, 3.0, 1.0, {"gpu": 4.0, "cpu": 2.0})
GPU = {"gpu": Power(4.0, 0.0)}


def test_temperature_follows_the_formula_of_one_body():
    heat = Heat(Thermal("assumed", 10.0, 60.0, 25.0, (), 3.0, 1.0, {"gpu": 4.0}), GPU)
    heat.set({"gpu": 1.0})
    heat.advance(60_000.0)
    assert heat.temperature_c == pytest.approx(25 + 40 * (1 - exp(-1)))
    assert heat.processors_mj == pytest.approx(240_000)
    heat.set({})
    heat.advance(120_000.0)
    assert heat.temperature_c == pytest.approx(25 + 40 * (1 - exp(-1)) * exp(-1))
    assert (heat.until, heat.changes, heat.speed) == (inf, 0, 1.0)


@settings(max_examples=examples(30))
@given(st.lists(st.tuples(st.floats(1, 1e5), st.floats(0, 1)), min_size=1, max_size=20))
def test_moment_of_a_step_is_when_the_temperature_gets_there_and_agrees_with_small_steps(phases):
    heat, now, small = Heat(CHIP, GPU), 0.0, 25.0
    for length, share in phases:
        end = now + length
        while now < end:
            heat.set({"gpu": share})
            speed, until = heat.speed, min(end, heat.until)
            watts, steps = 4.0 * share * speed, 200
            for _ in range(steps):  # Euler's method, as an independent sum
                small += (25 + 10 * watts - small) * (until - now) / steps / 60_000
            heat.advance(until)
            assert heat.temperature_c == pytest.approx(small, abs=0.15)
            if until == heat.until and until < end:
                heat.change()
            now = until
    assert 25 - 1e-9 <= heat.temperature_c <= 65


def test_power_is_the_profiles_else_the_descriptions():
    mi9 = specified("mi9")
    stated = mi9.processor("cpu").cores.power_w
    assert stated is not None
    assert powers(mi9, CHIP, ["cpu"])["cpu"].computing_w == stated.value
    pixel6 = specified("pixel6")
    if pixel6.processor("gpu").cores.power_w is None:
        assert powers(pixel6, CHIP, ["gpu"])["gpu"].computing_w == 4.0
    bare = replace(mi9, processors={**mi9.processors})
    assert thermal_of(replace(bare, thermal=CHIP)) is CHIP
    with pytest.raises(UsageError, match="says nothing of heat"):
        thermal_of(mi9)
