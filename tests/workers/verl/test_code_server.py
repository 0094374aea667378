"""The code server that a job starts or is told of: checked before anything begins, ended with the job."""

from __future__ import annotations

import json
import stat
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest

from profiles.errors import ExitCode, LonghaulError
from tests.workers.sandbox.server.served import served
from tests.workers.verl.profiles import debug
from workers.verl import signals
from workers.verl.code_server import CodeServer, command_of
from workers.verl.reward import CODE, compute_score
from workers.verl.verdicts import ADDRESS

pytest.importorskip("starlette", reason='the extra is not installed: pip install "longhaul[server]"')


def own(folder: Path, **values: Any) -> CodeServer:
    knobs = {"verl__code_server": "start", "sandbox__allow_weak": True, "sandbox__jobs": 1}
    return CodeServer(debug(**(knobs | values)), folder, folder)


def servers() -> list[psutil.Process]:
    return [one for one in psutil.Process().children() if "workers.sandbox" in one.cmdline()]


def test_a_server_of_its_own_judges_on_loopback_and_ends_with_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(signals.CONTROL, str(tmp_path))
    with own(tmp_path):
        address = tmp_path / ADDRESS
        parts = urlsplit(address.read_text())
        assert parts.hostname == "127.0.0.1" and len(parts.path) > 16
        assert stat.S_IMODE(address.stat().st_mode) == 0o600
        (process,) = servers()
        assert parts.path not in " ".join(process.cmdline())
        tests = json.dumps(["assert f() == 1"])
        assert compute_score(CODE, "```python\ndef f(): return 1\n```", tests)["acc"] == 1.0
    assert not process.is_running()


def test_the_profile_says_what_programs_may_use(tmp_path: Path) -> None:
    with own(tmp_path, sandbox__cpu_s=3.0, sandbox__memory_mb=256, sandbox__modules=("fractions",)):
        words = " ".join(servers()[0].cmdline())
        assert "--most-seconds 3.0" in words and "--memory 256" in words and "--module fractions" in words
        assert "--require landlock --require seccomp --allow-weak" in words


def test_for_several_hosts_it_listens_on_the_network_between_them() -> None:
    words = command_of(debug(verl__code_server="start", run__hosts=2, launch__interface="lo", launch__launcher="slurm"))
    assert words[words.index("--host") + 1] == "127.0.0.1", "the address of that interface"
    assert "--host" not in command_of(debug(verl__code_server="start"))


def test_a_server_that_died_ends_the_attempt_with_a_code_of_its_own(tmp_path: Path) -> None:
    with own(tmp_path) as server:
        server.refuse_end("the checkpoint of step 3")
        (process,) = servers()
        process.kill()
        while process.status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.01)
        with pytest.raises(LonghaulError, match="the code server ended with -9") as told:
            server.refuse_end("the checkpoint of step 3")
    assert told.value.exit_code == ExitCode.CODE_SERVER and told.value.kept == "the checkpoint of step 3"


def test_a_server_that_cannot_start_says_why_in_its_own_words(tmp_path: Path) -> None:
    with (
        pytest.raises(LonghaulError, match="module no_such cannot be loaded") as told,
        own(tmp_path, sandbox__modules=("no_such",)),
    ):
        pass
    assert told.value.exit_code == ExitCode.INPUT and "--module" in told.value.next_command
    assert servers() == []


def test_a_server_that_is_named_is_checked_and_left_running(tmp_path: Path) -> None:
    with served("--jobs", "1") as server:
        with own(tmp_path, verl__code_server=f"{server.url}/"):
            assert (tmp_path / ADDRESS).read_text() == server.url
        assert server.stats()["verdicts"] == 1


@pytest.mark.parametrize(
    ("path", "said"),
    [("/a-wrong-secret-of-24-letters", "HTTP 404: the secret in the path is wrong"), (None, "Connection refused")],
)
def test_a_server_that_does_not_judge_is_refused_before_anything_starts(
    tmp_path: Path, path: str | None, said: str
) -> None:
    with served("--jobs", "1") as server:
        url = server.url.replace(server.path, path) if path else "http://127.0.0.1:9/secret"
        with pytest.raises(LonghaulError, match=said) as told, own(tmp_path, verl__code_server=url):
            pass
    assert told.value.exit_code == ExitCode.CODE_SERVER and not (tmp_path / ADDRESS).exists()
    assert "verl.code_server=start" in told.value.next_command


def test_programs_get_no_more_time_from_the_server_than_the_client_asks_for(tmp_path: Path) -> None:
    from workers.verl.check import EXAMPLE
    from workers.verl.settings import settings

    profile = debug(verl__code_server="start", sandbox__cpu_s=3.0)
    found = settings(profile, EXAMPLE)
    assert found["+reward.custom_reward_function.reward_kwargs.program_s"] == 3.0
    assert found["trainer.v1.sampler.sync_refill_failed_groups"] is True
    assert not any("secret" in name or "code_server" in name for name in found)
