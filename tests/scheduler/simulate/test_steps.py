"""Tables of steps: their timelines against longest paths and arithmetic by hand, and tables that make no sense."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predictors.devices import load_device
from predictors.errors import StretchError
from predictors.side_by_side import ProcessorWork, ends
from scheduler.simulate.clock import Clock
from scheduler.simulate.networks import StepTable, TableStep, network_of_steps, read_steps
from scheduler.simulate.scene import Scene
from tests.effort import examples


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
