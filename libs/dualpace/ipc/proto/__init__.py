"""Generated protobuf messages of the engine protocol; see engine.proto."""
