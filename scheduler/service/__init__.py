"""Sessions behind a queue: requests with deadlines and priorities for one model or several, and what is counted of them."""

from scheduler.service.requests import DeadlineError, OverloadedError
from scheduler.service.service import Service

__all__ = ["DeadlineError", "OverloadedError", "Service"]
