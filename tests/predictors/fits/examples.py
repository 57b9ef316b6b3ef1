"""Small fits."""

from predictors.fits import Correction, Fit, HeldOut, Interval


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
