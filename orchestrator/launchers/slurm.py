"""Slurm, as `batch` uses a scheduler: its commands, and what they print."""

from __future__ import annotations

import signal
import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from orchestrator.launchers.batch import PATIENCE_S, Batch, Refused, Unanswered, of_a_job, unanswered
from orchestrator.launchers.job_end import TOO_FEW_NODES, Seen, waits_for_ever
from orchestrator.launchers.launcher import Order
from orchestrator.launchers.slurm_script import margin_s, options, script
from profiles.errors import ExitCode, LonghaulError
from profiles.schema import Profile
from profiles.worker_kinds import worker_kind_of
from state import durable, python
from state.layout import AttemptDir
from workers.contract import WorkerSpec

KNOCK_S = 1.0


USABLE = frozenset({"idle", "alloc", "mix", "comp", "plnd", "resv"})
"""States of a node, as `sinfo` shortens them, in which it takes jobs now or later."""


@dataclass(frozen=True)
class Node:
    """A node as the scheduler sees it. limit: the longest job of its partition, as Slurm writes it."""

    name: str
    partition: str
    state: str
    limit: str

    @property
    def is_usable(self) -> bool:
        """False if it is down, drained or silent (`*`). A node that sleeps (`~`, `#`) is woken."""
        return self.state.rstrip("~#%$@+^-") in USABLE

    @property
    def limit_minutes(self) -> float:
        """Infinite where there is no limit, and where it is not understood."""
        days, _, clock = self.limit.rpartition("-")
        parts = clock.split(":")
        if not all(part.isdigit() for part in parts) or not (days or "0").isdigit():
            return float("inf")
        seconds = 0
        for part in parts:
            seconds = 60 * seconds + int(part)
        return (int(days or 0) * 86400 + seconds) / 60


def launcher(profile: Profile) -> Batch:
    return Batch(Slurm(profile), profile.launch.poll_s)


class Slurm:
    """A `Scheduler`."""

    name = "Slurm"
    check = "sinfo"

    def __init__(self, profile: Profile) -> None:
        self._profile = profile

    # --- starting ------------------------------------------------------------------------------------------------

    def prepare(self, order: Order, directory: AttemptDir) -> Callable[[], str]:
        """Raises LonghaulError: NODE if too many nodes have failed, CLUSTER if Slurm does not say which nodes there
        are."""
        command = self._sbatch(order, directory)
        return lambda: sbatch(command)

    def refusal(self, order: Order) -> str:
        """Why Slurm would refuse the job that `Batch.start` submits for this order, in its words; empty: it would take
        it. Submits nothing. Raises LonghaulError (CLUSTER) if Slurm does not answer."""
        assert order.directory is not None, "a job has its task from birth"
        command, *rest = self._sbatch(order, order.directory)
        try:
            answer_of([command, "--test-only", *rest])
        except Unanswered as error:
            if _is_worth_a_retry(str(error)) or "there is no program" in str(error):
                raise unanswered(self, str(error)) from error
            return str(error)
        return ""

    def _sbatch(self, order: Order, directory: AttemptDir) -> list[str]:
        """Write the script of an order's job; returns the command that submits it. Raises like `prepare`."""
        token = order.handle.token
        margin = margin_s(self._profile.launch.time_limit_minutes, order.ending_s)
        environment = of_a_job(order.environment, directory, without="SLURM_")
        is_training = msgspec.json.decode(directory.spec.read_bytes(), type=WorkerSpec).role == "train"
        # An engine that divides a model over hosts needs them to answer held-out problems too.
        needs_all = is_training or worker_kind_of(self._profile).has_own_engine
        hosts = self._profile.run.hosts if needs_all else 1
        exclude = self._excluded(order.avoid, order.avoid_slow, hosts)
        text = script(
            self._profile,
            token,
            order.command,
            environment,
            directory,
            python.ROOT,
            hosts,
            is_on_each_host=order.is_on_each_host,
        )
        durable.write_file(directory.job_script, text.encode())
        asked = options(self._profile, token, directory, exclude, margin, hosts)
        return ["sbatch", *asked, str(directory.job_script)]

    def _excluded(self, avoid: Sequence[str], avoid_slow: Sequence[str], hosts: int) -> list[str]:
        """Nodes that the job must not use: those excluded by the profile, those that failed recently, and slow ones as
        far as `launch.exclude_at_most` allows and `hosts` others are left.

        Raises LonghaulError: NODE if more nodes have failed than `launch.exclude_at_most` allows, CLUSTER if Slurm does
        not answer.
        """
        launch = self._profile.launch
        if not avoid and not avoid_slow:
            return list(launch.exclude)
        try:
            there = {node.name for node in self.partition()}
        except Unanswered as error:
            raise unanswered(self, str(error)) from error
        failed = [node for node in avoid if node in there and node not in launch.exclude]
        allowed = max(1, int(len(there) * launch.exclude_at_most))
        if len(failed) > allowed:
            raise LonghaulError(
                f"{len(failed)} of the {len(there)} nodes have failed within a week ({', '.join(failed)}), and "
                f"launch.exclude_at_most = {launch.exclude_at_most:g} allows {allowed} to be left out",
                kept="the head and everything that was committed; no job was submitted",
                next_command="python -m orchestrator run --set launch.exclude_at_most=0.5   (or repair them first)",
                exit_code=ExitCode.NODE,
            )
        slow = [node for node in avoid_slow if node in there and node not in launch.exclude]
        room = min(allowed, len(there - {*launch.exclude}) - hosts) - len(failed)
        return [*launch.exclude, *failed, *slow[: max(0, room)]]

    def partition(self) -> list[Node]:
        """The nodes that jobs of this profile may get, by name. Raises Unanswered."""
        where = [f"--partition={self._profile.launch.partition}"] if self._profile.launch.partition else []
        rows = [line.split() for line in answer_of(["sinfo", "-h", "-N", *where, "-o", "%N %P %t %l"]).splitlines()]
        default = any(row[1].endswith("*") for row in rows if len(row) == 4)
        found = {
            name: Node(name, part.rstrip("*"), state, limit)
            for name, part, state, limit in (row for row in rows if len(row) == 4)
            if where or not default or part.endswith("*")
        }
        return [found[name] for name in sorted(found)]

    # --- submitted jobs ------------------------------------------------------------------------------------------

    def listed(self, jobs: Sequence[str]) -> Mapping[str, Seen]:
        """All of the user's jobs in the queue."""
        rows = answer_of(["squeue", "-h", "--me", "-o", "%i|%T|%r|%N"]).splitlines()
        return {row.split("|")[0]: seen_in_queue(row) for row in rows}

    def signal(self, job: str, number: int) -> None:
        if number == signal.SIGKILL:
            with suppress(Unanswered):
                answer_of(["scancel", "--full", "--signal=KILL", job])
            answer_of(["scancel", job])
        else:
            answer_of(["scancel", f"--signal={signal.Signals(number).name.removeprefix('SIG')}", job])

    def final(self, job: str) -> Seen:
        """The state of a job that may have left the queue. Raises Unanswered if the scheduler cannot be queried."""
        try:
            return seen_in_detail(answer_of(["scontrol", "-o", "show", "job", job]))
        except Unanswered as error:
            if "invalid job id" not in str(error).lower():
                raise
        for source in (["sacct", "-X", "-n", "-P"], ["sacct", "-c", "-n", "-P"]):
            with suppress(Unanswered):
                if rows := answer_of([*source, "-j", job, "-o", "State,ExitCode,NodeList"]).splitlines():
                    return seen_in_accounts(rows[-1])
        return Seen("")

    def find(self, token: str) -> str:
        """Id of the job with that name, queued or ended; empty: there is none."""
        if found := answer_of(["squeue", "-h", "--me", f"--name={token}", "-o", "%i", "--states=all"]).split():
            return found[0]
        return ""

    def never_starts(self, job: str, seen: Seen) -> bool:
        if seen.reason != TOO_FEW_NODES:
            return waits_for_ever(seen, 0, 0)
        wanted = answer_of(["squeue", "-h", "-j", job, "-o", "%D"]).strip()
        return waits_for_ever(seen, int(wanted) if wanted.isdigit() else 0, len(self.partition()))

    def failed(self, nodes: Sequence[str]) -> tuple[str, ...]:
        """Nodes that Slurm reports as bad, and nodes whose daemon does not answer."""
        described = self._described(nodes) if nodes else []
        bad = [one["NodeName"] for one in described if is_bad(one.get("State", ""))]
        rest = [one for one in described if one["NodeName"] not in bad]
        return (*bad, *self._unreachable(rest))

    def silent(self, nodes: Sequence[str]) -> tuple[str, ...]:
        return self._unreachable(self._described(nodes)) if nodes else ()

    def _described(self, nodes: Sequence[str] = ()) -> list[dict[str, str]]:
        """What Slurm says of these nodes; without any, of all. Empty if it does not answer."""
        with suppress(Unanswered):
            lines = answer_of(["scontrol", "-o", "show", "node", *([",".join(nodes)] if nodes else [])]).splitlines()
            return [facts for facts in map(fields_of, lines) if "NodeName" in facts]
        return []

    def _unreachable(self, described: Sequence[dict[str, str]]) -> tuple[str, ...]:
        """Those of the nodes whose daemon does not answer. None if that of no other node does either: then this host
        reaches no daemon, and silence proves nothing."""
        silent = [one["NodeName"] for one in described if not is_heard(one)]
        if silent and len(silent) == len(described):
            others = (one for one in self._described() if one["NodeName"] not in silent)
            return tuple(silent) if any(map(is_heard, others)) else ()
        return tuple(silent)


# --- Slurm commands and their output (pure but for `answer_of` and `answers`) ---------------------------------------


def answer_of(command: Sequence[str]) -> str:
    """Run a Slurm command and return its output. Raises Unanswered if it is missing, times out or fails."""
    try:
        # Names and reasons are what somebody typed, in any encoding.
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=PATIENCE_S, stdin=subprocess.DEVNULL
        )
    except FileNotFoundError as error:
        raise Unanswered(f"there is no program `{command[0]}` here") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unanswered(f"{command[0]}: no answer within {PATIENCE_S:.0f} s ({error.__class__.__name__})") from error
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise Unanswered(said[-1] if said else f"{command[0]} failed ({done.returncode})")
    return done.stdout


def sbatch(command: Sequence[str]) -> str:
    """Run `sbatch` and return the job's id. Raises Refused unless it is the controller that is away."""
    try:
        return answer_of(command).split(";")[0].strip()
    except Unanswered as error:
        said = str(error)
        if _is_worth_a_retry(said):
            raise
        raise Refused(said) from error


def _is_worth_a_retry(said: str) -> bool:
    """Whether the scheduler could not be reached. False: it has refused, and a retry cannot help."""
    return any(word in said.lower() for word in ("timed out", "timeout", "contact", "socket"))


def answers(address: str, port: int) -> bool:
    """Whether something listens at that address."""
    with suppress(OSError), socket.create_connection((address, port), timeout=KNOCK_S):
        return True
    return False


def is_bad(state: str) -> bool:
    """Whether a node's state, as `scontrol` prints it, is that of a node without use."""
    state = state.upper()
    return state.endswith("*") or any(word in state for word in ("DOWN", "DRAIN", "FAIL", "NOT_RESPONDING"))


def is_heard(node: dict[str, str]) -> bool:
    """Whether the daemon of a node answers. node: as `scontrol` describes it."""
    return answers(node.get("NodeAddr", node["NodeName"]), int(node.get("Port", "6818") or 6818))


def fields_of(line: str) -> dict[str, str]:
    """Parse the `Name=value` pairs of a line of `scontrol -o`; the first value of a name wins."""
    found: dict[str, str] = {}
    for part in line.split():
        name, is_pair, value = part.partition("=")
        if is_pair:
            found.setdefault(name, value)
    return found


def seen_in_queue(row: str) -> Seen:
    """Parse a row of `squeue -o %i|%T|%r|%N`."""
    _, state, reason, nodes = [*row.split("|"), "", "", ""][:4]
    return Seen(state.upper(), reason=reason, nodes=expanded(nodes))


def seen_in_detail(line: str) -> Seen:
    """Parse the line of `scontrol -o show job`. Raises Unanswered if it has no JobState."""
    facts = fields_of(line)
    if "JobState" not in facts:
        raise Unanswered(f"scontrol says {line[:200]!r}")
    code, number = _exit_of(facts.get("ExitCode", "0:0"))
    nodes = expanded(facts.get("NodeList", "").replace("(null)", ""))
    return Seen(facts["JobState"].upper(), code, number, facts.get("Reason", "").replace("None", ""), nodes)


def seen_in_accounts(row: str) -> Seen:
    """Parse a row of `sacct -P -o State,ExitCode,NodeList`."""
    state, code, nodes = [*row.split("|"), "", "", ""][:3]
    return Seen(state.split()[0].upper() if state else "", *_exit_of(code or "0:0"), nodes=expanded(nodes))


def _exit_of(text: str) -> tuple[int, int]:
    code, _, number = text.partition(":")
    return (int(code) if code.isdigit() else 0, int(number) if number.isdigit() else 0)


def expanded(nodes: str) -> tuple[str, ...]:
    """Expand a node list such as `n[1-3,7],m2` into names, keeping leading zeros."""
    found: list[str] = []
    part, depth = "", 0
    for letter in [*nodes, ","]:
        depth += (letter == "[") - (letter == "]")
        if letter != "," or depth:
            part += letter
            continue
        if part:
            found += _numbered(part)
        part = ""
    return tuple(found)


def _numbered(part: str) -> list[str]:
    before, is_range, rest = part.partition("[")
    if not is_range:
        return [part]
    inside, _, after = rest.partition("]")
    names = []
    for piece in inside.split(","):
        first, is_span, last = piece.partition("-")
        width = len(first)
        for number in range(int(first), int(last if is_span else first) + 1):
            names += _numbered(f"{before}{number:0{width}d}{after}")
    return names
