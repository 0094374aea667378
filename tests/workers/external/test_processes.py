"""The end of another program's job: no process is left, nor Ray's folder, whoever starts or writes meanwhile."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

from tests import REPOSITORY
from workers.external.processes import remove_spool

ENDS_ALL = """
import subprocess, sys, time
import psutil
from workers.external import processes

processes.adopt_orphans()
# Each child starts the next one and waits for it, so that killing the first makes orphans of the others.
chain = "import subprocess,sys,time; n=int(sys.argv[1]);"
chain += " n and subprocess.Popen([sys.executable,'-c',sys.argv[2],str(n-1),sys.argv[2]]); time.sleep(60)"
subprocess.Popen([sys.executable, "-c", chain, "6", chain])
until = time.monotonic() + 30
while len(psutil.Process().children(recursive=True)) < 3 and time.monotonic() < until:
    time.sleep(0.01)
began = time.monotonic()
processes.end_children()  # in the middle of the chain
print(len(psutil.Process().children(recursive=True)), time.monotonic() - began < processes.END_S)
"""


def test_processes_that_start_while_others_end_are_ended_too() -> None:
    done = subprocess.run([sys.executable, "-c", ENDS_ALL], cwd=REPOSITORY, capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["0", "True"], done.stderr


def test_a_folder_that_somebody_still_writes_in_is_removed_once_they_end(tmp_path: Path) -> None:
    spool = tmp_path / "longhaul-ray-1-a"
    (spool / "session" / "logs").mkdir(parents=True)
    ends_at = time.monotonic() + 0.5

    def write() -> None:
        while time.monotonic() < ends_at:
            with suppress(OSError):
                (spool / "session" / "logs" / f"{time.monotonic_ns()}").touch()

    writers = [threading.Thread(target=write) for _ in range(4)]
    for writer in writers:
        writer.start()
    remove_spool(str(spool))
    assert not spool.exists()
    for writer in writers:
        writer.join()
