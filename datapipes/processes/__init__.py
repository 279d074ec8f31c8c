"""Processes: how they are started, and how they share memory."""
