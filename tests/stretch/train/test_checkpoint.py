import pytest

torch = pytest.importorskip("torch")

from predictors.errors import StretchError  # noqa: E402 - torch may be missing
from stretch.models.tiny import tiny_resnet  # noqa: E402
from stretch.train.checkpoint import load_checkpoint, read_state, save_checkpoint  # noqa: E402
from stretch.train.config import SandwichConfig, TrainConfig  # noqa: E402
from stretch.train.data import synthetic  # noqa: E402
from stretch.train.distributed import World  # noqa: E402
from stretch.train.loop import Run  # noqa: E402
from stretch.train.sandwich import SandwichStep  # noqa: E402
from stretch.train.supernet import Supernet  # noqa: E402
from tests.stretch.train.supernets import pool  # noqa: E402

pytestmark = pytest.mark.torch
OWN = {"recipe": "a", "design": "b"}
PLAIN = TrainConfig(epochs=2, batch=16, learning_rate=0.05)
CONFIGS = {"sgd": PLAIN, "adamw": TrainConfig(epochs=2, batch=16, optimizer="adamw", learning_rate=1e-3, ema=0.9, clip=1.0, accumulate=2)}


def network_run(config):
    torch.manual_seed(0)
    return Run(tiny_resnet(), *synthetic(4, 16, 64), config)


def supernet_run(captured):
    torch.manual_seed(0)
    supernet = Supernet(captured("tiny_resnet"), pool(captured("tiny_resnet").graph)[:2])
    make = lambda prepare, device: SandwichStep(supernet.train(), PLAIN, prepare, None, device, SandwichConfig(random=1), World())  # noqa: E731
    return Run(supernet, *synthetic(4, 16, 32), PLAIN, make_step=make)


def finish(run):
    for _ in run.steps():
        pass
    weights = {k: v.clone() for k, v in run.model.state_dict().items()}
    return weights | (run.step.mean.mean if run.step.mean else {}), [(e.loss, e.accuracy) for e in run.history.epochs]


@pytest.mark.parametrize(
    ("kind", "steps"), [("sgd", 5), *(pytest.param(k, s, marks=pytest.mark.slow) for k in ("sgd", "adamw", "supernet") for s in (1, 4, 6))]
)
def test_run_that_goes_on_ends_bit_for_bit_as_one_that_never_stopped(captured, tmp_path, kind, steps):
    make = (lambda: supernet_run(captured)) if kind == "supernet" else (lambda: network_run(CONFIGS[kind]))
    steps = min(steps, 3) if kind == "supernet" else steps
    whole = finish(make())
    first = make()
    for _, _ in zip(range(steps), first.steps(), strict=False):
        pass
    save_checkpoint(tmp_path / "c.safetensors", first, OWN, 0.5)
    torch.manual_seed(99)
    second = make()
    torch.rand(3)
    assert load_checkpoint(tmp_path / "c.safetensors", second, OWN).best == 0.5
    weights, rows = finish(second)
    assert rows == whole[1]
    for name, value in whole[0].items():
        assert torch.equal(value, weights[name]), name


def test_checkpoint_of_another_recipe_design_or_number_of_processes_is_refused(tmp_path):
    run = network_run(PLAIN)
    path = tmp_path / "c.safetensors"
    save_checkpoint(path, run, OWN, None)
    for what in OWN:
        with pytest.raises(StretchError, match=f"another {what}"):
            load_checkpoint(path, run, OWN | {what: "x"})
    run.world = World(0, 2)
    with pytest.raises(StretchError, match="1 processes, this one has 2"):
        load_checkpoint(path, run, OWN)


@pytest.mark.parametrize("damage", [b"", b"x" * 100])
def test_damaged_checkpoint_is_named(tmp_path, damage):
    path = tmp_path / "c.safetensors"
    path.write_bytes(damage)
    with pytest.raises(StretchError, match="no whole checkpoint"):
        read_state(path)
