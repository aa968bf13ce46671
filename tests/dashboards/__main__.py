"""Write the dashboards: `python -m tests.dashboards`; with `--picture` the README's picture of the Overview instead,
which takes a minute: a real Prometheus watches a run that goes wrong."""

import os
import subprocess
import sys

from tests.dashboards.picture import PICTURE_VARIABLE
from tests.dashboards.rendering import FOLDER, write

if "--picture" in sys.argv[1:]:
    environment = {**os.environ, PICTURE_VARIABLE: str(FOLDER.with_name("overview.png"))}
    command = [sys.executable, "-m", "pytest", "-q", "tests/integration/test_dashboards.py"]
    raise SystemExit(subprocess.run(command, check=False, env=environment).returncode)
write()
