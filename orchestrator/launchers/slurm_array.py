"""Submits the shards of an evaluation as one job array of Slurm, finds it again, looks at its tasks, and cancels it.

Everything it needs to know is in the array's directory or in the scheduler, so the next command goes on with the array
of a killed one.
"""

from __future__ import annotations

import hashlib
import queue
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress

import msgspec
from msgspec.structs import replace

from orchestrator.launchers.array_script import array_options, array_script
from orchestrator.launchers.batch import TRIES, Unanswered, for_nodes, submitted, unanswered
from orchestrator.launchers.environment import without_master
from orchestrator.launchers.job_end import Seen, has_ended
from orchestrator.launchers.launcher import Handle
from orchestrator.launchers.slurm import Slurm, answer_of, sbatch, seen_in_queue
from profiles.schema import Profile
from state import durable, python
from state.crash import crash_point
from state.evaluation_array import ArrayDir
from workers.contract import TOKEN_VARIABLE

WORKER = "workers.evaluate"


class SlurmArray:
    """One array. Construct it with a directory that has a spec and a folder for each shard."""

    def __init__(self, profile: Profile, directory: ArrayDir, handle: Handle, at_once: int = 0) -> None:
        """handle: names the array; without `job` it may or may not have been submitted."""
        self.slurm = Slurm(profile)
        self._profile, self._at_once = profile, at_once
        self.directory, self.handle = directory, handle

    # --- submitting --------------------------------------------------------------------------------------------------

    def submit(self) -> None:
        """Save the handle, submit, save it again with the job's id. Raises LonghaulError (CLUSTER)."""
        token = self.handle.token
        environment = for_nodes(without_master(self.handle.owner, token), without="SLURM_")
        del environment[TOKEN_VARIABLE]  # each task has one of its own
        command = python.command(WORKER)
        text = array_script(self._profile, token, command, environment, self.directory, python.ROOT)
        durable.write_file(self.directory.script, text.encode())
        digest = hashlib.sha256(self.directory.spec.read_bytes()).hexdigest()
        self._save(replace(self.handle, spec_sha256=digest))
        crash_point("evaluate.array_planned")
        asked = array_options(self._profile, token, self.directory, self._at_once)
        command = ["sbatch", *asked, str(self.directory.script)]
        job = submitted(self.slurm, lambda: sbatch(command), token)
        crash_point("evaluate.array_submitted")
        self._save(replace(self.handle, job=_array_of(job)))

    def find(self) -> bool:
        """Learn the job's id if the last command could not save it. False: the scheduler knows no such array.

        Raises LonghaulError (CLUSTER) if it does not answer.
        """
        if not self.handle.job:
            try:
                found = self.slurm.find(self.handle.token)
            except Unanswered as error:
                raise unanswered(self.slurm, str(error)) from error
            if found:
                self._save(replace(self.handle, job=_array_of(found)))
        return bool(self.handle.job)

    def _save(self, handle: Handle) -> None:
        durable.write_file(self.directory.handle, msgspec.json.encode(handle))
        self.handle = handle

    # --- looking -----------------------------------------------------------------------------------------------------

    def look(self, shards: Sequence[int]) -> dict[int, Seen]:
        """Each shard as the scheduler sees it: one question for all, and one for each that has ended.

        Raises Unanswered.
        """
        rows = answer_of(
            ["squeue", "-h", "-r", "--me", f"--name={self.handle.token}", "--states=all", "-o", "%i|%T|%r|%N"]
        )
        listed = seen_in_array(rows)
        found = {}
        for number in shards:
            seen = listed.get(number, Seen(""))
            found[number] = self.slurm.final(f"{self.handle.job}_{number}") if has_ended(seen) else seen
        return found

    def cancel(self) -> None:
        """End every task. What they answered is on disk."""
        for words in (["--full", "--signal=KILL"], []):
            with suppress(Unanswered):
                answer_of(["scancel", *words, f"--name={self.handle.token}"])


class Watch:
    """Asks about an array in a thread, so that a scheduler that hangs delays nothing else."""

    def __init__(self, array: SlurmArray) -> None:
        self._array = array
        self._answers: queue.SimpleQueue[Mapping[int, Seen] | Unanswered] = queue.SimpleQueue()
        self._is_asking = False
        self._failures = 0
        self.why_silent = ""
        """What the scheduler said last, if it has not answered several times in a row: nothing is known then."""

    @property
    def is_idle(self) -> bool:
        return not self._is_asking

    def ask(self, shards: Sequence[int]) -> None:
        self._is_asking = True
        threading.Thread(target=self._ask, args=(tuple(shards),), name="slurm", daemon=True).start()

    def _ask(self, shards: Sequence[int]) -> None:
        try:
            self._answers.put(self._array.look(shards))
        except Unanswered as error:
            self._answers.put(error)
        except Exception as error:  # rubbish in an answer says nothing about any job
            self._answers.put(Unanswered(f"an answer was not understood: {error!r}"))

    def answer(self) -> Mapping[int, Seen]:
        """What has been answered since the last call; empty: nothing."""
        try:
            found = self._answers.get_nowait()
        except queue.Empty:
            return {}
        self._is_asking = False
        if isinstance(found, Unanswered):
            self._failures += 1
            self.why_silent = str(found) if self._failures >= TRIES else ""
            return {}
        self._failures, self.why_silent = 0, ""
        return found


def seen_in_array(rows: str) -> dict[int, Seen]:
    """Parse rows of `squeue -r -o %i|%T|%r|%N`: the task's number -> what is seen of it. Raises Unanswered. (pure)

    If Slurm took the array twice, the copy that lives counts: the other found the claims, and ended.
    """
    found: dict[int, Seen] = {}
    for row in rows.splitlines():
        job = row.partition("|")[0]
        number = job.rpartition("_")[2]
        if not number.isdigit() or row.count("|") != 3:
            raise Unanswered(f"squeue says {row[:200]!r}")
        seen = seen_in_queue(row)
        if int(number) not in found or not has_ended(seen):
            found[int(number)] = seen
    return found


def _array_of(job: str) -> str:
    """`12` of `12_[0-3]`."""
    return job.partition("_")[0]
