"""What a run of the tests leaves in the temporary folder: nothing, since it has one of its own."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path


def test_this_run_and_what_it_starts_have_a_temporary_folder_that_is_removed(tmp_path):
    own = Path(tempfile.gettempdir())
    assert own.name.startswith("datapipes-tests-")
    assert own in tmp_path.parents
    command = [sys.executable, "-c", "import tempfile; print(tempfile.gettempdir())"]
    child = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert Path(child.stdout.strip()) == own
    assert os.environ["TMPDIR"] == str(own)
