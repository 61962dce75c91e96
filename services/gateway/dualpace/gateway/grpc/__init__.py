"""The gRPC side: `dualpace.v1`, by the same ways as HTTP."""
