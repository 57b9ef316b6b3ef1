"""What a run, a check and tuning answer, against what was measured."""

import json

import msgspec
import pytest

from predictors.errors import StretchError
from scheduler.answer import read_run_answer, run_answer
from scheduler.checks.verify import judge, random_input
from scheduler.cores import available_cores
from scheduler.measure.benchmark import Effort, benchmark, throughput
from scheduler.measure.energy import MeasuredEnergy
from scheduler.runtime.session import Session

CORE = available_cores()[0]
NOTHING = MeasuredEnergy(None, None, "no counter")


def run(path, mapping=None, in_flight=None, warnings=(), energy=NOTHING, **asked):
    """The answer, and what it is made of."""
    with Session(path, mapping, in_flight=in_flight or 1) as session:
        x = random_input(session.bundle)
        right = judge(session, x) if session.computes else None
        result = benchmark(session, x, Effort(3, warmup=0))
        rates = None if in_flight is None else throughput(session, x, in_flight, rounds=1)
        return run_answer(session, result, right, rates, energy, warnings=list(warnings), **asked), result, right, rates


@pytest.mark.parametrize("energy", [MeasuredEnergy(2.5, "RAPL: package-0", None), NOTHING])
def test_energy_is_what_was_measured_or_why_it_was_not(bundle_dir, energy):
    answer, _, _, _ = run(bundle_dir, energy=energy)
    assert (answer.energy_mj, answer.energy_counter, answer.energy_reason) == (energy.mj, energy.counter, energy.reason)


def test_busy_time_of_a_processor_is_that_of_its_subgraphs(bundle_dir):
    answer, result, _, _ = run(bundle_dir)
    for name, processor in answer.processors.items():
        times = sorted(trace.busy_ms()[name] for trace in result.traces)
        assert processor.busy_ms == times[1]
    assert {name: p.stand_in for name, p in answer.processors.items()} == {"cpu": False, "gpu": True}


def test_bundle_without_controls_has_no_ratio_and_one_comparison(bundles, bundle_dir):
    bundles.edit(bundle_dir, lambda m: m.update(controls={}, control_macs={}))
    answer, result, _, _ = run(bundle_dir)
    assert (answer.sequential, answer.sequential_same_macs, answer.ratio) == (None, None, None)
    assert [comparison.name for comparison in answer.comparisons] == [result.whole.name]


@pytest.mark.slow
def test_throughput_names_the_bundle_with_several_in_flight_first(bundle_dir):
    answer, _, _, rates = run(bundle_dir, in_flight=2)
    assert answer.throughput.contestants[0].name == "branched, 2 in flight"
    assert answer.throughput.over_one_core == pytest.approx(rates.contestants[0].per_second / rates.contestants[2].per_second)
    assert (answer.throughput.in_flight, answer.throughput.rounds) == (2, 1)
    assert run(bundle_dir)[0].throughput is None


def test_what_was_asked_for_is_answered_with(bundle_dir, tmp_path):
    answer, _, _, _ = run(
        bundle_dir, {"cpu": f"cpu{CORE}", "gpu": f"cpu{CORE}"}, trace=tmp_path / "t.json", priority="latency", warnings=["slow"]
    )
    assert (answer.trace, answer.csv, answer.priority, answer.warnings) == (tmp_path / "t.json", None, "latency", ["slow"])
    assert answer.efficiency is None


def test_answer_of_a_board_is_read_back_from_json_as_it_was(bundle_dir, tmp_path):
    answer, _, _, _ = run(bundle_dir, in_flight=2, trace=tmp_path / "trace.json")
    assert read_run_answer(json.loads(json.dumps(msgspec.to_builtins(answer, enc_hook=str)))) == answer


@pytest.mark.parametrize("message", [None, {}, {"median_ms": "fast"}, []])
def test_answer_of_a_board_that_is_none_is_one_sentence(message):
    with pytest.raises(StretchError, match="the answer of the board cannot be read"):
        read_run_answer(message)
