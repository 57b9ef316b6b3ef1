"""Ctrl-C at a moment that a test chooses."""


class Interrupt:
    """Progress that is interrupted at its so-many-th call, or at that of those that begin with a word."""

    def __init__(self, number, begins=""):
        self.left, self.begins = number, begins

    def __call__(self, what):
        self.left -= what.startswith(self.begins)
        if not self.left:
            raise KeyboardInterrupt
