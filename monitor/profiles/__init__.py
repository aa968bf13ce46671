"""Bytes of one profile file to columns: pure functions without state, I/O or clock."""
