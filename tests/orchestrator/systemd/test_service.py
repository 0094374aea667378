"""The unit and the recipe that `service` makes: systemd itself reads the one, a real tmux the other."""

from __future__ import annotations

import configparser
import os
import shutil
import stat
import subprocess
import tempfile
from pathlib import Path

import pytest

from orchestrator.cli import main
from orchestrator.systemd.unit import CAN_PASS, NEVER_AGAIN, RESULTS, stop_s, tmux_recipe, unit_name, unit_text
from profiles.errors import ExitCode
from profiles.load import load_profile, shipped_profiles
from profiles.schema import Profile
from state import python

ODD = ["night-1", "my run", "100% %n", "$HOME ${x}", 'a"b', "a\\b", "日本", "a'b", "-x", "tab; true"]
COMMAND = [*python.command("orchestrator"), "run", "--run"]


def place_of(text: str) -> configparser.ConfigParser:
    parser = configparser.RawConfigParser(strict=False)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string(text)
    return parser


def verified(folder: Path, name: str, text: str) -> str:
    """What systemd says of a unit; nothing: it is valid."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed (scripts/system-packages.sh)")
    file = folder / name
    file.write_text(text)
    with tempfile.TemporaryDirectory(dir="/tmp") as short:  # the sockets of other units must fit below it
        done = subprocess.run(
            ["systemd-analyze", "--user", "verify", str(file)], capture_output=True, text=True, timeout=60,
            env={**os.environ, "XDG_RUNTIME_DIR": short},
        )  # fmt: skip
    return f"{done.stderr}{done.stdout}" + (f"exit code {done.returncode}" if done.returncode else "")


@pytest.mark.parametrize("run", ODD)
def test_systemd_accepts_the_unit_of_a_run_with_any_name(run: str, tmp_path: Path) -> None:
    place = tmp_path / "a folder of 5%"
    place.mkdir()
    environment = {"PATH": "/a b:/c%d:$e", "LONGHAUL_DATA": '/data "x"'}
    text = unit_text(run, Profile(name="p"), [*COMMAND, run, "--plain"], place, environment)
    assert verified(tmp_path, unit_name(run), text) == ""


def test_a_value_of_several_lines_stays_one_word(tmp_path: Path) -> None:
    words = [*COMMAND, "night", "--set", 'notify.on=["crash",\n  "end"]']
    text = unit_text("night", Profile(name="p"), words, tmp_path, {"LONGHAUL_DATA": "/a\nb"})
    assert '"notify.on=[\\"crash\\",\\n  \\"end\\"]"' in text and '"LONGHAUL_DATA=/a\\nb"' in text
    assert verified(tmp_path, "night.service", text) == ""


def test_systemd_would_refuse_a_unit_that_is_wrong(tmp_path: Path) -> None:
    text = unit_text("night", Profile(name="p"), [*COMMAND, "night"], tmp_path, {})
    assert "Failed to parse" in verified(tmp_path, "a.service", text.replace("OOMPolicy=continue", "OOMPolicy=often"))
    assert "Command" in verified(tmp_path, "b.service", text.replace("ExecStart=/", "ExecStart=/nowhere/"))


def test_words_reach_the_command_as_they_were_typed() -> None:
    text = unit_text("n", Profile(name="p"), ["/bin/x", "a b", 'q"q', "100%", "$HOME", "back\\slash"], Path("/"), {})
    assert 'ExecStart=/bin/x "a b" "q\\"q" "100%%" "$$HOME" "back\\\\slash"\n' in text
    text = unit_text("n", Profile(name="p"), ["/bin/x"], Path("/"), {"PATH": "/a b:$x"})
    assert 'Environment="PATH=/a b:$x"\n' in text  # a `$` has no meaning there


def test_a_unit_has_the_name_that_systemd_escape_gives() -> None:
    if shutil.which("systemd-escape") is None:
        pytest.skip("systemd-escape is not installed (scripts/system-packages.sh)")
    for run in ("my run", "100% %n", "日本", 'a"b'):
        escaped = subprocess.run(
            ["systemd-escape", "--", run], capture_output=True, text=True, timeout=60
        ).stdout.strip()
        assert unit_name(run) == f"longhaul-{escaped}.service"


def test_every_ending_is_decided_and_only_those_that_can_pass_are_tried_again() -> None:
    assert {*NEVER_AGAIN, *CAN_PASS, ExitCode.OK} == set(ExitCode) and {ExitCode.GPU, ExitCode.CLUSTER} == CAN_PASS
    service = place_of(unit_text("n", Profile(name="p"), ["/bin/true"], Path("/"), {}))["Service"]
    assert service["Restart"] == "on-failure" and service["Type"] == "notify" and service["KillMode"] == "mixed"
    assert set(map(int, service["RestartPreventExitStatus"].split())) == set(map(int, NEVER_AGAIN))
    assert set(map(int, service["SuccessExitStatus"].split())) == set(map(int, RESULTS))
    assert int(service["WatchdogSec"]) >= 60 and service["OOMPolicy"] == "continue"


@pytest.mark.parametrize("name", shipped_profiles())
def test_a_stop_has_time_for_the_longest_step_and_its_checkpoint(name: str) -> None:
    profile = load_profile(name).profile
    assert stop_s(profile) > 4 * profile.timeouts.step_min_s + profile.timeouts.checkpoint_s


def test_no_secret_of_the_environment_is_written() -> None:
    secrets = {
        "HF_TOKEN": "hf_secret",
        "APPRISE_URLS": "ntfy://secret",
        "WANDB_API_KEY": "secret",
        "LONGHAUL_X": "secret",
    }
    text = unit_text("n", Profile(name="p"), ["/bin/true"], Path("/"), {**secrets, "PATH": "/bin"})
    assert "secret" not in text and "EnvironmentFile=-%E/longhaul/environment" in text


@pytest.fixture
def configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path / "config/systemd/user"


def test_service_writes_a_private_unit_and_starts_nothing(configured: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["service", "--profile", "fake", "--run", "night 1", "--set", "run.max_cycles=3"]) == 0
    said = capsys.readouterr().out
    file = configured / "longhaul-night\\x201.service"
    assert said.startswith(f"wrote {file}\n") and "enable --now 'longhaul-night\\x201.service'" in said
    assert '--run "night 1" --profile fake --set run.max_cycles=3 --plain\n' in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600 and not Path("runs").exists()
    assert verified(configured, file.name, file.read_text()) == ""


def test_another_unit_is_not_overwritten_unless_it_is_asked_for(
    configured: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["service", "--profile", "fake", "--run", "night"]
    assert main(words) == 0 == main(words)  # the same again
    changed = [*words, "--set", "run.seed=1"]
    before = (configured / "longhaul-night.service").read_text()
    assert main(changed) == ExitCode.INPUT and "is there already and differs" in capsys.readouterr().err
    assert (configured / "longhaul-night.service").read_text() == before
    assert main([*changed, "--print"]) == 0 and "--set run.seed=1" in capsys.readouterr().out
    assert main([*changed, "--force"]) == 0
    assert "--set run.seed=1" in (configured / "longhaul-night.service").read_text()


def test_a_run_that_has_begun_goes_on_with_its_own_profile(configured: Path) -> None:
    assert main(["run", "--plain", "--profile", "fake", "--run", "night", "--max-cycles", "1"]) == 0
    assert main(["service"]) == 0
    (line,) = (one for one in (configured / "longhaul-night.service").read_text().splitlines() if "ExecStart" in one)
    assert line.endswith(" -P -m orchestrator run --run night --plain")


def test_without_a_run_and_a_profile_it_says_so(configured: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["service"]) == ExitCode.INPUT and "there is no run in runs" in capsys.readouterr().err


@pytest.mark.parametrize("run", ["night", "my 'odd' $run"])
def test_tmux_runs_the_recipe(run: str, tmp_path: Path) -> None:
    if shutil.which("tmux") is None:
        pytest.skip("tmux is not installed (scripts/system-packages.sh)")
    place = tmp_path / "a folder"
    place.mkdir()
    os.mkfifo(place / "said")
    recipe = tmux_recipe(run, ["/bin/sh", "-c", 'printf %s "$1" > said', "sh", run], place)
    begin, attach = recipe.splitlines()
    assert attach.startswith("tmux attach -t longhaul-")
    environment = {**os.environ, "TMUX_TMPDIR": str(tmp_path)}
    environment.pop("TMUX", None)
    subprocess.run(["sh", "-c", begin], env=environment, check=True, timeout=60)
    assert (place / "said").read_text() == run
