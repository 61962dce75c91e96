"""The public gRPC API `dualpace.v1`, and typed clients of it.

Knows the API alone: nothing of the gateway or the engines. Needs grpcio and protobuf.
"""

from dualpace.api.client import ApiFailedError, AsyncClient, Client

__all__ = ["ApiFailedError", "AsyncClient", "Client"]
