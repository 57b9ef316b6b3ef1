import pytest

torch = pytest.importorskip("torch")

from predictors.errors import StretchError, UsageError  # noqa: E402 - torch may be missing
from stretch.train.prepare import macs_ratios, prepare, sample  # noqa: E402
from stretch.train.recipe import load_recipe  # noqa: E402
from stretch.train.supernet import Supernet  # noqa: E402
from tests.stretch.train.recipes import network, supernet  # noqa: E402

pytestmark = pytest.mark.torch

MINE = "from stretch.models.tiny import tiny_resnet\n\n\ndef make():\n    return tiny_resnet()\n"


def unnamed(recipe):
    """Let the design beside a recipe fit any model."""
    design = recipe.with_name("d.toml")
    design.write_text(design.read_text().replace('model = "tiny_resnet"\n', ""))


def ready(path, *changes):
    return prepare(load_recipe(path, changes), path.parent)


@pytest.mark.slow
def test_identity_tells_recipes_designs_and_weights_apart_but_not_where_files_are(tmp_path):
    path = network(tmp_path)
    one = ready(path).identity
    assert ready(path, "data.workers=3", "keep.last=9", "data.path=elsewhere").identity == one
    other = ready(path, "train.seed=5").identity
    assert other["recipe"] != one["recipe"]
    assert other["model"] != one["model"]
    assert other["design"] == one["design"]


def test_calibrated_start_differs_from_the_inherited_one_and_scratch_from_both(tmp_path):
    path = network(tmp_path)
    weights = []
    for start in ("inherit", "calibrate", "scratch"):
        built = ready(path, f"start={start}")
        net = built.network(torch.device("cpu"), built.images()[0])
        weights.append(net.branch("s2", "cpu").get_submodule("join_conv").weight)
    assert not torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_pool_of_a_supernet_is_that_of_its_design_files_and_within_its_range(tmp_path):
    path = supernet(tmp_path)
    built = ready(path)
    assert isinstance(built.network(torch.device("cpu"), None), Supernet)
    assert all(0.8 <= ratio <= 1.2 for ratio in macs_ratios(built))
    with pytest.raises(StretchError, match="of the original's MACs"):
        ready(path, "supernet.macs=[0.1, 0.2]")


def test_images_for_statistics_are_prepared_as_in_training(tmp_path):
    built = ready(network(tmp_path))
    batches = sample(built.images()[0], 40, 0, torch.device("cpu"))
    assert 40 <= sum(len(b) for b in batches) <= 64
    # Shifted images have borders of zeros, which is the mean.
    assert any(bool((b[:, :, 0] == 0).all(1).all(1).any()) for b in batches)


def test_range_of_a_pool_that_is_upside_down_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"from 1\.2 to 0\.8"):
        ready(supernet(tmp_path), "supernet.macs=[1.2, 0.8]")


def test_new_head_is_the_same_whatever_was_drawn_before(tmp_path):
    path = network(tmp_path)
    rows = []
    for state in (1, 2):
        torch.manual_seed(state)
        rows.append(ready(path, "classes=7"))
    one, two = (row.captured.module.state_dict() for row in rows)
    assert one["fc.weight"].shape[0] == 7
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert rows[0].identity == rows[1].identity
    assert ready(path, "classes=7", "train.seed=9").identity["model"] != rows[0].identity["model"]


@pytest.mark.slow
@pytest.mark.parametrize("model", ["mine.py:make", "stretch.models.tiny:tiny_resnet"])
def test_python_code_of_a_recipe_runs_only_where_it_is_trusted(tmp_path, model):
    (tmp_path / "mine.py").write_text(f"from pathlib import Path\nPath({str(tmp_path / 'ran')!r}).touch()\n{MINE}")
    path = network(tmp_path)
    unnamed(path)
    path.write_text(path.read_text().replace("tiny_resnet", model, 1))
    with pytest.raises(UsageError, match="would be executed") as error:
        ready(path)
    assert "--trust-code" in error.value.hint
    assert not (tmp_path / "ran").exists()
    built = prepare(load_recipe(path), path.parent, trust_code=True)
    assert built.captured.graph.by_name[built.captured.graph.output].shape == (1, 10)


def test_recipe_cannot_trust_its_own_code(tmp_path):
    path = network(tmp_path)
    path.write_text("trust_code = true\n" + path.read_text())
    with pytest.raises(UsageError, match="unknown key `trust_code`"):
        ready(path)
