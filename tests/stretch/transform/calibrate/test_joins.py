import pytest

torch = pytest.importorskip("torch")

from stretch.transform import build  # noqa: E402
from stretch.transform.calibrate.joins import fit_join, readout  # noqa: E402
from stretch.transform.calibrate.pixels import rows_of  # noqa: E402
from stretch.transform.calibrate.walk import trunk_of  # noqa: E402
from tests.stretch.designs import cpu_and  # noqa: E402

pytestmark = pytest.mark.torch


def images(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("join", ["project", "sum"])
def test_join_is_least_squares_of_the_target_on_the_trunks(captured, join):
    found = captured("tiny_resnet")
    design = cpu_and("gpu", found.graph, join)
    model = build(found, design)
    part = next(s for s in design.segments if not s.whole)
    segment = model.get_submodule(part.name)
    shape = found.graph.by_name[part.start].shape[1:]
    x = [images(4, *shape), images(3, *shape, seed=1)]
    with torch.no_grad():
        trunks = [[trunk_of(model.branch(part.name, b.processor), batch) for batch in x] for b in part.branches]
        target = [images(*segment(batch).shape, seed=2) for batch in x]
        together = [torch.cat([rows_of(x, 10**6) for x in own]) for own in (*trunks, target)]
        fit_join(part, segment, together[:-1], together[-1], 1e-9)
        got = torch.cat([segment(batch) for batch in x])
        flat = lambda t: t.movedim(1, -1).flatten(0, -2).double()  # noqa: E731 - said once
        columns, at = [], 0
        whole = [flat(torch.cat(trunk)) for trunk in trunks]
        shares = [b.partition for b in part.branches] if join == "project" else [got.shape[1]]
        for share, rows in zip(shares, whole if join == "project" else [torch.cat(whole, 1)], strict=True):
            rows = torch.cat([rows, torch.ones(len(rows), 1, dtype=rows.dtype)], 1)
            columns.append(rows @ torch.linalg.lstsq(rows, flat(torch.cat(target))[:, at : at + share]).solution)
            at += share
    wanted, expected = flat(torch.cat(target)), torch.cat(columns, 1)
    least, reached = (expected - wanted).square().mean(), (flat(got) - wanted).square().mean()
    assert least * (1 - 1e-6) <= reached < 1.001 * least


def test_readout_finds_a_linear_map_and_its_intercept():
    x, true = images(400, 6), images(3, 6, seed=2)
    weight, bias = readout(x, x @ true.T + 4, 1e-9)
    torch.testing.assert_close(weight, true, rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(bias, torch.full((3,), 4.0), rtol=1e-2, atol=1e-2)
