"""HTTP routes: each reads its request and says what answers it."""
