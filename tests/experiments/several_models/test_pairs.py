"""Pairs of networks and simulated speed-ups: results of all schedules, and tables of the recorded cases."""

from contextlib import ExitStack

import numpy as np
import pytest

from experiments.networks import MODELS
from experiments.records import read_record
from experiments.several_models.here import BRANCHED, MAPPED, THREADS, TURNS, contenders
from experiments.simulated_speedup.run import TABLES, cases_of
from scheduler.cores import available_cores
from tests import onnx_runtime
from tests.contracts.repository import ROOT
from tests.scheduler import bundles
from tests.stretch.stages.test_together import MI9, PROCESSORS, both  # noqa: F401

pytest.importorskip("torch")

cores = pytest.mark.skipif(len(available_cores()) < 2, reason="two branches need two cores")


@cores
def test_every_way_to_run_both_networks_computes_what_they_compute(tmp_path):
    folders = bundles.two_branches(tmp_path / "a"), bundles.two_branches(tmp_path / "b", seed=1)
    x = np.random.default_rng(0).standard_normal((1, 3, 8, 8)).astype(np.float32)
    wanted = [onnx_runtime.output(folder / "model.onnx", x) for folder in folders]
    with ExitStack() as opened:
        result = contenders(folders, (available_cores()[0], available_cores()[-1]), opened)
        assert list(result) == [TURNS, BRANCHED, THREADS, MAPPED]
        for name, run in result.items():
            for got, output in zip(run(x, x), wanted, strict=True):
                assert np.allclose(got, output, atol=1e-5), name


RECORD = ROOT / "experiments" / "simulated_speedup" / "results" / "speedup.json"


@pytest.mark.skipif(not RECORD.exists(), reason="nothing is recorded")
def test_recorded_tables_follow_from_the_recorded_cases():
    record = read_record(RECORD)
    rows = {str(row["case"]): row for row in record.tables["cases"]}
    models = [model for model in MODELS if next(cases_of(model)).name in rows]
    for name, table in TABLES.items():
        assert table(rows, models) == record.tables[name]
