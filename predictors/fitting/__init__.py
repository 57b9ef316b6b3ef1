"""How fits are made from measurements; needs the extra `fit` (SciPy, scikit-learn). Using fits needs neither."""
