"""Tests of the sources."""

import pytest

pytest.register_assert_rewrite("tests.sources.conformance")
