"""From a bundle to an inference: plan, state machine, and the threads that execute the plan."""
