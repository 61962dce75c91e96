"""What clients get: each kind of response object is built in one place."""
