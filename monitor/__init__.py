"""phasewatch: a daemon that watches the step profiles of a training job. Holds the version and nothing heavy."""

__version__ = "0.1.0"
