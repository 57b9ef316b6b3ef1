import pytest

from predictors.errors import StretchError
from stretch.planning.cost.accuracy_file import load_accuracy, save_accuracy
from tests.stretch.planning.cost.test_accuracy import GRAPH, predictor


def test_written_predictor_is_read_back_and_belongs_to_one_network(tmp_path):
    path = tmp_path / "deep" / "accuracy.json"
    save_accuracy(path, predictor())
    assert load_accuracy(path, GRAPH.name) == predictor()
    with pytest.raises(StretchError, match="is about"):
        load_accuracy(path, "other")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "no accuracy predictor"),
        ('{"model": "m"}', "no accuracy predictor"),
        (
            '{"model": "small", "base": 0.5, "weights": {"s1": [1]}, "designs": 1, "rank_correlation": 0, "p_value": 1, "rmse": 0}',
            "no accuracy predictor",
        ),
    ],
)
def test_damaged_file_is_refused_with_its_name(tmp_path, text, message):
    path = tmp_path / "accuracy.json"
    path.write_text(text)
    with pytest.raises(StretchError, match=message) as caught:
        load_accuracy(path, GRAPH.name)
    assert str(path) in caught.value.message


def test_newer_schema_and_missing_file_are_refused(tmp_path):
    path = tmp_path / "accuracy.json"
    with pytest.raises(StretchError, match="cannot read"):
        load_accuracy(path, GRAPH.name)
    save_accuracy(path, predictor(schema=2))
    with pytest.raises(StretchError, match="schema 2"):
        load_accuracy(path, GRAPH.name)
