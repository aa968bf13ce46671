"""Write the dashboards: `python -m tests.dashboards`."""

from tests.dashboards.rendering import write

write()
