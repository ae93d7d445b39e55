"""A copy of the code and the configuration of a job, which later edits do not reach.

    JOB/snapshot-0123456789ab/
        preprocessing/, trainer/, eval/, cluster/     the packages
        config.toml, ds_config.json                   of a pretraining, overrides applied
        code.commit, code.diff                        where it is from; trainer.lineage reads them

The folder is named after its content, so a job that waits or runs keeps the code that it was submitted with.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from pathlib import Path

from cluster.programs import CONFIG, DEEPSPEED_CONFIG, Program
from preprocessing.status import is_dir, is_file, make_folder
from trainer.config import to_toml
from trainer.lineage import COMMIT, DIFF, code_version, uncommitted_changes

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("preprocessing", "trainer", "eval", "cluster")


def take_snapshot(folder: Path, pretraining: Program | None = None) -> Path:
    """Copy the code, and the configuration of a pretraining, into a folder within ``folder``; it may be there already.

    Returns:
        The copy's folder.
    """
    make_folder(folder, parents=True)
    with tempfile.TemporaryDirectory(prefix=".snapshot-", dir=folder) as temporary:
        copy = Path(temporary) / "copy"
        _fill(copy, pretraining)
        final = folder / f"snapshot-{_fingerprint(copy)}"
        try:
            copy.rename(final)
        except OSError:
            if not is_dir(final):  # it is, where the same was launched before, or at this moment
                raise
    return final


def _fill(copy: Path, pretraining: Program | None) -> None:
    compiled = shutil.ignore_patterns("__pycache__")
    for package in PACKAGES:  # an editor's locks are links that lead nowhere
        shutil.copytree(ROOT / package, copy / package, ignore=compiled, ignore_dangling_symlinks=True)
    (copy / COMMIT).write_text((code_version()["commit"] or "") + "\n", encoding="utf-8")
    (copy / DIFF).write_text(uncommitted_changes(), encoding="utf-8")
    if pretraining:
        assert pretraining.recipe
        assert pretraining.deepspeed_config
        (copy / CONFIG).write_text(to_toml(pretraining.recipe), encoding="utf-8")
        (copy / DEEPSPEED_CONFIG).write_text(pretraining.deepspeed_config.text, encoding="utf-8")


def _fingerprint(folder: Path) -> str:
    """Of all names and contents below a folder."""
    digest = hashlib.blake2b(digest_size=6)
    for path in sorted(filter(is_file, folder.rglob("*"))):
        name, content = str(path.relative_to(folder)).encode(), path.read_bytes()
        digest.update(b"%d %s %d %s" % (len(name), name, len(content), content))
    return digest.hexdigest()
