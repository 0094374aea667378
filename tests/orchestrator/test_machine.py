"""What the driver reports about this machine's GPUs, and which of them a worker would see."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator import machine
from orchestrator.machine import Card, Machine, parse, this_machine, visible
from profiles.footprint import GIB

MIB = 1 << 20
LISTED = """\
0, GPU-aaaa, NVIDIA GeForce RTX 3060 Ti, 8192, 512, 8.6
1, GPU-bbbb, NVIDIA H200, 143771, 4, [N/A]
2, GPU-cccc, Odd card, [N/A], 0, 9.0
"""


def test_each_card_is_read_and_one_that_tells_no_size_is_none() -> None:
    cards = [card for _, _, card in parse(LISTED)]
    assert cards == [
        Card("NVIDIA GeForce RTX 3060 Ti", 8192 * MIB, 512 * MIB, capability=(8, 6)),
        Card("NVIDIA H200", 143771 * MIB, 4 * MIB),
    ]


@pytest.mark.parametrize(
    ("chosen", "names"),
    [
        (None, ["NVIDIA GeForce RTX 3060 Ti", "NVIDIA H200"]),
        ("1", ["NVIDIA H200"]),
        ("1,0", ["NVIDIA H200", "NVIDIA GeForce RTX 3060 Ti"]),
        ("GPU-bb", ["NVIDIA H200"]),
        ("", []),
        ("-1", []),
        ("7,1", []),
        ("0,7,1", ["NVIDIA GeForce RTX 3060 Ti"]),
        ("7,MIG-dddd", []),
    ],
)
def test_a_worker_sees_what_the_environment_lets_through(chosen: str | None, names: list[str]) -> None:
    environment = {} if chosen is None else {"CUDA_VISIBLE_DEVICES": chosen}
    found = visible(parse(LISTED), environment)
    assert found is not None and [card.name for card in found] == names


@pytest.mark.parametrize("chosen", ["MIG-dddd", "MIG-GPU-aaaa/1/0", "0,MIG-dddd", "GPU-dddd", "²"])
def test_of_a_name_that_is_not_listed_nobody_can_say_what_it_is(chosen: str) -> None:
    assert visible(parse(LISTED), {"CUDA_VISIBLE_DEVICES": chosen}) is None


@pytest.mark.parametrize(
    ("chosen", "names"),
    [
        (None, None),
        ("1", None),
        ("GPU-bb,0", None),
        ("GPU-bb,GPU-aa", ["NVIDIA H200", "NVIDIA GeForce RTX 3060 Ti"]),
        ("", []),
        ("7", []),
    ],
)
def test_where_the_user_has_cuda_count_otherwise_an_index_says_nothing_of_several_cards(
    chosen: str | None, names: list[str] | None
) -> None:
    environment = {"CUDA_DEVICE_ORDER": "FASTEST_FIRST"} | (
        {"CUDA_VISIBLE_DEVICES": chosen} if chosen is not None else {}
    )
    found = visible(parse(LISTED), environment)
    assert (None if found is None else [card.name for card in found]) == names
    (alone,) = parse(LISTED.splitlines()[0])
    assert visible([alone], {"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}) == (alone[2],)
    assert visible(parse(LISTED), {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "1"}) is not None


def test_what_others_use_and_what_the_driver_keeps_is_not_usable() -> None:
    assert Card("c", 8 * GIB).usable_bytes == pytest.approx(7.7 * GIB, abs=MIB)
    assert Card("c", 8 * GIB, 2 * GIB).usable_bytes == 6 * GIB


def driver(folder: Path, script: str) -> None:
    path = folder / "nvidia-smi"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        pytest.param(f"printf '{LISTED.splitlines()[0]}\\n'", ["NVIDIA GeForce RTX 3060 Ti"], id="one card"),
        pytest.param("echo 'No devices were found'; exit 6", [], id="a driver without a card"),
        pytest.param("echo 'driver/library version mismatch'; exit 18", [], id="a driver that does not work"),
        pytest.param("", [], id="nothing said"),
    ],
)
def test_the_driver_is_asked(script: str, expected: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver(tmp_path, script)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    found = this_machine()
    assert found.cards is not None and [card.name for card in found.cards] == expected
    assert bool(found.why) == (not expected)


def test_without_nvidia_smi_it_depends_on_whether_there_may_be_a_card_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(machine, "DEVICES", (str(tmp_path / "nvidiactl"),))
    assert this_machine().has_no_gpu
    (tmp_path / "nvidiactl").touch()
    unknown = this_machine()
    assert unknown.cards is None and not unknown.has_no_gpu and unknown.card is None


def test_a_slice_of_a_card_is_for_the_worker_to_judge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver(tmp_path, f"printf '{LISTED.splitlines()[1]}\\n'")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-dddd")
    found = this_machine()
    assert found.cards is None and not found.has_no_gpu and not found.lacks(1)
    assert found.why.startswith("nvidia-smi cannot tell which card CUDA_VISIBLE_DEVICES")


def test_a_worker_takes_the_first_card() -> None:
    cards = (Card("a", GIB), Card("b", GIB))
    assert Machine(cards).card is cards[0]
