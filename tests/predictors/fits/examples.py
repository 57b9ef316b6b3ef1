"""Small fits, and kernels for them."""

from hypothesis import strategies as st

from predictors.fits import Correction, Fit, HeldOut, Interval
from predictors.fusion import KernelCost

#: Kernels of any size.
kernel_costs = st.builds(
    KernelCost,
    st.sampled_from(["conv1x1", "conv", "depthwise", "elementwise"]),
    st.integers(1, 64),
    st.integers(1, 64),
    st.integers(1, 8),
    st.sampled_from([1, 9, 25]),
    st.integers(1, 5000),
    st.integers(0, 10**6),
    st.integers(1, 10**6),
    st.integers(0, 10**6),
)


def fit(groups, correction=None, **changes):
    return Fit(
        **{
            "processor": "cpu",
            "core_set": "1large",
            "precision": "fp32",
            "backend": "tflite_cpu",
            "runtime": "a runtime",
            "groups": groups,
            "correction": correction or Correction(),
            "interval": Interval(0.9, 0.8, 1.3, "chosen for the test"),
            "held_out": HeldOut(0, 0, 0, 0, 0, 0, 0),
            "source": "chosen for the test",
        }
        | changes
    )
