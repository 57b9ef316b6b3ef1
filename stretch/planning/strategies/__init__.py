"""Further search strategies: ``foo`` is a file ``stretch/planning/strategies/foo.py`` with a function ``search(space, low, high, n_meet)``."""
