import numpy as np

from scheduler.measure.throughput import throughput
from scheduler.runtime.session import Session

X = np.zeros((1, 3, 8, 8), np.float32)


def test_every_contestant_runs_every_round(bundle_dir):
    rounds = []
    with Session(bundle_dir, in_flight=3) as session:
        found = throughput(session, X, 3, rounds=2, burst=4, warmup=1, step=lambda: rounds.append(len(session.submitted_traces)))
    assert rounds == [4, 8, 12]
    assert found.submitted.name == "branched, 3 in flight"
    assert (found.rounds, found.burst) == (2, 4)
    for rate in (found.submitted, found.one_at_a_time, found.one_core, found.all_cores):
        assert 0 < rate.p10_per_second <= rate.per_second
    assert found.over_one_core == found.submitted.per_second / found.one_core.per_second
