import pytest

torch = pytest.importorskip("torch")

from predictors.errors import StretchError  # noqa: E402 - torch may be missing
from stretch.models.tiny import tiny_resnet  # noqa: E402
from stretch.train.config import TrainConfig  # noqa: E402
from stretch.train.data import synthetic  # noqa: E402
from stretch.train.loop import Run, train  # noqa: E402

pytestmark = pytest.mark.torch
#: Steps enough that every seed, thread count and instruction set ends far from chance: of 72 runs the worst had a
#: hundredth of its first epoch's loss left, and none missed an image that it had not seen.
SHORT = TrainConfig(epochs=8, batch=32, learning_rate=0.005)


def fresh(seed=0):
    torch.manual_seed(seed)
    return tiny_resnet()


@pytest.mark.slow
def test_network_learns_a_set_that_can_be_learned():
    history = train(fresh(), *synthetic(4, 16, 320), SHORT)
    assert history.accuracy > 0.6
    assert history.epochs[-1].loss < history.epochs[0].loss / 4


def test_equal_seeds_give_equal_weights():
    one, other = fresh(), fresh()
    for model in (one, other):
        train(model, *synthetic(4, 16, 64), TrainConfig(epochs=1, batch=32))
    for key, value in one.state_dict().items():
        assert torch.equal(value, other.state_dict()[key])


@pytest.mark.slow
def test_student_of_an_untrained_teacher_learns_what_the_teacher_says():
    teacher, student = fresh(1), fresh(2)
    sets = synthetic(4, 16, 320)
    train(teacher, *sets, SHORT)
    config = TrainConfig(epochs=8, batch=32, learning_rate=0.005, distill=1.0, temperature=2.0)
    run = Run(student, *sets, config, teacher=teacher)
    rows = [row for row in run.steps() if row is not None]
    assert rows[-1].loss < rows[0].loss / 4
    images = run.normalise(sets[1].images)
    with torch.inference_mode():
        agree = (student.eval()(images).argmax(1) == teacher.eval()(images).argmax(1)).float().mean()
    assert agree > 0.6


def test_loss_that_is_no_number_stops_the_run_naming_the_step():
    with pytest.raises(StretchError, match=r"epoch 1 \(step 2\)"):
        train(fresh(), *synthetic(4, 16, 64), TrainConfig(epochs=3, batch=32, learning_rate=1e30))


def test_set_smaller_than_a_batch_is_refused():
    with pytest.raises(StretchError, match="less than one batch of 512"):
        train(fresh(), *synthetic(4, 16, 64), TrainConfig(batch=512))
