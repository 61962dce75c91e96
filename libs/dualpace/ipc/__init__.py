"""Between processes: the shared-memory arena, and the ordered channels that control it."""
