"""Sessions behind a queue: requests with deadlines and priorities for one model or several, and what is counted of them."""

from scheduler.tools.service.service import DeadlineError, OverloadedError, Service

__all__ = ["DeadlineError", "OverloadedError", "Service"]
