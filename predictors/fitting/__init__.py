"""Fits are made from measurements here; needs the extra `fit` (SciPy, scikit-learn), which using fits does not."""
