"""The attack suite: with all layers, and again with each layer taken away."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.workers.sandbox.attack import MODULES, Attack
from tests.workers.sandbox.attacks import ATTACKS, WAVERING
from tests.workers.sandbox.canaries import SECRET, Canaries, canaries
from workers.sandbox import Case, Limits, Result, Sandbox, Status
from workers.sandbox.limits import LAYERS, OK

LIMITS = {"cpu_s": 0.3, "wall_s": 2.0, "memory_mb": 256, "modules": MODULES, "allow_weak": True}


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Canaries]:
    with canaries(tmp_path_factory.mktemp("canaries")) as found:
        yield found


@pytest.fixture(scope="module")
def sealed() -> Iterator[Sandbox]:
    with Sandbox(Limits(**LIMITS), jobs=1) as sandbox:
        if missing := [name for name in LAYERS if sandbox.layers[name] != OK]:
            pytest.skip(f"this machine lacks {', '.join(missing)}")
        yield sandbox


def got(result: Result) -> bool:
    """Whether the attack says that it reached something."""
    return (result.value or "")[1:4] == "GOT"


def assert_unharmed(sandbox: Sandbox, out: Canaries, result: Result) -> None:
    """No canary was touched, nothing of theirs came out, and the next program finds a clean place."""
    assert out.harm() == []
    assert SECRET not in f"{result.value} {result.message}"
    after = sandbox.execute("import math\ndef f(x): return [math.sqrt(x), len('ab')]", "4")
    assert (after.status, after.value) == (Status.OK, "[2.0, 2]")


def test_the_suite_is_as_wide_as_the_threat_model() -> None:
    everything = [*ATTACKS, *WAVERING]
    assert {attack.number for attack in everything} == set(range(1, 51))
    assert len({attack.label for attack in everything}) == len(everything) >= 57


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.label)
def test_no_attack_reaches_anything(sealed: Sandbox, out: Canaries, attack: Attack) -> None:
    zygotes = [lane.process.pid for lane in sealed._lanes]
    result = sealed.execute(attack.program, out.facts)
    assert not got(result), result
    assert result.status in attack.ends or not attack.ends, result
    assert_unharmed(sealed, out, result)
    assert [lane.process.pid for lane in sealed._lanes] == zygotes


@pytest.mark.parametrize("attack", WAVERING, ids=lambda attack: attack.label)
def test_wavering_programs_are_found_out(sealed: Sandbox, attack: Attack) -> None:
    assert sealed.check_deterministic(attack.program, "1").status in attack.ends


WITHOUT_SECCOMP = {
    "24 has a socket",
    "33 executable mapping",
    "33 memory made executable",
    "34 memory file",
    "35 io_uring",
    "36 userfaultfd",
    "38 keyring",
    "38 adds a key",
    "40 unshares",
}
"""What succeeds inside the child without the filter, where the kernel is built for it. Nothing of the host is in it."""
SURELY_WITHOUT_SECCOMP = {"24 has a socket", "33 executable mapping", "33 memory made executable", "34 memory file"}


@pytest.mark.parametrize("layer", LAYERS)
def test_any_one_layer_may_be_missing_and_the_host_stays_untouched(sealed: Sandbox, tmp_path: Path, layer: str) -> None:
    with canaries(tmp_path) as out, Sandbox(Limits(**LIMITS, without=(layer,))) as weakened:
        cases = [Case(attack.program, (out.facts,)) for attack in ATTACKS]
        results = [found[0] for found in weakened.execute_many(cases)]
        assert_unharmed(weakened, out, results[0])
    reached = {attack.label for attack, result in zip(ATTACKS, results, strict=True) if got(result)}
    if layer == "seccomp":
        assert SURELY_WITHOUT_SECCOMP <= reached <= WITHOUT_SECCOMP
    else:
        assert reached == set()


@pytest.mark.parametrize(
    ("layers", "label"),
    [
        (("seccomp",), "33 memory made executable"),
        (("seccomp", "landlock", "mountns"), "17 reads a file"),
        (("seccomp", "landlock", "mountns"), "18 writes a file"),
        (("seccomp", "landlock", "mountns"), "20 unlinks"),
        (("seccomp", "landlock", "netns"), "24 connects"),
        (("seccomp", "netns"), "24 sends a datagram"),
        (("seccomp", "landlock", "netns"), "25 abstract socket"),
        (("seccomp", "landlock", "pidns"), "26 kills a neighbour"),
        (("seccomp", "ipcns"), "22 shared memory of others"),
    ],
)
def test_an_attack_succeeds_only_when_all_layers_against_it_are_missing(
    sealed: Sandbox, tmp_path: Path, layers: tuple[str, ...], label: str
) -> None:
    (attack,) = [attack for attack in ATTACKS if attack.label == label]
    for present in (None, *layers):
        without = tuple(layer for layer in layers if layer != present)
        place = tmp_path / (present or "none")
        place.mkdir()
        with canaries(place) as out, Sandbox(Limits(**LIMITS, without=without), jobs=1) as weakened:
            assert got(weakened.execute(attack.program, out.facts)) is (present is None), f"with {present}"


RESIDUE = """
import ctypes, sys
def f(head, tail):
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    texts = [ctypes.string_at(libc.malloc(1 << n), 1 << n) for n in range(5, 22) for _ in range(64 >> n // 4)]
    pages = {id(value) >> 12 for module in list(sys.modules.values()) for value in vars(module).values()}
    texts += [ctypes.string_at(page << 12, 4096) for page in pages]
    return [text.count(head.encode() + tail.encode()) for text in texts if head.encode() + tail.encode() in text]
"""


INBOX = """
import sys
def f(x):
    frame = sys._getframe()
    while 'inbox' not in frame.f_locals: frame = frame.f_back
    return frame.f_locals['inbox']._buffer[:1000]
"""


def test_the_buffer_of_earlier_answers_is_not_in_a_childs_memory(sealed: Sandbox) -> None:
    result = sealed.execute(INBOX, "1")
    assert (result.status, result.message) == (Status.KILLED, "the process ended: signal 11")


def test_answers_of_earlier_programs_are_not_left_in_memory(sealed: Sandbox) -> None:
    """The child inherits the zygote's memory, freed blocks and all: none of it holds what another program returned."""
    word = secrets.token_hex(16)
    trail = "-".join(word[::-1])
    assert trail in (sealed.execute("def f(word): return ['-'.join(word[::-1])] * 50", repr(word)).value or "")
    found = sealed.execute(RESIDUE, f"{trail[:20]!r}, {trail[20:40]!r}")
    assert (found.status, found.value) == (Status.OK, "[]")
