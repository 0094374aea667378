"""The text of a unit that starts a run, and a recipe for tmux. (pure)"""

from __future__ import annotations

import math
import shlex
import string
from collections.abc import Mapping, Sequence
from pathlib import Path

from orchestrator.deadlines import StepTimes, step_deadline_s
from profiles.errors import ExitCode
from profiles.schema import Profile
from profiles.worker_kinds import worker_kind_of

CAN_PASS = frozenset({ExitCode.GPU, ExitCode.CLUSTER})
"""Endings that another try may mend by itself: a GPU that comes back, a scheduler that answers again."""
RESULTS = (ExitCode.ABORTED, ExitCode.STAGNANT)
"""Endings that are no failure: somebody stopped the run at once, or it has nothing more to learn."""
NEVER_AGAIN = tuple(sorted(set(ExitCode) - CAN_PASS - {ExitCode.OK}))
"""Endings after which the same command would end the same way, until a person has done what the message says."""
WATCHDOG_S = 300
RESTART_S = 30
MOST_STARTS = 5
"""In an hour; then systemd gives up."""
CARRIED = (
    "PATH",
    "PYTHONPATH",
    "LANG",
    "LD_LIBRARY_PATH",
    "CUDA_VISIBLE_DEVICES",
    "HF_HOME",
    "LONGHAUL_DATA",
    "LONGHAUL_PASS",
)
"""Variables that the unit keeps as they are now; a user's service begins with next to none. None of them is secret."""
SECRETS = "%E/longhaul/environment"
"""A file of variables, such as ~/.config/longhaul/environment, for those that are."""
PLAIN = frozenset(string.ascii_letters + string.digits + ":_.-")
REST_S = 60.0
"""For the report, the last commit and the end of the workers."""


def unit_name(run: str) -> str:
    """The name of the unit of a run: other characters than a unit may have become \\xNN, as by systemd-escape."""
    escaped = "".join(chr(byte) if chr(byte) in PLAIN else f"\\x{byte:02x}" for byte in run.encode())
    return f"longhaul-{escaped}.service"


def stop_s(profile: Profile) -> int:
    """Seconds in which a stop has always ended: the master itself waits for a step and a checkpoint so long at most."""
    timeouts = profile.timeouts
    step = step_deadline_s(StepTimes(), timeouts, is_first=True)
    own = 0.0 if worker_kind_of(profile).saves_when_asked else profile.open_instruct.stop_within_s
    return math.ceil(step + own + timeouts.checkpoint_s + timeouts.kill_s + REST_S)


def unit_text(run: str, profile: Profile, command: Sequence[str], place: Path, environment: Mapping[str, str]) -> str:
    """command: what starts the run, its program as an absolute path. place: the working directory."""
    carried = [f"Environment={_quoted(f'{name}={environment[name]}')}" for name in CARRIED if environment.get(name)]
    return "\n".join(
        [
            "# Made by `longhaul service`; make it anew when this folder or the profile's file moves.",
            "[Unit]",
            f"Description=Longhaul run {_plain(run)}",
            "StartLimitIntervalSec=3600",
            f"StartLimitBurst={MOST_STARTS}",
            "",
            "[Service]",
            "Type=notify",
            "NotifyAccess=main",
            f"WorkingDirectory={_plain(str(place))}",
            f"ExecStart={' '.join(_quoted(word, '$') for word in command)}",
            *carried,
            f"EnvironmentFile=-{SECRETS}",
            "# A first start may hash large checkpoints before it is ready.",
            "TimeoutStartSec=infinity",
            f"WatchdogSec={WATCHDOG_S}",
            "Restart=on-failure",
            f"RestartSec={RESTART_S}",
            f"SuccessExitStatus={' '.join(str(int(code)) for code in RESULTS)}",
            "# What a restart cannot mend: docs/operations.md has the table of exit codes.",
            f"RestartPreventExitStatus={' '.join(str(int(code)) for code in NEVER_AGAIN)}",
            "# SIGTERM goes to the master alone: it ends its workers after the step and a checkpoint.",
            "KillMode=mixed",
            f"TimeoutStopSec={stop_s(profile)}",
            "# A worker that the kernel kills for memory is the master's business.",
            "OOMPolicy=continue",
            "UMask=0077",
            "",
            "[Install]",
            "WantedBy=default.target",
            "",
        ]
    )


def tmux_recipe(run: str, command: Sequence[str], place: Path) -> str:
    """Lines to paste into a shell: a session that outlives the terminal."""
    session = shlex.quote("longhaul-" + "".join(letter if letter.isalnum() else "-" for letter in run))
    inner = f"cd {shlex.quote(str(place))} && {shlex.join(command)}"
    return (
        f"tmux new-session -d -s {session} {shlex.quote(inner)}\ntmux attach -t {session}   # Ctrl+B, then D: leave it"
    )


def _plain(text: str) -> str:
    """A value that systemd takes to the end of the line: only its specifiers have to be escaped."""
    return text.replace("%", "%%")


def _quoted(word: str, doubled: str = "") -> str:
    """One word of an assignment, as systemd reads it. doubled: what it would replace in a command line."""
    if word and all(letter in PLAIN or letter in "/=+,@" for letter in word):
        return word
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    for sign in f"%{doubled}":
        escaped = escaped.replace(sign, sign * 2)
    return f'"{escaped}"'
