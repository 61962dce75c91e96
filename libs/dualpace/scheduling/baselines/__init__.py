"""Policies of other systems, behind our interfaces, to measure against."""
