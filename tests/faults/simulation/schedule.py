"""One schedule: a run from its birth to its end through the faults that a seed draws, and what must always hold."""

from __future__ import annotations

import argparse
import errno
import io
import queue
import shutil
import signal
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from orchestrator.commands.run import Chosen, hold_and_drive
from orchestrator.signals import SIGNALS
from profiles.errors import ExitCode, LonghaulError
from profiles.load import load_profile
from profiles.schema import Profile
from state.layout import RunDir
from state.reader import is_born
from tests.faults.harness import Scene
from tests.faults.invariants import Ending, check_facts, ending
from tests.faults.simulation.processes import Machine, Process, SimulatedClient, SimulatedServer
from tests.faults.simulation.wiring import LAUNCHER, master_of, wired
from tests.faults.simulation.world import FOREVER, Task, Violation, World
from workers.contract import Message

KNOBS = (
    "run.steps_per_cycle=4",
    "run.checkpoint_every=2",
    "fake.step_s=1",
    "retention.keep_ancestors=1",
    "retention.keep_every=0",
    "retention.keep_cycles=1",
    "timeouts.startup_s=30",
    "timeouts.heartbeat_s=20",
    "timeouts.step_min_s=20",
    "timeouts.checkpoint_s=20",
    "timeouts.paused_s=40",
    f"launch.launcher={LAUNCHER!r}",
)
MOST_TICKS = 100_000
"""Ticks of a schedule: one without faults takes some 500."""
MOST_STARTS = 12
"""Starts of a master after the last fault, at the most: each is needed once for what a fault left."""
LONG_PAUSE_S = 100.0
TRAINED_TWICE = "SELECT step FROM trained_steps GROUP BY step HAVING count(*) > 1 LIMIT 1"
NEVER_ALLOWED = frozenset({ExitCode.STORE, ExitCode.SPEC, ExitCode.VERSION, ExitCode.INPUT, ExitCode.USAGE})
"""Ends of a master that no fault of the simulation excuses."""


@dataclass(eq=False)
class Schedule:
    """faults: tick -> names of what happens there. is_there: the run was begun before, by others. may_walk_back: its
    head may be damaged, so that an ancestor becomes the head."""

    seed: int
    root: Path
    profile: Profile
    clean: Mapping[int, Ending] = field(default_factory=dict)
    """By `run.max_cycles`: what an undisturbed run ends with."""
    faults: dict[int, str] = field(default_factory=dict)
    is_there: bool = False
    may_walk_back: bool = False

    def __post_init__(self) -> None:
        self.world = World(self.seed)
        self.machine = Machine(self.world)
        self.scene = Scene(self.root, name="fake")
        self.run = RunDir(self.root / "runs" / "fake")
        self.log = io.StringIO()
        self.clients: list[SimulatedClient] = []
        self.master: Task | None = None
        self.head_step = -1
        self.waits_for: list[tuple[int, str]] = []
        self.happened: list[str] = []
        self.starts = 0
        self.others: list[Task] = []
        """Second masters, which must be refused."""
        self.paused_since: float | None = None
        """When the store began to say that somebody wants a pause."""
        self.may_resume = False
        """Whether somebody resumed the run since then, or had asked before and was not heard yet."""
        self.attempts_when_paused = 0

    # --- the run -------------------------------------------------------------------------------------------------

    def play(self) -> Ending:
        """Start masters until the run is finished. Returns its ending. Raises Violation."""
        world = self.world
        world.on_tick = self.between_ticks
        SimulatedServer.waiting = queue.SimpleQueue()
        self.waits_for = sorted(self.faults.items(), reverse=True)
        self.root.mkdir(parents=True, exist_ok=self.is_there)
        starts_since_faults = 0
        try:
            with wired(self.machine, self.log, self.committed):
                while not self.starts or not self.is_finished():
                    starts_since_faults += not self.waits_for and world.now >= world.disk.full_until
                    if starts_since_faults > MOST_STARTS:
                        raise Violation(f"{MOST_STARTS} starts after the last fault did not finish the run")
                    self.live()
                if self.machine.living():
                    world.now += 2.0
                    self.machine.look()
                left = [str(one.handle) for one in self.machine.living() if not (one.is_stopped or one.is_native)]
                if left:
                    raise Violation(f"workers are left: {left}")
            with closing(self.scene.look()) as self.scene.reading:
                most = self.scene.one("SELECT json_extract(profile, '$.run.max_cycles') FROM runs")
                check_facts(self.scene, self.clean.get(most), is_all_hashed=False)
                if left_over := self.scene.rows("SELECT kind FROM requests"):
                    raise Violation(f"requests outlive the run: {left_over}")
                if not self.scene.one("SELECT verified FROM checkpoints JOIN runs ON head=checkpoint_id"):
                    raise Violation("the run is finished, and its head was never hashed")
                return ending(self.scene)
        finally:
            world.close()
            shutil.rmtree(self.root)

    def is_finished(self) -> bool:
        return bool(self.run.store.exists() and self.scene.one("SELECT state FROM runs") == "finished")

    def command(self) -> int:
        """What `run` does once its arguments are read."""
        is_new = not is_born(self.run)
        args = argparse.Namespace(plain=True, accept_changes=False, overrides=[], run="fake", runs=self.root / "runs")
        args.profile = None
        return hold_and_drive(Chosen(self.run, self.profile if is_new else None, is_new), args)

    def live(self) -> None:
        """One master, from its start to its end."""
        world = self.world
        world.tell("a master starts")
        self.starts += 1
        self.master = master = master_of(world, self.command)
        world.run(lambda: master.is_over, MOST_TICKS)
        self.machine.master_died(master)
        for other in self.others:  # the lock is free now, so it must not go on
            world.end(other)
            if other.result is not None or not (other.error is None or is_refused(other.error)):
                raise Violation(f"a second master was not refused: {other.result} {other.error!r}")
        self.others = []
        for path in (self.run.latest, self.run.best):
            if path.exists() and not msgspec.json.decode(path.read_bytes() or b"null"):
                raise Violation(f"{path.name} is not whole")
        if isinstance(master.error, LonghaulError):
            world.tell(f"the master ends with {master.error.exit_code}: {master.error.what}")
            if master.error.exit_code in NEVER_ALLOWED:
                raise Violation(f"exit {master.error.exit_code}: {master.error}")
        elif master.error is not None:
            raise Violation(f"a traceback: {master.error!r}") from master.error
        elif master.result is not None:
            world.tell(f"the master ends with {master.result}")
        if master.result is not None or master.error is not None:
            unanswered = [client.command for client in self.clients if client.is_heard and not client.answers]
            if master.result is not None and unanswered:
                raise Violation(f"commands without an answer: {unanswered}")
        self.clients = []
        SimulatedServer.waiting = queue.SimpleQueue()
        world.now += world.draw.choice((0.0, 0.2, 5.0))

    # --- what must hold after every step -----------------------------------------------------------------------------

    def committed(self, connection: sqlite3.Connection) -> None:
        """After each transaction: only the living master writes, the head never goes back, and no step counts twice."""
        if self.world.current is not self.master:
            raise Violation("somebody who is not the master writes the store")
        cursor = sqlite3.Connection.execute(
            connection, "SELECT step FROM checkpoints JOIN runs ON head=checkpoint_id"
        ).fetchone()
        step = -1 if cursor is None else int(cursor[0])
        if step < self.head_step and not self.may_walk_back:
            raise Violation(f"the head went back from step {self.head_step} to {step}")
        twice = sqlite3.Connection.execute(connection, TRAINED_TWICE).fetchone()
        if twice is not None:
            raise Violation(f"step {twice[0]} counts twice")
        self.head_step = step
        self.check_pause(connection)

    def check_pause(self, connection: sqlite3.Connection) -> None:
        """A pause ends by a resume or with the run alone, and meanwhile no attempt at training begins."""
        execute = lambda sql: sqlite3.Connection.execute(connection, sql).fetchone()  # noqa: E731
        if execute("SELECT 1 FROM sqlite_master WHERE name='requests'") is None:
            return  # the store is not born yet
        is_paused = execute("SELECT count(*) FROM requests WHERE kind='pause'")[0] > 0
        attempts = int(execute("SELECT count(*) FROM attempts WHERE role='train'")[0])
        if self.paused_since is not None and is_paused and attempts != self.attempts_when_paused:
            raise Violation("a paused run began to train")
        if self.paused_since is not None and not is_paused:
            if not self.may_resume and execute("SELECT state FROM runs")[0] not in ("stopped", "finished", "stagnant"):
                raise Violation("a run forgot that it was paused")
            self.paused_since = None
        elif self.paused_since is None and is_paused:
            self.may_resume = any(one.command == "resume" and not one.answers for one in self.clients)
            self.paused_since, self.attempts_when_paused = self.world.now, attempts

    def resume_in_the_end(self) -> None:
        """Somebody resumes a run that is still paused after the last fault."""
        if self.waits_for or self.paused_since is None or self.world.now < self.paused_since + LONG_PAUSE_S:
            return
        self.paused_since = self.world.now  # asked again if the master dies before it hears
        FAULTS["command resume"](self)

    def between_ticks(self) -> None:
        self.machine.look()
        self.resume_in_the_end()
        while self.waits_for and self.waits_for[-1][0] <= self.world.ticks:
            _, name = self.waits_for.pop()
            self.world.tell(f"tick {self.world.ticks}: {name}")
            self.happened.append(name)
            FAULTS[name](self)

    # --- faults ------------------------------------------------------------------------------------------------------

    def some_worker(self) -> Process | None:
        living = self.machine.living()
        return self.world.draw.choice(living) if living else None


def is_refused(error: BaseException) -> bool:
    """As a second master is: by the lock, or because its disk fails before that."""
    return isinstance(error, LonghaulError) and error.exit_code in (ExitCode.LOCKED, ExitCode.DISK)


def start_another_master(of: Schedule) -> None:
    if of.master is not None and of.master.locks:
        of.others.append(of.world.start("another master", of.command))


def kill_master(of: Schedule) -> None:
    if of.master is not None and not of.master.is_over:
        of.world.end(of.master)
        of.machine.master_died(of.master)


def stop_master(of: Schedule) -> None:
    if of.master is not None:
        of.master.held_until = of.world.now + of.world.draw.choice((1.0, 60.0, 4000.0))


def kill_worker(of: Schedule) -> None:
    if (worker := of.some_worker()) is not None:
        worker.ends(of.world.draw.choice((-signal.SIGKILL, -signal.SIGSEGV, 1, ExitCode.CUDA_OOM)))


def hang_worker(of: Schedule) -> None:
    if (worker := of.some_worker()) is not None and worker.task is not None:
        worker.task.held_until = FOREVER


def hang_worker_in_native_code(of: Schedule) -> None:
    if (worker := of.some_worker()) is not None and worker.task is not None:
        worker.task.held_until, worker.is_native = FOREVER, True


def kill_master_of_hung_workers(of: Schedule) -> None:
    """Their lifelines are not read, so only the next master can end them."""
    for process in of.machine.living():
        if process.task is not None:
            process.task.held_until, process.is_native = FOREVER, True
    kill_master(of)


def stop_worker(of: Schedule) -> None:
    """As SIGSTOP does; somebody continues it, or nobody."""
    if (worker := of.some_worker()) is not None and worker.task is not None:
        worker.is_stopped = True
        worker.task.held_until = FOREVER
        if of.world.draw.random() < 0.5:
            seconds = of.world.draw.choice((1.0, 30.0, 100.0))

            def go_on() -> None:
                of.world.pause(seconds)
                if worker.is_stopped and worker.task is not None:
                    worker.is_stopped, worker.task.held_until = False, 0.0

            of.world.start("SIGCONT", go_on)


def set_clock(of: Schedule) -> None:
    of.world.wall += of.world.draw.choice((-1e6, -3600.0, 3600.0, 1e6))


def fill_disk(of: Schedule) -> None:
    of.world.disk.full_until = of.world.now + of.world.draw.choice((0.5, 10.0, 100.0))


def slow_disk(of: Schedule) -> None:
    of.world.disk.slow_until = of.world.now + of.world.draw.choice((10.0, 500.0))


def fail_disk(of: Schedule) -> None:
    of.world.disk.errors += [errno.EIO] * of.world.draw.choice((1, 1, 3))


def refuse_processes(of: Schedule) -> None:
    of.machine.refusals = 1


def signals(*numbers: int) -> Callable[[Schedule], None]:
    def send(of: Schedule) -> None:
        for number in numbers:
            SIGNALS.handle(number, None)
        if of.master is not None:
            of.world.arrives(of.master, of.world.now)

    return send


def command(name: str, change: str = "") -> Callable[[Schedule], None]:
    def ask(of: Schedule) -> None:
        client = SimulatedClient(name, change)
        of.may_resume = of.may_resume or name == "resume"
        of.clients.append(client)
        SimulatedServer.waiting.put(client)
        if of.master is not None:
            of.world.arrives(of.master, of.world.now)

    return ask


def pause_and_kill_master(of: Schedule) -> None:
    """A little later: somewhere between the request and its end."""
    command("pause")(of)

    def kill() -> None:
        of.world.pause(of.world.draw.choice((0.0, 0.3, 2.0, 50.0)))
        kill_master(of)

    of.world.start("killer", kill)


def late_messages(of: Schedule) -> None:
    if (worker := of.some_worker()) is not None:
        worker.send(Message(type="event_hint"), late_s=of.world.draw.choice((1.0, 30.0, 200.0)))


def doubled_messages(of: Schedule) -> None:
    if (worker := of.some_worker()) is not None and worker.to_master:
        worker.to_master.append((worker.to_master[-1][0], of.world.draw.choice(worker.to_master)[1]))


def strange_messages(of: Schedule) -> None:
    """Of a worker of long ago, and noise."""
    if (worker := of.some_worker()) is not None:
        kind = of.world.draw.choice(("done", "checkpointed", "started", "heartbeat"))
        worker.send(Message(type=kind, step=1, path="checkpoints/none", stage="train"), token="0" * 12)
        worker.to_master.append((of.world.now, b'{"no": message\n'))


FAULTS: dict[str, Callable[[Schedule], None]] = {
    "kill the master": kill_master,
    "stop the master": stop_master,
    "start another master": start_another_master,
    "kill a worker": kill_worker,
    "hang a worker": hang_worker,
    "hang a worker in native code": hang_worker_in_native_code,
    "kill the master of hung workers": kill_master_of_hung_workers,
    "stop a worker": stop_worker,
    "set the clock": set_clock,
    "fill the disk": fill_disk,
    "slow the disk": slow_disk,
    "fail the disk": fail_disk,
    "refuse processes": refuse_processes,
    "INT": signals(signal.SIGINT),
    "two INT": signals(signal.SIGINT, signal.SIGINT),
    "TERM": signals(signal.SIGTERM),
    "USR1": signals(signal.SIGUSR1),
    "HUP": signals(signal.SIGHUP),
    "command checkpoint": command("checkpoint"),
    "command stop": command("stop"),
    "command abort": command("abort"),
    "command status": command("status"),
    "command pause": command("pause"),
    "command resume": command("resume"),
    "command validate": command("validate"),
    "command cycles 2": command("cycles", "2"),
    "command cycles 1": command("cycles", "1"),
    "pause, and kill the master": pause_and_kill_master,
    "late messages": late_messages,
    "doubled messages": doubled_messages,
    "strange messages": strange_messages,
}


def profile_of_all(max_cycles: int = 1) -> Profile:
    return load_profile("fake", [*KNOBS, f"run.max_cycles={max_cycles}"]).profile


def drawn_faults(world: World, ticks: int) -> dict[int, str]:
    """What happens in a schedule, and when. ticks: that one without faults takes; a disturbed run takes more."""
    number = world.draw.choice((1, 1, 2, 3, 5, 8))
    last = ticks if number == 1 else ticks + ticks // 2
    return {world.draw.randrange(1, last): world.draw.choice(list(FAULTS)) for _ in range(number)}
