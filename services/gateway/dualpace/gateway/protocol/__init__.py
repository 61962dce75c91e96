"""What clients may send: fields, types and ranges. It knows nothing of a model or engine."""
