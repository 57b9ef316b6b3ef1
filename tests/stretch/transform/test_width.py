import pytest

torch = pytest.importorskip("torch")


from stretch.transform.width import Trunk  # noqa: E402

pytestmark = pytest.mark.torch


def test_channels_that_stand_for_the_same_original_share_it():
    trunk = Trunk.of(torch.tensor([0, 1, 1, 2, 1]))
    assert trunk.share.tolist() == pytest.approx([1, 1 / 3, 1 / 3, 1, 1 / 3])


def test_shares_of_every_original_channel_add_up_to_one():
    index = torch.randint(0, 20, (100,), generator=torch.Generator().manual_seed(0))
    trunk = Trunk.of(index)
    sums = torch.zeros(20).index_add_(0, trunk.index, trunk.share)
    assert sums[index.unique()].tolist() == pytest.approx([1.0] * len(index.unique()))
