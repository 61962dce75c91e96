"""Measures a node with one model, and writes its profile."""
