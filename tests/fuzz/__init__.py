"""Coverage-guided fuzzing of what reads bytes and texts that others wrote."""
