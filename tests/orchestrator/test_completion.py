"""Completion, in the real shells: what a person types up to Tab, and the words that the shell then runs."""

from __future__ import annotations

import os
import pty
import select
import shlex
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.cli import COMMANDS, main, parse, parser_of
from orchestrator.completion.words import Kind, commands, knob_words
from orchestrator.examples import EXAMPLES
from profiles.knobs import knobs
from profiles.load import shipped_profiles

PATIENCE_S = 60.0
SHELLS = ("bash", "zsh")
"""Shells in which Tab is pressed; fish answers a command."""

TYPED = [
    ("expl", ["explain"]),
    ("run --prof", ["run", "--profile"]),
    ("status --run ni", ["status", "--run", "night-1"]),
    ("status --run=ni", ["status", "--run=night-1"]),
    ("status --run my", ["status", "--run", "my run"]),
    ("status --runs elsewhere --run o", ["status", "--runs", "elsewhere", "--run", "other"]),
    ("compare --run night-1 --format m", ["compare", "--run", "night-1", "--format", "md"]),
    ("compare night-1 my", ["compare", "night-1", "my run"]),
    ("run --profile grpo-1.5b-8gb-d", ["run", "--profile", "grpo-1.5b-8gb-debug"]),
    ("run --profile mine", ["run", "--profile", "mine.toml"]),
    ("run --set run.max_cy", ["run", "--set", "run.max_cycles="]),
    ("data imp", ["data", "import"]),
    ("restore night-1.t", ["restore", "night-1.tar"]),
    ("completion ba", ["completion", "bash"]),
]
"""(typed after `longhaul` before Tab, what the shell then runs)"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Runs of two folders, a profile and an archive."""
    for name in ("runs/night-1", "runs/my run", "runs/no-store", "elsewhere/other"):
        (tmp_path / name).mkdir(parents=True)
        if name != "runs/no-store":
            (tmp_path / name / "state.db").touch()
    (tmp_path / "mine.toml").touch()
    (tmp_path / "night-1.tar").touch()
    return tmp_path


def script(shell: str, place: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    assert main(["completion", shell]) == 0
    file = place / f".completion.{shell}"
    file.write_text(capsys.readouterr().out)
    return file


def shell_or_skip(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed (scripts/system-packages.sh)")
    return found


class Typist:
    """An interactive shell on a terminal, in which `longhaul` prints its words. Nothing else is on its PATH."""

    def __init__(self, shell: str, file: Path, place: Path) -> None:
        self.master, slave = pty.openpty()
        nowhere = place / ".nothing"
        nowhere.mkdir()
        self.process = subprocess.Popen(
            [shell_or_skip(shell), *(["--norc", "--noprofile", "-i"] if shell == "bash" else ["-f", "-i"])],
            stdin=slave, stdout=slave, stderr=slave, cwd=place, start_new_session=True,
            env={"PATH": str(nowhere), "TERM": "dumb", "PS1": "", "HOME": str(place), "LC_ALL": "C.UTF-8"},
        )  # fmt: skip
        os.close(slave)
        self.seen = b""
        if shell == "zsh":
            self.send("PROMPT= RPROMPT=; setopt NO_BEEP; autoload -Uz compinit; compinit -u -D\n")
        else:
            self.send("bind 'set enable-bracketed-paste off'\n")
        self.send(f"source {file}; longhaul() {{ printf '<%s>' ran: \"$@\" :end; echo; }}\n")
        self.send("longhaul be''gun\n")
        self.wait_for("<ran:><begun><:end>")

    def send(self, text: str) -> None:
        os.write(self.master, text.encode())

    def wait_for(self, text: str) -> str:
        """Return what was seen up to `text`, and forget it."""
        ends = time.monotonic() + PATIENCE_S
        while text.encode() not in self.seen:
            assert time.monotonic() < ends, f"{text!r} was not seen in {self.seen!r}"
            if select.select([self.master], [], [], 0.2)[0]:
                self.seen += os.read(self.master, 4096)
        before, _, self.seen = self.seen.partition(text.encode())
        return before.decode()

    def runs(self, typed: str) -> list[str]:
        """The words with which `longhaul` runs, where Tab and Enter follow what was typed."""
        self.send(f"longhaul {typed}\t")
        self.send("\n")
        return self.wait_for("<:end>").rpartition("<ran:>")[2].removeprefix("<").removesuffix(">").split("><")

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.master)


@pytest.fixture
def typist(request: pytest.FixtureRequest, place: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Typist]:
    shell_or_skip(request.param)
    made = Typist(request.param, script(request.param, place, capsys), place)
    yield made
    made.close()


@pytest.mark.parametrize("typist", SHELLS, indirect=True)
def test_tab_completes_what_is_typed_without_any_program(typist: Typist) -> None:
    found = {typed: typist.runs(typed) for typed, _ in TYPED}
    assert found == dict(TYPED)


def fish_offers(file: Path, place: Path, typed: str) -> set[str]:
    """What fish offers for the last word, without what it says of it."""
    said = subprocess.run(
        [shell_or_skip("fish"), "--no-config", "-c", 'source $argv[1]; complete -C "longhaul $argv[2]"', file, typed],
        cwd=place, capture_output=True, text=True, timeout=PATIENCE_S, env={**os.environ, "HOME": str(place)},
    )  # fmt: skip
    assert said.stderr == ""
    return {line.partition("\t")[0] for line in said.stdout.splitlines()}


@pytest.mark.parametrize(("typed", "words"), TYPED)
def test_fish_offers_the_same(typed: str, words: list[str], place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shell_or_skip("fish")
    assert words[-1] in fish_offers(script("fish", place, capsys), place, typed)


@pytest.mark.parametrize("shell", ["bash", "fish"])
def test_all_runs_are_offered_and_folders_without_a_store_are_not(
    shell: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = script(shell, place, capsys)
    if shell == "fish":
        found = fish_offers(file, place, "status --run ")
    else:
        code = (
            f'source {file}; COMP_WORDS=(longhaul status --run ""); COMP_CWORD=3; _longhaul; echo "${{COMPREPLY[@]}}"'
        )
        said = subprocess.run(["bash", "--norc", "-c", code], cwd=place, capture_output=True, text=True, timeout=60)
        assert said.stderr == ""
        found = set(said.stdout.replace("my\\ run", "my_run").split())
        found = {name.replace("my_run", "my run") for name in found}
    assert found == {"night-1", "my run"}


def test_fish_offers_all_shipped_profiles(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = fish_offers(script("fish", place, capsys), place, "run --profile ")
    assert {*shipped_profiles(), "mine.toml"} <= found


def test_the_tables_have_every_command_option_and_knob() -> None:
    found = {command.name: command for command in commands()}
    assert list(found) == list(COMMANDS)
    for name in COMMANDS:
        wanted = {word for action in parser_of(name)[0]._actions for word in action.option_strings}
        assert set(found[name].names) == wanted
    assert knob_words() == [f"{name}=" for name in knobs()]


@pytest.mark.parametrize("name", COMMANDS)
def test_an_option_that_names_a_run_a_profile_or_a_knob_is_completed_as_one(name: str) -> None:
    (command,) = (one for one in commands() if one.name == name)
    kinds = {word: option.kind for option in command.options for word in option.names}
    assert kinds["--run"] is Kind.RUN and kinds["--runs"] is Kind.FOLDER and kinds["--json"] is Kind.NOTHING
    assert kinds.get("--profile", Kind.PROFILE) is Kind.PROFILE and kinds.get("--set", Kind.KNOB) is Kind.KNOB


def test_every_command_has_examples() -> None:
    assert set(EXAMPLES) == set(COMMANDS)


@pytest.mark.parametrize(
    ("command", "words"), [(name, words) for name, examples in EXAMPLES.items() for words, _ in examples]
)
def test_an_example_is_a_command_line_that_is_understood(command: str, words: str) -> None:
    given = shlex.split(words.partition(" | ")[0].partition(" > ")[0])
    args, module = parse(given)
    assert given[0] == command and module.__name__ == f"orchestrator.commands.{command}" and args.runs == Path("runs")


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_the_examples(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert all(f"  longhaul {words}\n" in said for words, _ in EXAMPLES[command])
