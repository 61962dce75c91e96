"""The engines behind a gateway, and what runs on them; no HTTP, no text."""
