"""Runs job scripts in bash, with a `srun` that starts its command on this host."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

SRUN = """\
#!/bin/bash
while [[ $1 == --* ]]; do shift; done
exec "$@"
"""
CHANGED = "export PATH=/opt/cuda/bin:$PATH CUDA_HOME=/opt/cuda LONGHAUL_TOKEN=other"
"""A line of `launch.setup`, as `module load cuda` changes variables, and one that it must not change."""
SHOWN = ("/bin/bash", "-c", 'echo "${PATH%%:*} $CUDA_HOME $LONGHAUL_TOKEN"')
OF_A_MASTER = {"CUDA_HOME": "/usr/local/cuda-11", "LONGHAUL_TOKEN": "t"}


def program(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.write_text(text)
    path.chmod(0o700)


def environment(folder: Path) -> dict[str, str]:
    """What a master gives its jobs. folder: of `srun` and other programs."""
    program(folder, "srun", SRUN)
    return {"PATH": f"{folder}:/usr/bin:/bin", **OF_A_MASTER}


def ran(
    text: str, folder: Path, variables: Mapping[str, str] | None = None, before: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    """Run a job script. variables: the environment in which its scheduler starts it. before: words of a command that
    starts bash."""
    (folder / "job.bash").write_text(text)
    command = [*before, "bash", str(folder / "job.bash")]
    return subprocess.run(
        command, env=variables or {}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60
    )


def with_site_profile(folder: Path, text: str) -> tuple[str, ...]:
    """Words of a command that runs another one where /etc/profile is this text. Skips the test where nobody may."""
    (folder / "profile").write_text(text)
    mount = f"mount --bind {folder}/profile /etc/profile"
    found = (shutil.which("unshare") or "false", "-Urm", "sh", "-c", f'{mount} && exec "$@"', "-")
    if subprocess.run([*found, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this host does not allow user namespaces")
    return found
