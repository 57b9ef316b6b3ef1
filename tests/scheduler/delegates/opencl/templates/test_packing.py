import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from scheduler.delegates.opencl.templates.packing import pack_dense, pack_depthwise, pack_grouped, pack_stem

lanes = st.sampled_from([4, 8])
small = st.integers(1, 3)


def weights(*shape):
    return np.arange(1, 1 + int(np.prod(shape)), dtype=np.float32).reshape(shape)


@given(st.integers(1, 20), st.integers(1, 10), small, small, lanes, small, st.booleans())
def test_dense_weight_is_where_the_kernel_reads_it(m, c, kh, kw, ln, vc, blocked):
    w = weights(m, c, kh, kw)
    packed = pack_dense(w, ln, vc, blocked_input=blocked)
    assert packed.shape[3] == (-(-c // ln) * ln if blocked else c)
    for o, i, y, x in np.ndindex(*w.shape):
        assert packed[o // (vc * ln), y, x, i, o % (vc * ln)] == w[o, i, y, x]
    assert packed.sum() == w.sum()


@given(st.integers(1, 5), st.integers(1, 6), st.integers(1, 6), lanes, small)
def test_grouped_weight_meets_its_own_channels(groups, per_in, per_out, ln, vc):
    w = weights(groups * per_out, per_in, 1, 2)
    packed, first = pack_grouped(w, groups, groups * per_in, ln, vc)
    for o, i, _, x in np.ndindex(*w.shape):
        t = o // (vc * ln)
        channel = o // per_out * per_in + i
        assert packed[t, 0, x, channel - first[t] * ln, o % (vc * ln)] == w[o, i, 0, x]
    assert packed.sum() == w.sum()
    assert (first >= 0).all()
    assert ((first + packed.shape[3] // ln) * ln <= -(-groups * per_in // ln) * ln).all()


@given(st.integers(1, 20), small, small, small, lanes, small)
def test_stem_weight_is_where_the_kernel_reads_it(m, c, kh, kw, ln, vc):
    w = weights(m, c, kh, kw)
    packed = pack_stem(w, ln, vc)
    for o, i, y, x in np.ndindex(*w.shape):
        assert packed[o // (vc * ln), i, y, x, o % (vc * ln)] == w[o, i, y, x]


@given(st.integers(1, 20), small, small, lanes)
def test_depthwise_weight_is_where_the_kernel_reads_it(c, kh, kw, ln):
    w = weights(c, 1, kh, kw)
    packed = pack_depthwise(w, ln)
    for o, _, y, x in np.ndindex(*w.shape):
        assert packed[o // ln, y, x, o % ln] == w[o, 0, y, x]
