"""What a page cannot show."""

from __future__ import annotations

from magnetar.admin.errors import AdminError


class RefusedError(AdminError):
    """A route has refused what the page asked for; the page shows its reason with the route's status."""

    slug = "refused"

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.answer_status = status
