"""The operator's own errors."""

from dualpace.core.errors import DualPaceError


class ClusterError(DualPaceError):
    """The API server cannot be used as it is: no credentials, no CRDs, no rights."""


class ApiError(Exception):
    """The API server refused a request. `status` is HTTP's; the text is the server's."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
