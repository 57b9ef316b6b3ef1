"""Formulas as they ship, and what a formula may not say."""

import pytest

from predictors.errors import StretchError
from predictors.fitting import formula as module
from predictors.fitting.formula import load_formula


def test_parameter_takes_a_kind_with_its_variants_or_one_of_them():
    of = {parameter.groups: parameter for parameter in load_formula("tflite_cpu").parameters}
    kind, variant = of["elementwise",], of["elementwise:mul",]
    assert kind.takes("elementwise")
    assert kind.takes("elementwise:mul")
    assert variant.takes("elementwise:mul")
    assert not variant.takes("elementwise")


def test_backend_that_differs_in_choices_has_the_formula_of_its_base():
    assert load_formula("tflite_gpu_adreno") is load_formula("tflite_gpu")


def test_backend_without_a_formula_is_told_with_those_that_have_one():
    with pytest.raises(StretchError, match="kernels of `hexagon` cannot be fitted") as caught:
        load_formula("hexagon")
    assert "tflite_cpu" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kernels = { conv = ['speed'] }", "speed"),
        ("parameters = [{ term = 'macs', groups = ['conv'], shares = ['luck'], prior = {} }]", "`luck`, which \\[threads\\] lacks"),
        ("colour = 3", "is not a formula"),
    ],
)
def test_wrong_formula_is_refused(tmp_path, monkeypatch, text, message):
    monkeypatch.setattr(module, "FORMULA_FOLDER", tmp_path)
    (tmp_path / "hexagon.toml").write_text(f"source = 'a test'\n{text}\n")
    load_formula.cache_clear()
    try:
        with pytest.raises(StretchError, match=message):
            load_formula("hexagon")
    finally:
        load_formula.cache_clear()
