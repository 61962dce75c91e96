"""The device's engine: every prefill, device-resident decodes, and where each request lives."""
