"""Interface for observing a run."""

from stretch.train.loop import Epoch, Run


class Listener:
    """Observer of a run in its first process; the default does nothing."""

    def said(self, what: str) -> None:
        """Called with a message for the user."""

    def stepped(self, run: Run) -> None:
        """A step is done."""

    def finished(self, row: Epoch) -> None:
        """An epoch is done."""
