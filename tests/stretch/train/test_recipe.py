import tomllib
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictors.errors import StretchError
from stretch.planning.config import PlanConfig
from stretch.train.recipe import DataConfig, Recipe, SupernetConfig, TrainConfig, load_recipe, recipe_to_toml


def save(tmp_path, text):
    path = tmp_path / "r.toml"
    path.write_text(text)
    return path


HEAD = 'model = "tiny_resnet"\ndevice = "mi9"\n'
any_text = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=12)
ratios = st.floats(1e-6, 1e6)

recipes = st.builds(
    Recipe,
    model=any_text,
    device=any_text,
    weights=any_text,
    design=any_text,
    start=st.sampled_from(["inherit", "calibrate", "scratch"]),
    plan=st.builds(
        PlanConfig,
        processors=st.lists(any_text, max_size=3).map(tuple),
        params=st.none() | st.tuples(ratios, ratios),
        precision=st.dictionaries(any_text, any_text, max_size=3),
        latency_budget=st.none() | ratios,
    ),
    data=st.builds(DataConfig, path=any_text, count=st.integers(1, 1 << 31)),
    train=st.builds(TrainConfig, learning_rate=ratios, nesterov=st.booleans()),
    supernet=st.none() | st.builds(SupernetConfig, designs=st.lists(any_text, max_size=3).map(tuple), macs=st.tuples(ratios, ratios)),
)


@given(recipes)
def test_recipe_written_as_toml_is_read_back_by_tomllib(recipe):
    assert msgspec.convert(tomllib.loads(recipe_to_toml(recipe)), Recipe) == recipe


def test_recipe_of_an_earlier_version_can_be_read(tmp_path):
    table = '[plan]\nprocessors = ["cpu", "gpu"]\nmacs = [0.97, 1.03]\nprecision = {"cpu" = "int8", "g\\u007fu" = "fp16"}\n'
    plan = PlanConfig(processors=("cpu", "gpu"), macs=(0.97, 1.03), precision={"cpu": "int8", "g\x7fu": "fp16"})
    assert load_recipe(save(tmp_path, f"{HEAD}version = 1\n\n{table}")) == Recipe(model="tiny_resnet", device="mi9", plan=plan)


def test_set_option_replaces_values_of_every_depth_and_type(tmp_path):
    changes = ("train.epochs=7", "train.nesterov=false", "data.name=cifar10", "supernet.pool=3", "weights=none")
    recipe = load_recipe(save(tmp_path, HEAD), changes)
    assert (recipe.train.epochs, recipe.train.nesterov, recipe.data.name, recipe.weights) == (7, False, "cifar10", "none")
    assert recipe.supernet is not None
    assert recipe.supernet.pool == 3


WRONG = "`{}` is wrong"


@pytest.mark.parametrize(
    ("change", "sentence", "hint"),
    [
        ("modle=1", "unknown key `modle`", "`model`"),
        ("train.epoch=3", "unknown key `train.epoch`", "`train.epochs`"),
        ("plan.stratgy=exact", "unknown key `plan.stratgy`", "`plan.strategy`"),
        ("train.amp=fp8", "`train.amp` = `fp8`", "it is one of none, bf16, fp16"),
        ("data.name=cifar11", "unknown image set `cifar11`", "did you mean `cifar10`?"),
        ("train.epochs=0", "cannot be used: `train.epochs` is wrong: expected", ""),
        ("data.count=few", "cannot be used: `data.count` is wrong: expected", ""),
        ("keep.last=-1", "cannot be used: `keep.last` is wrong: expected", ""),
        ("data=3", "cannot be used: `data` is wrong: expected", ""),
        ("plan.precision.gpu=5", "`plan.precision.gpu` is wrong: expected `str`, got `int`", ""),
        ("supernet.macs=[0.9, 'x']", "`supernet.macs[1]` is wrong: expected `float`, got `str`", ""),
        ("classes=10000000", WRONG.format("classes"), ""),
        ("data.size=1000000", WRONG.format("data.size"), ""),
        ("data.count=1000000000000", WRONG.format("data.count"), ""),
        ("data.workers=100000", WRONG.format("data.workers"), ""),
        ("train.seed=-1", WRONG.format("train.seed"), ""),
        ("train.seed=9223372036854775807", WRONG.format("train.seed"), ""),
        ("train.seed=99999999999999999999", "63 bits", ""),
        ("train.learning_rate=inf", "is inf", ""),
        ("train.learning_rate=1e300", WRONG.format("train.learning_rate"), ""),
        ("train.weight_decay=nan", "is nan", ""),
        ("plan.macs=[1e-300, 1e300]", WRONG.format("plan.macs[0]"), ""),
        ("plan.n_meet=1000000000000", WRONG.format("plan.n_meet"), ""),
        ("supernet.pool=1000000000", WRONG.format("supernet.pool"), ""),
        ("data.path=" + "[" * 5000, "nested deeper", ""),
        ("[train]\nepoch = 3\n", "unknown key `train.epoch`", "`train.epochs`"),
        ("trust_code = true\n", "unknown key `trust_code`", ""),
        ("[[segments]]\n", "is a design", ""),
        ("version = 9\n", "version 9", "upgrade"),
    ],
)
def test_wrong_key_or_value_is_refused_with_its_full_name(tmp_path, change, sentence, hint):
    text, changes = (HEAD + change, ()) if change.endswith("\n") else (HEAD, (change,))
    with pytest.raises(StretchError) as error:
        load_recipe(save(tmp_path, text), changes)
    assert sentence in error.value.message
    assert hint in (error.value.hint or "")


RECIPE = """
model = "nets/mine.py:make"
device = "mi9"
weights = "w.pth"
design = "d.toml"
[data]
name = "images"
path = "../photos"
[plan]
accuracy = "accuracy.json"
[supernet]
designs = ["a.toml", "/b.toml"]
"""


def test_recipe_paths_are_relative_to_its_folder_and_command_line_paths_to_the_current_folder(tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "r.toml").write_text(RECIPE)
    monkeypatch.chdir(tmp_path / "elsewhere")
    for written in (tmp_path / "r.toml", Path("../r.toml")):
        recipe = load_recipe(written)
        paths = [recipe.design, recipe.data.path, recipe.weights, recipe.plan.accuracy, *recipe.supernet.designs]
        names = ("d.toml", "../photos", "w.pth", "accuracy.json", "a.toml", "/b.toml")
        assert [Path(path).resolve() for path in paths] == [(tmp_path / name).resolve() for name in names]
        file, _, factory = recipe.model.rpartition(":")
        assert (Path(file).resolve(), factory) == (tmp_path / "nets/mine.py", "make")
    recipe = load_recipe(tmp_path / "r.toml", ("data.path=mine", "design=own.toml", "supernet.designs=['c.toml']"))
    paths = [recipe.data.path, recipe.design, *recipe.supernet.designs]
    assert [Path(path) for path in paths] == [tmp_path / "elsewhere" / name for name in ("mine", "own.toml", "c.toml")]
