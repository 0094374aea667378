"""The trainer's side of the user's reward functions."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path

import msgspec
from msgspec import Struct

from profiles.errors import ExitCode, LonghaulError
from profiles.reward_files import file_of
from workers.rewards.functions.protocol import Ask, Call, Ended, Ready, Reply, Setup, Signature
from workers.user_code.calls import IMPORT_S, CallRunner, Job, Limits

LOG = "reward-functions.log"


class Failure(Struct, frozen=True):
    """A function that gave no reward for a rollout.

    function: as the profile names it. row: line of the data file, which `source` names in a mixture. why: a clause
    without a subject. path: the file with what it was given; empty: MOST_FILES are kept already, or the disk is full.
    """

    function: str
    row: int
    why: str
    path: str = ""
    source: str = ""

    @property
    def text(self) -> str:
        where = f"; {self.path} has what it was given" if self.path else ""
        return f"the reward {self.function} failed on row {self.row} of {self.source or 'the data'}: {self.why}{where}"

    def error(self) -> LonghaulError:
        """The end of the run, where the profile says so."""
        return LonghaulError(
            self.text,
            kept="the head, unchanged; the rollouts of this step are drawn again on resume",
            next_command=f"python -m orchestrator rewards test {self.function}   then resume; or resume with "
            "--set grpo.reward.on_error=skip --accept-changes",
            exit_code=ExitCode.REWARD,
        )


class Answer(msgspec.Struct, frozen=True):
    """outcomes: for each rollout of the call its named values (the function's own name is the reward), or why there is
    none. seconds: how long the call took; 0 if it never came back."""

    outcomes: list[Mapping[str, float] | Failure]
    seconds: float = 0.0


class FunctionRunner(CallRunner[Call, Answer]):
    """A context manager: the process of the functions, and nothing that they started, outlives it.

    hashes: name -> sha256 of its file. signatures: of each function, once it is entered.
    """

    host, log, what = "workers.rewards.functions.caller", LOG, "reward functions"
    replies = msgspec.msgpack.Decoder(Reply)

    def __init__(
        self,
        names: Sequence[str],
        limits: Limits,
        folder: Path,
        *,
        cwd: Path | None = None,
        import_s: float = IMPORT_S,
    ) -> None:
        """folder: of the attempt, for the log and failed calls. cwd: relative files are meant from here (the working
        directory). Raises LonghaulError (INPUT) for a name or file that is not there."""
        super().__init__(names, limits, folder, cwd, import_s)
        self.names = tuple(names)
        self._files = [str(file_of(name, self._cwd)) for name in names]
        self.signatures: tuple[Signature, ...] = ()

    def check_columns(self, columns: Collection[str]) -> None:
        """Raises LonghaulError (INPUT) for a parameter without a default that no column has.

        columns: every name that some row has.
        """
        known = {*columns, "answer"}
        for name, signature in zip(self.names, self.signatures, strict=True):
            if missing := [one for one in signature.required if one not in known]:
                there = ", ".join(sorted(known)) or "none"
                raise LonghaulError(
                    f"the reward {name} requires `{missing[0]}`, and the data has no such column (it has {there})",
                    kept="everything; nothing was started",
                    next_command=f"give `{missing[0]}` a default in the function, or say which column it is: "
                    f"--set data.columns.{missing[0]}=COLUMN",
                    exit_code=ExitCode.INPUT,
                )

    def submit(self, calls: Sequence[Call]) -> list[Future[Answer]]:
        """Begin the calls; returns at once. A function of one rollout takes calls of one.

        A future raises LonghaulError if the functions cannot be imported any more, CancelledError after `close`.
        """
        return self._begin(calls)

    # --- on the thread -----------------------------------------------------------------------------------------------

    def _setup(self) -> Struct:
        memory = int(self._reward.memory_gib * 2**30)
        return Setup(list(self.names), self._files, self._reward.threads, memory)

    def _request(self, job: Job[Call, Answer]) -> Struct:
        return Ask(job.key, job.call)

    def _heard(self, reply: Ready | Ended) -> int | None:
        if isinstance(reply, Ready):
            self.signatures = tuple(reply.signatures)
            return reply.pid
        if job := self._answered(reply.key):
            outcomes: list[Mapping[str, float] | Failure] = [
                self._failure(job, one) if isinstance(one, str) else one for one in reply.results
            ]
            job.future.set_result(Answer(outcomes, reply.seconds))
        return None

    def _failed(self, job: Job[Call, Answer], why: str, trace: str, seconds: float) -> None:
        failure = self._failure(job, why, trace)
        job.future.set_result(Answer([failure] * len(job.call.rollouts), seconds))

    def _failure(self, job: Job[Call, Answer], why: str, trace: str = "") -> Failure:
        name, call = self.names[job.call.function], job.call
        return Failure(name, call.row, why, self._kept.keep(name, call.row, call, why, trace), call.source)

    def _refused(self, name: str, why: str) -> LonghaulError:
        return LonghaulError(
            f"the reward {name or ', '.join(self.names)} cannot be used: {why}",
            kept="everything; nothing was trained with it",
            next_command=f"python -m orchestrator rewards test {name or self.names[0]}   once it is corrected",
            exit_code=ExitCode.INPUT,
        )
