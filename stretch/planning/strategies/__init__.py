"""Further search strategies: ``foo`` is a file ``stretch/planning/strategies/foo.py`` with a function ``search(space, totals)``."""
