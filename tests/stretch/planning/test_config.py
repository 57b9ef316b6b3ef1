import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictors.devices import load_device
from predictors.errors import UnknownNameError, UsageError
from stretch.planning.config import PlanConfig, only_latency, read_objective
from tests.predictors.specified import specified

MI9 = specified("mi9")


def test_defaults_are_the_values_that_the_paper_states():
    config = PlanConfig().resolve(specified("pixel6"))
    assert (config.alpha, config.beta, config.min_depth, config.min_width, config.macs) == (0.2, 1.1, 0.5, 0.5, (0.97, 1.03))
    assert config.processors == ("cpu", "gpu")
    assert config.precision == {"cpu": "fp32", "gpu": "fp16"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"alpha": 0.0}, "alpha"),
        ({"min_depth": 1.5}, "min_depth"),
        ({"strategy": "random"}, "random"),
        ({"n_meet": 0}, "n_meet"),
        ({"macs": (1.1, 1.0)}, "the MACs range 1.1:1 is empty"),
        ({"params": (1.1, 1.0)}, "the parameter range 1.1:1 is empty"),
        ({"objective": "0*latency"}, "all weights of the objective are 0"),
        ({"objective": "energy", "strategy": "grid"}, "the objective `energy` is not planned for with"),
        ({"kinds": ("rows",), "strategy": "grid"}, "segments of the kind `rows` are not planned with `strategy=grid`"),
        ({"objective": "energy", "join": "concat"}, "the objective `energy` is not planned for with"),
        ({"objective": "energy", "params": (0.9, 1.1)}, "the objective `energy` is not planned for with"),
        ({"objective": "accuracy"}, "needs a predictor"),
        ({"min_accuracy": 0.9}, "needs a predictor"),
        ({"objective": "accuracy", "accuracy": "a.json"}, "needs a bound on latency"),
        ({"min_accuracy": 0.9, "accuracy": "a.json", "params": (0.9, 1.0)}, "cannot be bounded at once"),
        ({"processors": ("cpu",)}, "at least two processors"),
        ({"processors": ("cpu", "cpu[3med]")}, "share cores"),
        ({"processors": ("gpu", "gpu")}, "share cores"),
        ({"precision": {"gpu": "int8"}}, "`gpu` does not run `int8`"),
        ({"processors": ("cpu", "gpu"), "precision": {"dsp": "int8"}}, "which is not among the processors"),
        ({"lossless": True, "kinds": ("rows", "stretch")}, "segments of the kind `stretch` make another network"),
        ({"lossless": True, "join": "concat"}, "segments of the kind `rows` are not planned with `join=concat`"),
    ],
)
def test_contradictory_or_unsupported_request_is_a_usage_error(changes, message):
    with pytest.raises(UsageError, match=message) as caught:
        PlanConfig(**changes).resolve(MI9)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("changes", "hint"), [({"processors": ("cpu", "gpuu")}, "did you mean `gpu`?"), ({"kinds": ("row",)}, "did you mean `rows`?")]
)
def test_unknown_name_hints_at_the_closest(changes, hint):
    with pytest.raises(UnknownNameError) as caught:
        PlanConfig(**changes).resolve(MI9)
    assert caught.value.hint == hint


def test_exact_designs_are_planned_in_precisions_that_need_no_calibration_images():
    mi9 = load_device("mi9")
    lossless = PlanConfig(lossless=True)
    assert lossless.resolve(mi9).precision == {"cpu": "fp32", "gpu": "fp16"}
    assert PlanConfig(kinds=("rows", "channels")).resolve(mi9).precision == {"cpu": "fp32", "gpu": "fp16"}
    assert PlanConfig().resolve(mi9).precision == {"cpu": "int8", "gpu": "fp16", "dsp": "int8"}
    # a named processor stays: the DSP runs only int8
    # among the precisions other than int8, the measured precision is the default
    assert [lossless.resolve(load_device(name)).precision["cpu"] for name in ("sd888", "rk3588")] == ["fp16", "fp32"]
    assert lossless.replace({"processors": ("cpu", "dsp")}).resolve(mi9).precision == {"cpu": "fp32", "dsp": "int8"}
    with_int8 = lossless.replace({"precision": {"cpu": "int8", "dsp": "int8"}})
    assert with_int8.resolve(mi9).precision == {"cpu": "int8", "gpu": "fp16", "dsp": "int8"}


@pytest.mark.parametrize(("text", "adds_up"), [("latency", True), ("energy", True), ("accuracy", False)])
def test_single_objective_has_weight_1_if_it_is_additive(text, adds_up):
    assert read_objective(f" {text} ") == ({text: 1.0} if adds_up else {})


@given(st.floats(0, 1e6), st.floats(1e-6, 1e6))
def test_weights_are_read_back_as_written(latency, energy):
    objective = f"{latency!r}*latency + {energy!r}*energy"
    assert read_objective(objective) == {"latency": latency, "energy": energy}
    assert not only_latency(PlanConfig(objective=objective))


def test_name_without_weight_has_weight_1_and_zero_weight_leaves_only_latency():
    assert read_objective("latency+2e+1*energy")["energy"] == 20
    assert only_latency(PlanConfig(objective="3*latency+0*energy"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("2*beauty", "unknown objective `beauty`"),
        ("fast", "unknown objective `fast`"),
        ("latency+latency", "names `latency` twice"),
        ("-1*latency", "not a number from 0 up"),
        ("nan*energy", "not a number from 0 up"),
        ("inf*energy", "not a number from 0 up"),
        ("two*energy", "not a number from 0 up"),
        ("0*latency+0*energy", "all weights of the objective are 0"),
        ("latency+accuracy", "`accuracy` is not weighed against others"),
        ("latency-energy", "is not understood"),
        ("", "is not understood"),
        ("latency+", "is not understood"),
    ],
)
def test_invalid_objective_is_refused(text, message):
    with pytest.raises((UsageError, UnknownNameError)) as caught:
        read_objective(text)
    assert message in caught.value.message
    assert caught.value.hint
