"""Equation 4 at its edge."""

from stretch.planning.constraints.communication import Communication
from tests.stretch.planning.combinations import ways


def test_communication_is_at_most_alpha_of_the_segment():
    assert Communication().mask(0.2, ways(exchange_ms=[1.999, 2.0, 2.001]), 10.0).tolist() == [[True, True, False]]
