"""Layers: what is put up, what is told about it, and what follows where one is missing."""

from __future__ import annotations

import json
import platform
import struct
import subprocess
import sys
from itertools import combinations
from typing import Any

import pytest

from profiles.errors import ExitCode
from tests import REPOSITORY
from workers.sandbox import Limits, Sandbox, Status, probe
from workers.sandbox.errors import SandboxRefused
from workers.sandbox.inside import seccomp
from workers.sandbox.limits import LAYERS, OK, refusal

EVERYTHING = dict.fromkeys(LAYERS, OK)


def lacking(*names: str) -> dict[str, str]:
    return EVERYTHING | dict.fromkeys(names, "not in this kernel")


@pytest.mark.parametrize(
    ("limits", "layers", "refused"),
    [
        pytest.param(Limits(), EVERYTHING, False, id="all layers"),
        pytest.param(Limits(), lacking("landlock"), True, id="a required layer is missing"),
        pytest.param(Limits(), lacking("seccomp"), True, id="the other one"),
        pytest.param(Limits(), lacking("userns", "netns"), False, id="a layer that is not required is missing"),
        pytest.param(Limits(require=("userns",)), lacking("userns"), True, id="required by the profile"),
        pytest.param(Limits(require=("seccomp",)), lacking("landlock"), False, id="not required by the profile"),
        pytest.param(Limits(require=()), lacking("landlock"), False, id="one of the two is enough"),
        pytest.param(Limits(require=()), lacking("landlock", "seccomp"), True, id="without both nothing runs"),
        pytest.param(Limits(require=(), allow_weak=True), lacking("landlock", "seccomp"), False, id="unless allowed"),
        pytest.param(Limits(), {}, True, id="never tried"),
    ],
)
def test_what_is_refused(limits: Limits, layers: dict[str, str], refused: bool) -> None:
    reason = refusal(limits, layers)
    assert (reason is not None) is refused
    assert not refused or "landlock" in str(reason) or "seccomp" in str(reason) or "userns" in str(reason)


@pytest.mark.parametrize("left_out", [*combinations(LAYERS, 1), ("landlock", "seccomp"), LAYERS])
def test_programs_run_in_every_state_of_decay_if_that_is_allowed(left_out: tuple[str, ...]) -> None:
    with Sandbox(Limits(without=left_out, allow_weak=True, require=()), jobs=1) as sandbox:
        assert all(sandbox.layers[name] != OK for name in left_out)
        assert sandbox.execute("def f(x): return x + 1", "1").value == "2"
        assert sandbox.execute("def f(x): return [0] * (1 << 40)", "1").status is Status.MEMORY


def test_a_missing_layer_is_refused_with_the_next_command() -> None:
    with pytest.raises(SandboxRefused, match="landlock: left out on request") as caught:
        Sandbox(Limits(without=("landlock",)), jobs=1)
    assert caught.value.exit_code is ExitCode.PERMISSION
    assert "--layers" in caught.value.next_command


def test_every_layer_is_told_with_yes_or_no_and_a_reason() -> None:
    found = probe.layers()
    assert [layer.name for layer in found] == list(LAYERS)
    assert all(layer.reason for layer in found)
    lines: list[str] = []
    probe.table(found, lines.append)
    assert len(lines) == len(LAYERS)


def test_the_probe_finds_a_layer_that_only_pretends(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel said yes, the attack went through all the same: the layer does not hold."""
    monkeypatch.setitem(probe.ATTACKS, "landlock", "def f(port, pid): return 'it was reached'")
    with probe._canaries() as inputs:
        layer = probe._measure("landlock", inputs)
    assert not layer.holds


DENIED = """
import json, sys
sys.path.insert(0, "workers/sandbox")
from inside import kernel, seccomp
import struct
EPERM, ENOSYS = 1, 38
denied = json.loads(sys.argv[1])
steps = [(0x20, 0, 0, 0)]
for number, error in denied:
    steps += [(0x15, 0, 1, number), (0x06, 0, 0, 0x50000 | error)]
steps.append((0x06, 0, 0, 0x7FFF0000))
kernel.prctl(38, 1)
kernel.Filter(b"".join(struct.pack("=HBBI", code, yes, no, value) for code, yes, no, value in steps)).install()
sys.path.pop(0)
from workers.sandbox import Limits, Sandbox, Status
with Sandbox(Limits(allow_weak=True), jobs=1) as sandbox:
    assert sandbox.execute("def f(x): return x + 1", "1").value == "2"
    print(json.dumps(sandbox.layers))
"""
EPERM, ENOSYS = 1, 38
UNSHARE, MOUNT, PIVOT_ROOT, LANDLOCK, SECCOMP = 272, 165, 155, 444, 317


@pytest.mark.skipif(not seccomp.supported(platform.machine()), reason="numbers of system calls are those of x86_64")
@pytest.mark.parametrize(
    ("denied", "missing"),
    [
        pytest.param([(UNSHARE, EPERM)], {"userns", "pidns", "netns", "ipcns", "mountns", "utsns"}, id="a container"),
        pytest.param([(LANDLOCK, ENOSYS)], {"landlock"}, id="an old kernel"),
        pytest.param([(MOUNT, EPERM)], {"mountns"}, id="a container that forbids mounts"),
        pytest.param([(PIVOT_ROOT, EPERM)], {"mountns"}, id="a container that forbids another root"),
        pytest.param(
            [(UNSHARE, ENOSYS), (LANDLOCK, ENOSYS)],
            {"landlock", "userns", "pidns", "netns", "ipcns", "mountns", "utsns"},
            id="an old container",
        ),
    ],
)
def test_a_machine_that_lacks_something_is_told_layer_by_layer(
    denied: list[tuple[int, int]], missing: set[str]
) -> None:
    with Sandbox(Limits(allow_weak=True), jobs=1) as sandbox:
        already = {name for name, state in sandbox.layers.items() if state != OK}
    command = [sys.executable, "-c", DENIED, json.dumps(denied)]
    done = subprocess.run(command, capture_output=True, cwd=REPOSITORY, check=True)
    layers: dict[str, str] = json.loads(done.stdout)
    assert {name for name, state in layers.items() if state != OK} == missing | already
    assert all(layers.values())


def decide(
    code: bytes, number: int, arch: int = seccomp.AUDIT_ARCH_X86_64, arguments: tuple[int, ...] = (0,) * 6
) -> int:
    """What the filter answers, by an interpreter of the few instructions that it uses."""
    data = struct.pack("=IIQ6Q", number, arch, 0, *arguments)
    steps = [struct.unpack_from("=HBBI", code, place) for place in range(0, len(code), 8)]
    accumulator = place = 0
    while True:
        operation, if_true, if_false, value = steps[place]
        place += 1
        if operation == seccomp.RETURN:
            return int(value)
        if operation == seccomp.LOAD:
            (accumulator,) = struct.unpack_from("=I", data, value)
            continue
        if operation == seccomp.AND:
            accumulator &= value
            continue
        holds = {
            seccomp.JUMP_EQUAL: accumulator == value,
            seccomp.JUMP_AT_LEAST: accumulator >= value,
            seccomp.JUMP_BITS: bool(accumulator & value),
        }[operation]
        place += if_true if holds else if_false


MMAP, MPROTECT, READ, GETPID, FORK, OPENAT, CLOCK, FUTEX = 9, 10, 0, 39, 57, 257, 228, 202
WAIT, WAKE, WAIT_BITSET, PRIVATE, REAL_TIME = 0, 1, 9, 128, 256
REFUSED, ZERO = seccomp.RET_ERRNO | seccomp.EPERM, seccomp.RET_ERRNO


@pytest.mark.parametrize(
    ("case", "answer"),
    [
        pytest.param({"number": READ}, seccomp.RET_ALLOW, id="read"),
        pytest.param({"number": GETPID}, ZERO, id="getpid is 0"),
        pytest.param({"number": FORK}, seccomp.RET_KILL, id="fork kills"),
        pytest.param({"number": OPENAT}, REFUSED, id="open is refused"),
        pytest.param({"number": 9999}, REFUSED, id="what nobody knows is refused"),
        pytest.param({"number": MMAP, "arguments": (0, 9, 3, 0, 0, 0)}, seccomp.RET_ALLOW, id="memory"),
        pytest.param({"number": MMAP, "arguments": (0, 9, 7, 0, 0, 0)}, REFUSED, id="executable memory"),
        pytest.param({"number": MPROTECT, "arguments": (0, 9, 5, 0, 0, 0)}, REFUSED, id="memory made executable"),
        pytest.param({"number": READ | seccomp.X32_BIT}, seccomp.RET_KILL, id="x32"),
        pytest.param({"number": READ, "arch": 0x4000_0003}, seccomp.RET_KILL, id="i386"),
        pytest.param({"number": CLOCK}, seccomp.RET_ALLOW, id="clock"),
        pytest.param({"number": FUTEX, "arguments": (8, WAKE | PRIVATE, 1, 0, 0, 0)}, seccomp.RET_ALLOW, id="wake"),
        pytest.param({"number": FUTEX, "arguments": (8, WAIT, 1, 0, 0, 0)}, seccomp.RET_KILL, id="wait"),
        pytest.param(
            {"number": FUTEX, "arguments": (8, WAIT_BITSET | PRIVATE | REAL_TIME, 0, 0, 0, 0)},
            seccomp.RET_KILL,
            id="wait for a time",
        ),
    ],
)
def test_the_filter_decides_each_call(case: dict[str, Any], answer: int) -> None:
    assert decide(seccomp.assemble(), **case) == answer


def test_every_listed_call_is_decided_as_listed() -> None:
    code = seccomp.assemble(allow_clock=False)
    for number in seccomp.ALLOWED.values():
        assert decide(code, number) == seccomp.RET_ALLOW
    for number in seccomp.KILLED.values():
        assert decide(code, number) == seccomp.RET_KILL
    assert decide(code, CLOCK) == REFUSED


def test_a_denied_clock_kills_who_reads_it() -> None:
    limits = Limits(deny_clock=True, modules=("time",), allow_weak=True)
    with Sandbox(limits, jobs=1) as sandbox:
        if sandbox.layers["seccomp"] != OK:
            pytest.skip("the clock is denied by processor and filter together")
        reading = "import time\ndef f(x): return time.time() > 0"
        assert sandbox.execute(reading, "1").status in (Status.KILLED, Status.ERROR)
        assert sandbox.execute("import time\ndef f(x): return x", "1").value == "1"
