from hypothesis import given
from hypothesis import strategies as st

from scheduler.delegates.opencl.memory import Allocation, Intermediate, intermediates, plan_by_size
from tests.scheduler.delegates.opencl import networks

lifetimes = st.lists(st.tuples(st.integers(1, 5000), st.integers(0, 12), st.integers(0, 6)), max_size=14).map(
    lambda drawn: [Intermediate(str(i), size, first, first + length) for i, (size, first, length) in enumerate(drawn)]
)


@given(lifetimes)
def test_tensors_that_live_at_once_never_overlap(tensors):
    plan = plan_by_size(tensors, 128)
    for a in tensors:
        assert plan.offsets[a.name] % 128 == 0
        assert plan.offsets[a.name] + a.bytes <= plan.sizes[0]
        for b in tensors:
            if a is not b and a.first <= b.last and b.first <= a.last:
                apart = plan.offsets[a.name] + a.bytes <= plan.offsets[b.name] or plan.offsets[b.name] + b.bytes <= plan.offsets[a.name]
                assert apart


@given(lifetimes)
def test_arena_is_no_larger_than_all_tensors_together(tensors):
    assert plan_by_size(tensors, 1).sizes[0] <= sum(t.bytes for t in tensors)


def test_intermediates_of_a_chain_live_from_their_writer_to_their_last_reader(tmp_path):
    launches = networks.launches(networks.residual_block(tmp_path / "m.onnx"), winograd="off")
    found = {t.name: (t.first, t.last) for t in intermediates(launches)}
    assert found == {"x:blocked": (0, 2), "r1": (1, 2)}


def test_kernels_compute_the_same_with_a_buffer_for_each_tensor(tmp_path):
    def naive(tensors, alignment):
        numbers = {t.name: i for i, t in enumerate(tensors)}
        return Allocation(dict.fromkeys(numbers, 0), numbers, tuple(t.bytes for t in tensors))

    assert networks.error(networks.classifier(tmp_path / "m.onnx"), planner=naive) <= 1e-5
