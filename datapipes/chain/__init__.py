"""Stages and how they are chained, and one epoch of a chain."""
