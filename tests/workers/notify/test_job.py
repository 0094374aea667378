"""Messages of real runs: each once, whatever is killed; none is lost; none holds a run up or gives a secret away."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from orchestrator.cli import main
from orchestrator.launchers.environment import clean_environment
from orchestrator.notifying import environment_for
from profiles.errors import ExitCode, LonghaulError
from profiles.notify import Notify
from state import durable
from state.layout import RunDir
from tests import REPOSITORY
from tests.builders import build_store
from tests.workers.notify.test_targets import EVENT, Inbox
from tests.workers.notify.test_targets import inbox as inbox
from workers.line_contract import NotifySpec
from workers.notify.job import Notifier, serve_run
from workers.notify.outbox import Delivery, Outbox, OutboxFile, tried
from workers.notify.targets import Target

PATIENCE_S = 100.0
KEEP = "import sys; open(sys.argv[1], 'a').write(sys.stdin.read())"
FAILS = "import sys; open(sys.argv[1], 'a').write('tried '); raise SystemExit(1)"


def keeping(file: Path, code: str = KEEP) -> str:
    """The option that makes a run send its messages into a file."""
    return "notify.command=" + json.dumps([sys.executable, "-c", code, str(file)])


def start(place: Path, *words: str, on: tuple[str, ...] = ("end", "crash"), **variables: str) -> subprocess.Popen[str]:
    """A run that tells of some kinds of event: the fake trainer finds a new best score in nearly every cycle."""
    return subprocess.Popen(
        [sys.executable, "-m", "orchestrator", "run", "--plain", "--run", "night", *words,
         "--set", f"notify.on={json.dumps(on)}"], cwd=place, text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), **variables},
    )  # fmt: skip


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    said, _ = process.communicate(timeout=PATIENCE_S)
    return process.returncode, said


def events(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def wait_for(file: Path, count: int) -> list[dict[str, Any]]:
    ends = time.monotonic() + PATIENCE_S
    while len(events(file)) < count:
        assert time.monotonic() < ends, f"{events(file)} instead of {count} events"
        select_nothing()
    return events(file)


def select_nothing() -> None:
    """Leave the processor to others for a moment."""
    select.select([], [], [], 0.05)


def test_a_run_tells_each_ending_once_and_nothing_of_what_was_before(tmp_path: Path) -> None:
    file = tmp_path / "got"
    code, _ = ended(start(tmp_path, "--profile", "fake", "--max-cycles", "1"))
    assert code == 0
    words = ("--set", keeping(file), "--max-cycles")
    assert ended(start(tmp_path, *words, "2"))[0] == 0
    (first,) = events(file)
    assert (first["kind"], first["title"], first["step"]) == ("end", "night: finished", 10)
    assert ended(start(tmp_path, *words, "3"))[0] == 0
    assert [one["step"] for one in events(file)] == [10, 15] and len({one["id"] for one in events(file)}) == 2


def test_a_master_that_is_killed_is_a_crash(tmp_path: Path) -> None:
    file = tmp_path / "got"
    process = start(tmp_path, "--profile", "fake", "--set", "run.max_cycles=0", "--set", keeping(file))
    run = RunDir(tmp_path / "runs/night")
    while not (run.notify / "outbox.json").exists():
        assert process.poll() is None
        select_nothing()
    process.kill()
    process.communicate()
    (crash,) = wait_for(file, 1)
    assert crash["kind"] == "crash" and "the master ended without a word" in crash["text"]
    assert ended(start(tmp_path, "--max-cycles", "1"))[0] in (0, ExitCode.OK)
    assert [one["kind"] for one in events(file)] == ["crash", "end"]


def test_a_failed_run_is_a_crash_and_only_what_the_profile_names_is_told(tmp_path: Path) -> None:
    for on, expected in ((("crash",), ["crash"]), (("end", "disk"), [])):
        place = tmp_path / "-".join(on)
        place.mkdir()
        more = ["--profile", "fake", "--set", "fake.fault=nan:1:9!", "--set", "retry.max_same_failure=1"]
        code, _ = ended(start(place, *more, "--set", keeping(place / "got"), on=on))
        assert code not in (0, ExitCode.INPUT)
        assert [one["kind"] for one in events(place / "got")] == expected


def test_a_target_that_hangs_holds_no_run_up_and_gets_its_message_at_the_next_start(tmp_path: Path) -> None:
    file = tmp_path / "got"
    hangs = "import time; time.sleep(1000)"
    began = ["--profile", "fake", "--max-cycles", "1", "--set", "notify.timeout_s=5000"]
    code, said = ended(start(tmp_path, *began, "--set", keeping(file, hangs)))
    assert code == 0 and "finished" in said
    outbox = RunDir(tmp_path / "runs/night").notify / "outbox.json"
    (message,) = json.loads(outbox.read_text())["messages"]
    assert message["deliveries"]["command"] | {"next_at": 0} == {
        "state": "pending", "tries": 1, "next_at": 0, "error": ""
    }  # fmt: skip
    kill_notifiers(tmp_path)
    assert ended(start(tmp_path, "--max-cycles", "2", "--set", keeping(file)))[0] == 0
    late, new = events(file)
    assert late["again"] and late["step"] == 5 and not new["again"] and new["step"] == 10


def kill_notifiers(place: Path) -> None:
    """End what still sends for a run below the folder, as a power cut does."""
    for process in psutil.process_iter():
        try:
            is_ours = "workers.notify" in process.cmdline() and Path(process.cwd()) == place
        except psutil.Error:
            continue
        if is_ours:
            process.kill()
            process.wait(PATIENCE_S)


def test_a_target_that_fails_is_tried_as_often_as_allowed_and_told_of_once(tmp_path: Path) -> None:
    file = tmp_path / "got"
    more = ["--profile", "fake", "--max-cycles", "1", "--set", "notify.retries=1", "--set", keeping(file, FAILS)]
    code, said = ended(start(tmp_path, *more))
    assert code == 0 and said.count("notify: command did not take a message: exit code 1") == 1
    assert file.read_text() == "tried tried "


def test_no_secret_is_in_the_run_in_what_it_says_or_in_a_command_line(tmp_path: Path, inbox: Inbox) -> None:
    pytest.importorskip("apprise")
    secret = "SeCrEt-ToPiC"
    inbox.status = 403  # so that apprise complains of the address
    urls = f"ntfy://127.0.0.1:{inbox.port}/{secret} ntfy://127.0.0.1:9/{secret}"
    lines = tmp_path / "lines"
    peeping = (
        "import glob, sys\n"
        "for name in glob.glob('/proc/[0-9]*/cmdline'):\n"
        "    try: open(sys.argv[1], 'ab').write(open(name, 'rb').read() + b'\\n')\n"
        "    except OSError: pass"
    )
    more = ["--set", 'notify.urls_env="MY_URLS"', "--set", "notify.retries=0", "--set", keeping(lines, peeping)]
    code, said = ended(start(tmp_path, "--profile", "fake", "--max-cycles", "1", *more, MY_URLS=urls))
    assert code == 0 and "url 1 (ntfy) did not take a message" in said and len(inbox.got) == 1
    written = [path.read_bytes() for path in (tmp_path / "runs").rglob("*") if path.is_file()]
    assert len(written) > 10 and not any(secret.encode() in text for text in written)
    assert secret not in said and b"workers" in lines.read_bytes() and secret.encode() not in lines.read_bytes()


def test_a_kill_between_a_try_and_its_note_repeats_the_message_and_says_so(tmp_path: Path) -> None:
    file = tmp_path / "got"
    run = RunDir(tmp_path / "runs/night")
    assert ended(start(tmp_path, "--profile", "fake", "--max-cycles", "1"))[0] == 0
    opened = OutboxFile(run.notify)
    opened.outbox.add(EVENT, ["command"])
    opened.outbox.messages[0].deliveries["command"].tries = 1  # as noted before the try
    opened.save()
    opened.close()
    notify = Notify(command=(sys.executable, "-c", KEEP, str(file)))
    spec = NotifySpec(str(run.store.resolve()), str(run.notify.resolve()), "night", "r0", notify)
    notifier = Notifier(spec, lambda _: None, {**os.environ, "PYTHONPATH": str(REPOSITORY)})
    notifier.send(time.time())
    notifier.send(time.time())
    notifier.close()
    (again,) = events(file)
    assert again["again"] and again["id"] == EVENT.id


def notifier_of(place: Path, say: Callable[[object], None]) -> tuple[Notifier, Path]:
    """Of a run under a master, with a target that fails and one that keeps what it gets."""
    run, file = build_store(place / "night", state="running"), place / "got"
    notify = Notify(command=("false",), retries=0)
    spec = NotifySpec(str(run.store), str(run.notify), "night", "r0", notify, was_state="running")
    notifier = Notifier(spec, say, {**os.environ, "PYTHONPATH": str(REPOSITORY)})
    notifier.targets = [*notifier.targets, Target("keeps", (sys.executable, "-c", KEEP, str(file)))]
    return notifier, file


def gone() -> int:
    """The input from a master that was killed."""
    read, write = os.pipe()
    os.close(write)
    return read


def test_one_target_that_fails_when_nobody_listens_any_more_does_not_silence_the_others(tmp_path: Path) -> None:
    def say(_: object) -> None:
        raise BrokenPipeError

    notifier, file = notifier_of(tmp_path, say)
    serve_run(notifier, gone())
    (crash,) = events(file)
    assert crash["kind"] == "crash" and "the master ended without a word" in crash["text"]


def test_a_message_goes_out_although_the_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notifier, file = notifier_of(tmp_path, lambda _: None)

    def full(path: Path, data: bytes) -> None:
        raise LonghaulError("the disk is full", kept="", next_command="", exit_code=ExitCode.DISK)

    monkeypatch.setattr(durable, "write_file", full)
    serve_run(notifier, gone())
    notifier.send(time.time())
    (crash,) = events(file)
    assert crash["kind"] == "crash" and not crash["again"]


def test_a_store_that_cannot_be_read_at_the_end_does_not_hide_a_crash(tmp_path: Path) -> None:
    notifier, file = notifier_of(tmp_path, lambda _: None)
    notifier.look()
    notifier._store.close()
    serve_run(notifier, gone())
    assert [one["kind"] for one in events(file)] == ["crash"]


def test_tries_wait_longer_each_time_and_end() -> None:
    delivery = Delivery()
    waits = []
    while delivery.state == "pending":
        delivery.tries += 1
        tried(delivery, "no", retries=4, now=0.0)
        waits.append(delivery.next_at)
    assert waits == [2, 4, 8, 16, 16] and (delivery.state, delivery.tries, delivery.error) == ("failed", 5, "no")


def test_a_try_does_not_wait_for_a_clock_that_was_set_back() -> None:
    outbox = Outbox()
    outbox.add(EVENT, ["command"])
    outbox.messages[0].deliveries["command"].next_at = 10_000.0
    assert [len(outbox.due(now)) for now in (9_900.0, 10_000.0, 1_000.0)] == [0, 1, 1]


def test_an_event_is_noted_once_and_old_ones_go_only_when_they_are_done() -> None:
    outbox = Outbox()
    for number in range(300):
        for _ in range(2):
            outbox.add(msgspec.structs.replace(EVENT, id=str(number)), ["command"])
        if number >= 10:
            outbox.messages[-1].deliveries["command"].state = "sent"
    outbox.add(EVENT, ["command"])
    assert len(outbox.messages) == 200 and [one.event.id for one in outbox.messages[:11]] == [
        *map(str, range(10)),
        "111",
    ]


def test_the_command_tries_every_target_and_says_what_each_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], inbox: Inbox
) -> None:
    pytest.importorskip("apprise")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MY_URLS", f"ntfy://127.0.0.1:{inbox.port}/topic")
    words = ["notify", "--test", "--profile", "fake", "--set", 'notify.urls_env="MY_URLS"']
    assert main([*words, "--set", keeping(tmp_path / "got")]) == 0
    said = capsys.readouterr().out
    assert "command: taken (" in said and "url 1 (ntfy): taken (" in said
    assert [one["kind"] for one in events(tmp_path / "got")] == ["test"] and len(inbox.got) == 1
    assert main([*words, "--set", 'notify.command=["false"]', "--json"]) == ExitCode.INPUT
    found = capsys.readouterr()
    tried_ones = json.loads(found.out)["tried"]
    assert [(one["target"], one["error"]) for one in tried_ones] == [("command", "exit code 1"), ("url 1 (ntfy)", "")]
    assert "error: command did not take the test" in found.err
    assert not (tmp_path / "runs").exists()


def test_without_a_target_the_command_says_how_to_name_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["notify", "--test", "--profile", "fake"]) == ExitCode.INPUT
    assert "names no target" in capsys.readouterr().err
    assert main(["notify", "--profile", "fake"]) == ExitCode.USAGE
    monkeypatch.delenv("MY_URLS", raising=False)
    assert main(["notify", "--test", "--profile", "fake", "--set", 'notify.urls_env="MY_URLS"']) == ExitCode.INPUT
    found = capsys.readouterr()
    assert "the variable MY_URLS is not set" in found.out and "there was nothing to send it to" in found.err


def test_what_a_run_has_sent_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ["--profile", "fake", "--max-cycles", "1", "--set", "notify.retries=1", "--set", keeping(tmp_path, FAILS)]
    assert ended(start(tmp_path, *more))[0] == 0
    monkeypatch.chdir(tmp_path)
    assert main(["notify"]) == 0
    said = capsys.readouterr().out
    assert "ago  end         night: finished: step 5; " in said and "    command: failed, 2 tries: exit code 1" in said
    assert main(["notify", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["event"]["kind"] == "end"


def test_only_the_notifier_gets_the_urls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_URLS", "ntfy://topic")
    monkeypatch.setenv("MY_TOKEN", "token")
    got = environment_for(Notify(urls_env="MY_URLS", pass_env=("MY_TOKEN",)))
    assert got["MY_URLS"] == "ntfy://topic" and got["MY_TOKEN"] == "token"
    assert not {"MY_URLS", "MY_TOKEN"} & (set(environment_for(Notify())) | set(clean_environment("r0", "t", "")))
