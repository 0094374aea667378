"""Who may join the ranks of an attempt: what is proved before anything is obeyed, and what others are told."""

from __future__ import annotations

import os
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import msgspec
import pytest

from profiles.errors import ExitCode, LonghaulError
from workers.rank_group import meeting
from workers.rank_group.hosts import Hosts, Loss
from workers.rank_group.meeting import (
    HANDSHAKE_S,
    Hello,
    Host,
    Place,
    Purpose,
    Stranger,
    admit,
    find,
    introduce,
    listen,
    place_at,
    publish,
    reach,
    this_host,
)
from workers.rank_group.wire import Begin, Farewell, Gone, RankEnded, Ranks, receive, send

KEY, OTHER = b"k" * 32, b"o" * 32
HOST_1 = Hello(Purpose.HOST, 1)
ENVIRONMENT = {
    "LONGHAUL_HOST": "1",
    "LONGHAUL_HOSTS": "2",
    "LONGHAUL_MEETING": "/shared/hosts.json",
    "LONGHAUL_INTERFACE": "lo",
}


def anybody(_: Hello) -> bool:
    return True


def both_sides(theirs: bytes, is_free: Callable[[Hello], bool] = anybody) -> tuple[object, object]:
    """What the leader with KEY and a member with another key or the same come to."""
    left, right = socket.socketpair(socket.AF_UNIX)
    tcp = listen("lo")
    member = socket.create_connection(tcp.getsockname())
    leader, _ = tcp.accept()
    found: list[object] = []

    def lead() -> None:
        try:
            found.append(admit(leader, KEY, is_free))
        except (Stranger, Gone) as error:
            found.append(error)
            leader.close()

    thread = threading.Thread(target=lead)
    thread.start()
    try:
        introduce(member, theirs, HOST_1, time.monotonic() + 5)
        mine: object = "welcome"
    except (Stranger, Gone) as error:
        mine = error
    member.close()
    thread.join()
    for one in (left, right, tcp, leader):
        one.close()
    return found[0], mine


def test_who_knows_the_key_is_known_by_its_purpose_and_number() -> None:
    assert both_sides(KEY) == (HOST_1, "welcome")


def test_who_has_another_key_learns_that_the_leader_is_not_its_own_and_says_no_more() -> None:
    found, mine = both_sides(OTHER)
    assert isinstance(mine, Stranger)
    assert isinstance(found, Gone)  # it hung up before it had told who it is


def test_what_is_here_already_is_refused_although_it_knows_the_key() -> None:
    found, mine = both_sides(KEY, lambda hello: False)
    assert isinstance(found, Gone) and "HOST 1 is here already" in str(found)
    assert isinstance(mine, Gone)


def a_place(path: Path) -> tuple[socket.socket, Place]:
    listener = listen("lo")
    return listener, publish(path, listener, "token")


def test_the_place_is_a_whole_file_that_only_its_owner_reads_and_no_second_leader_replaces(
    tmp_path: Path,
) -> None:
    path = tmp_path / "hosts.json"
    assert place_at(path) is None
    first, place = a_place(path)
    assert place_at(path) == place and place.port == first.getsockname()[1]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    second = listen("lo")
    assert second.getsockname() != first.getsockname()  # the kernel gives no port that is taken
    with pytest.raises(LonghaulError, match="another leader of this attempt has met its hosts") as caught:
        publish(path, second, "token")
    assert caught.value.exit_code == ExitCode.LOCKED
    assert place_at(path) == place and [one.name for one in tmp_path.iterdir()] == ["hosts.json"]
    first.close()
    second.close()


def test_a_torn_file_is_not_there_yet(tmp_path: Path) -> None:
    (tmp_path / "hosts.json").write_bytes(b'{"address": "127.0.0.1", "po')
    assert place_at(tmp_path / "hosts.json") is None


def test_a_leader_that_never_comes_is_told_with_its_file_after_the_time_that_was_given(tmp_path: Path) -> None:
    host = Host(1, 2, tmp_path / "hosts.json", "lo", wait_s=0.3)
    with pytest.raises(LonghaulError, match=r"host 1 waited 0.3 s for .*/hosts.json, which host 0 writes") as caught:
        find(host)
    assert caught.value.exit_code == ExitCode.RANK
    assert find(host, lambda: True) is None  # an attempt that has ended needs no other host


def test_a_leader_that_is_gone_or_of_another_attempt_is_told_to_who_wants_to_reach_it(tmp_path: Path) -> None:
    listener, place = a_place(tmp_path / "hosts.json")
    other = Place(place.address, place.port, OTHER, "token")
    thread = threading.Thread(target=lambda: refuse(listener, place.key))
    thread.start()
    with pytest.raises(LonghaulError, match="it does not know the key of this attempt"):
        reach(other, HOST_1, 1.0)
    thread.join()
    listener.close()
    with pytest.raises(LonghaulError, match=r"host 1 did not come to the leader at 127\.0\.0\.1 .* refused") as caught:
        reach(place, HOST_1, 0.3)
    assert caught.value.exit_code == ExitCode.RANK


def test_a_peer_is_as_patient_as_its_leader_is_busy(tmp_path: Path) -> None:
    """A peer that gives up first, and comes back, is taken for a second one."""
    listener, place = a_place(tmp_path / "hosts.json")
    found: list[Hello] = []

    def lead() -> None:
        time.sleep(HANDSHAKE_S + 0.5)
        channel, _ = listener.accept()
        found.append(admit(channel, place.key, anybody))
        channel.close()

    thread = threading.Thread(target=lead)
    thread.start()
    reach(place, HOST_1, 30.0).close()
    thread.join()
    listener.close()
    assert found == [HOST_1]


def refuse(listener: socket.socket, key: bytes) -> None:
    channel, _ = listener.accept()
    with pytest.raises(Gone):
        admit(channel, key, anybody)
    channel.close()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"LONGHAUL_INTERFACE": ""}, "need LONGHAUL_INTERFACE in the environment"),
        ({"LONGHAUL_HOST": "2"}, "LONGHAUL_HOST = 2 is none of 0 to 1"),
        ({"LONGHAUL_HOSTS": "two"}, "is no number"),
        ({"LONGHAUL_HOSTS_WAIT_S": "long"}, "is no number"),
    ],
)
def test_what_a_launcher_leaves_out_or_says_wrongly_is_refused(changes: dict[str, str], said: str) -> None:
    with pytest.raises(LonghaulError, match=said) as caught:
        this_host(ENVIRONMENT | changes)
    assert caught.value.exit_code == ExitCode.INPUT
    assert this_host(ENVIRONMENT) == Host(1, 2, Path("/shared/hosts.json"), "lo")


def test_an_interface_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(LonghaulError, match=r"'ib9' has no address here; there are .*lo") as caught:
        listen("ib9")
    assert caught.value.exit_code == ExitCode.INPUT


# --- the leader's thread ---------------------------------------------------------------------------------------------


class Leader:
    """Hosts of one rank each, and what they were lost with."""

    def __init__(self, folder: Path, hosts: int = 2, wait_s: float = 30.0) -> None:
        self.losses: list[Loss] = []
        self.failures: list[LonghaulError] = []
        self.told = threading.Event()
        self.hosts = Hosts(
            Host(0, hosts, folder / "hosts.json", "lo", wait_s), 1, "token",
            lambda rank: Begin("spec", "token", rank, hosts, "", "", "azr"),
            on_loss=partial(self._tell, self.losses), on_failure=partial(self._tell, self.failures),
        )  # fmt: skip

    def _tell(self, where: list, what: object) -> None:  # type: ignore[type-arg]
        where.append(what)
        self.told.set()

    def reached(self, purpose: Purpose, number: int) -> socket.socket:
        return reach(self.hosts.place, Hello(purpose, number), 30.0)


@pytest.fixture
def leader(tmp_path: Path) -> Iterator[Leader]:
    found = Leader(tmp_path)
    yield found
    found.hosts.close()


def everyone(leader: Leader) -> dict[Purpose, socket.socket]:
    return {purpose: leader.reached(purpose, 1) for purpose in Purpose}


def test_each_is_told_its_part_then_nothing_listens_any_more(leader: Leader) -> None:
    here = everyone(leader)
    assert receive(here[Purpose.HOST], Ranks) == Ranks(first=1, count=1)
    assert receive(here[Purpose.CALLS], Begin).rank == 1
    assert list(leader.hosts.channels()) == [1]
    with pytest.raises(OSError, match="refused"):
        socket.create_connection((leader.hosts.place.address, leader.hosts.place.port), timeout=1)
    for channel in here.values():
        channel.close()


def test_strangers_who_say_nothing_or_anything_are_refused_and_keep_nobody_out(leader: Leader) -> None:
    where = (leader.hosts.place.address, leader.hosts.place.port)
    silent = socket.create_connection(where)
    loud = socket.create_connection(where)
    loud.sendall(os.urandom(4096) + msgspec.msgpack.encode(RankEnded(1, -9, [])))
    here = everyone(leader)
    assert list(leader.hosts.channels()) == [1] and leader.losses == []
    for channel in (silent, loud, *here.values()):
        channel.close()


def test_a_lost_rank_and_a_lost_host_are_told_by_name(tmp_path: Path) -> None:
    leader = Leader(tmp_path, hosts=3)
    said = leader.reached(Purpose.HOST, 1)
    send(said, RankEnded(1, -9, ["last words"]))
    assert leader.told.wait(5)
    leader.told.clear()
    leader.reached(Purpose.HOST, 2).close()
    assert leader.told.wait(5)
    assert [(one.who, one.code, one.tail) for one in leader.losses] == [
        ("rank 1", -9, ("last words",)), ("host 2", None, ())
    ]  # fmt: skip
    leader.hosts.close()
    said.close()


def test_a_host_that_never_comes_is_named_when_the_time_is_over(tmp_path: Path) -> None:
    leader = Leader(tmp_path, hosts=3, wait_s=0.5)
    here = leader.reached(Purpose.HOST, 1)
    assert leader.told.wait(5)
    (failure,) = leader.failures
    assert failure.exit_code == ExitCode.RANK
    assert "of 3 hosts, these did not come within 0.5 s: 2" in failure.what
    leader.hosts.close()
    here.close()


def test_at_the_end_a_host_hears_farewell_first(leader: Leader) -> None:
    here = everyone(leader)
    receive(here[Purpose.HOST], Ranks)
    leader.hosts.channels()
    leader.hosts.close()
    assert receive(here[Purpose.HOST], Farewell) == Farewell()
    assert leader.losses == []
    leader.hosts.close = lambda: None  # type: ignore[method-assign]
    for channel in here.values():
        channel.close()


def test_ranks_of_two_attempts_never_meet(tmp_path: Path) -> None:
    """Both listen on one interface; a rank that has the place of one and the key of the other joins neither."""
    ours, theirs = (Leader(tmp_path / name) for name in ("ours", "theirs") if (tmp_path / name).mkdir() is None)
    mixed = msgspec.structs.replace(ours.hosts.place, key=theirs.hosts.place.key)
    with pytest.raises(LonghaulError, match="does not know the key"):
        reach(mixed, HOST_1, 1.0)
    for one in (ours, theirs):
        one.hosts.close()


def test_a_slow_stranger_has_no_more_time_than_a_silent_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting, "HANDSHAKE_S", 0.3)
    listener = listen("lo")
    slow = socket.create_connection(listener.getsockname())
    channel, _ = listener.accept()

    def drip() -> None:
        for _ in range(10):
            try:
                slow.sendall(b"x")
            except OSError:
                return
            time.sleep(0.1)

    thread = threading.Thread(target=drip)
    thread.start()
    began = time.monotonic()
    with pytest.raises(Gone):
        admit(channel, KEY, anybody)
    assert time.monotonic() - began < 0.8
    channel.close()
    thread.join()
    slow.close()
    listener.close()
