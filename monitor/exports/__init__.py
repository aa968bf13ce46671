"""Answers in other tools' formats: pure functions from tables to text or bytes."""
