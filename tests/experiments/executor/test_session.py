"""The record of sessions says of each table how often and how it was measured."""

from experiments.executor.session import about
from experiments.records import read_record
from tests.contracts.repository import ROOT

RECORD = ROOT / "experiments" / "executor" / "results" / "session.json"


def test_committed_record_states_seven_starts_and_one_run_for_memory():
    record = read_record(RECORD)
    assert record.about == about(["in_flight_2", "in_flight_3"], rounds=12, starts=7)
    assert (record.runs, record.facts("start").runs, record.facts("memory").runs) == (12, 7, 1)
