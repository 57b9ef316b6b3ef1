"""Who wants to know how a run goes."""

from stretch.train.loop import Epoch, Run


class Listener:
    """Told of a run in its first process; does nothing by itself."""

    def said(self, what: str) -> None:
        """Something happened that a person should know."""

    def stepped(self, run: Run) -> None:
        """A step is done."""

    def finished(self, row: Epoch) -> None:
        """An epoch is done."""
