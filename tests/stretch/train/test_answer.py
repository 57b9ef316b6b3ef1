"""What training and extraction tell reads as it was measured."""

from pathlib import Path

import msgspec

from stretch.planning.cost.accuracy import AccuracyPredictor
from stretch.train.answer import ranking_answer


def test_ranking_has_the_predictors_figures_without_its_weights():
    predictor = AccuracyPredictor(model="m", base=0.5, weights={}, designs=12, rank_correlation=0.75, p_value=0.01, rmse=0.02)
    found = ranking_answer(Path("accuracy.json"), predictor)
    figures = {name: getattr(predictor, name) for name in ("designs", "rank_correlation", "p_value", "rmse")}
    assert msgspec.structs.asdict(found) == {"file": Path("accuracy.json"), "source": "measured", **figures}
