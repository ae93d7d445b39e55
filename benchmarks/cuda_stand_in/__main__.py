"""Run a Python program with the stand-in: python benchmarks/cuda_stand_in PROGRAM [ARGUMENTS]."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from cuda_stand_in import build

if len(sys.argv) < 2:
    sys.exit(__doc__)
with tempfile.TemporaryDirectory() as folder:
    try:
        environment = {**os.environ, **build(Path(folder))}
    except RuntimeError as error:
        sys.exit(str(error))
    code = subprocess.run([sys.executable, *sys.argv[1:]], env=environment).returncode
sys.exit(code)
