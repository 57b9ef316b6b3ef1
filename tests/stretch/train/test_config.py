import msgspec
import pytest

from stretch.train.config import TrainConfig


@pytest.mark.parametrize(
    "change", [{"epochs": 0}, {"batch": 0}, {"learning_rate": 0}, {"amp": "fp8"}, {"label_smoothing": 1.0}, {"lr": 0.1}]
)
def test_value_out_of_range_or_unknown_key_is_refused(change):
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(change, TrainConfig)


def test_defaults_are_the_paper_s():
    config = TrainConfig()
    assert (config.epochs, config.batch, config.learning_rate, config.momentum, config.weight_decay) == (100, 256, 0.2, 0.9, 5e-5)
