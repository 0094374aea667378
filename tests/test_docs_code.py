"""Code blocks of the documents: each is run here, or says why not. What is checked of a block, by language:

bash      every command is parsed: those of Longhaul by the real parser, with their profiles and knobs; benchmarks and
          other modules by their own parser; targets of make, files and extras must exist. Without a marker the block
          also runs, in a folder with runs of the profile `fake`
python    runs, or with a marker is compiled
toml      is loaded as a profile, or with a marker is read
json      each line is read
text      after a marker `output`: stands in what the block before it printed; else nothing

tests/docs_code.py lists the markers.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest

from benchmarks.__main__ import names as benchmark_names
from orchestrator.cli import COMMANDS, parser_of
from profiles.errors import LonghaulError
from profiles.knobs import knobs
from profiles.load import load_profile, shipped_profiles
from tests import REPOSITORY
from tests.docs_code import LANGUAGES, MARKER, Block, all_blocks, blocks_of, commands_of

BLOCKS = all_blocks()
OTHER_PROGRAMS = frozenset(
    "cat cd cp echo export git hf kill ls mkdir pip ray sleep source sqlite3 uv .venv/bin/pre-commit".split()  # noqa: SIM905
)
RUNS = ("night", "night-1", "night-2")
"""Finished runs of the profile `fake` that a page finds."""
SCENES = {
    "docs/away.md": {"my.toml": 'extends = "fake"\n[notify]\ncommand = ["true"]\n'},
}
"""Page -> files that its blocks take for granted."""
SAID_OTHERWISE = {
    "docs/operations.md": {
        "/mnt/other/kept": "kept",
        "night-s000820": "night-s000020",
        "--run night-2": "--run night-4",
    },
}
"""Page -> what is another thing here: a disk, a step, a name that is taken."""
READERS_OWN = re.compile(r"suites=.*\w:[A-Z]")
"""A knob whose value names a module that the reader writes."""
BLOCK_S = 60


def of(*languages: str) -> list[Block]:
    return [block for block in BLOCKS if block.language in languages]


def named(blocks: list[Block]) -> list[pytest.param]:
    return [pytest.param(block, id=block.place) for block in blocks]


# --- markers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", named(BLOCKS))
def test_a_block_has_a_language_that_is_checked(block: Block) -> None:
    assert block.language in LANGUAGES


def test_a_marker_says_why_and_a_test_that_it_names_is_there() -> None:
    for block in BLOCKS:
        assert bool(block.why) is (block.kind not in ("", "output")), block.place
        if block.kind == "tested by":
            source = (REPOSITORY / block.why).read_text(encoding="utf-8")
            assert Path(block.page).name in source or "tests.extending" in source, block.place
        allowed = {"": LANGUAGES, "exit code": {"bash"}, "output": {"text"}, "with": {"toml"}}
        assert block.language in allowed.get(block.kind, {"bash", "python", "toml"}), block.place


def test_markers_stand_before_blocks_alone() -> None:
    for page in {block.page for block in BLOCKS}:
        text = (REPOSITORY / page).read_text(encoding="utf-8")
        written = [line for line in text.splitlines() if MARKER.fullmatch(line.strip())]
        assert len(written) == len([block for block in BLOCKS if block.page == page and block.kind]), page


# --- bash: every command is parsed ------------------------------------------------------------------------------------


def check_longhaul(words: list[str]) -> None:
    """Raises SystemExit or LonghaulError for a command line that the program would refuse."""
    assert words and words[0] in COMMANDS
    args = parser_of(words[0])[0].parse_args(words[1:])
    profile, overrides = getattr(args, "profile", None), getattr(args, "overrides", [])
    assert {one.partition("=")[0] for one in overrides} <= set(knobs())
    if profile in (None, *shipped_profiles()):
        there = [one.replace("$PWD", "/here") for one in overrides if not READERS_OWN.search(one)]
        load_profile(profile or "pocket", there)
    else:
        assert Path(profile).suffix == ".toml"


def check_make(words: list[str]) -> None:
    """Of a target: that it is there, and what its variables pass on."""
    targets = re.findall(r"^([a-z-]+):.*##", (REPOSITORY / "Makefile").read_text(), re.MULTILINE)
    given = dict(word.split("=", 1) for word in words if "=" in word)
    (target,) = (word for word in words if "=" not in word)
    assert target in targets and set(given) <= {"PROFILE", "ARGS", "JOBS"}
    if target == "run":
        named_profile = f"--profile {given['PROFILE']}" if "PROFILE" in given else ""
        (command,) = commands_of(f"longhaul run {named_profile} {given.get('ARGS', '')}")
        check_longhaul(command[1:])
    if target == "bench" and "ARGS" in given:
        assert given["ARGS"].split()[0] in benchmark_names()


def check_pip(words: list[str]) -> None:
    extras = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for name in re.findall(r"longhaul\[(\w+)\]", " ".join(words)):
        assert name in extras


def check_command(words: list[str]) -> None:
    match words:
        case ["longhaul", *rest] | ["python", "-m", "orchestrator", *rest]:
            check_longhaul(rest)
        case ["make", *rest]:
            check_make(rest)
        case ["pip", *rest]:
            check_pip(rest)
        case ["bash", file]:
            assert (REPOSITORY / file).is_file()
        case ["python", "-m", module, *_]:
            path = REPOSITORY / module.replace(".", "/")
            assert module == "pytest" or path.is_dir() or path.with_suffix(".py").is_file()
        case ["python" | ".venv/bin/python", "-" | "convert_hf_to_gguf.py", *_]:
            pass
        case [program, *_]:
            assert program in OTHER_PROGRAMS, f"what is {program}?"


@pytest.mark.parametrize("block", named(of("bash")))
def test_every_command_would_be_understood(block: Block) -> None:
    for words in commands_of(block.text):
        try:
            check_command(words)
        except (SystemExit, LonghaulError) as error:
            pytest.fail(f"{' '.join(words)}: {error}")


PARSE_ONLY = dedent("""
    import argparse, importlib, json, sys
    class Parsed(Exception): pass
    def parse(self, *given, real=argparse.ArgumentParser.parse_args, **named):
        real(self, *given, **named)
        raise Parsed
    argparse.ArgumentParser.parse_args = parse
    for module, words in json.load(sys.stdin):
        sys.argv = [module, *words]
        print(f"python -m {module} {' '.join(words)}", flush=True)
        try:
            if module.startswith("benchmarks."):
                importlib.import_module(module).main(words)
            else:
                importlib.import_module("runpy").run_module(module, run_name="__main__")
        except Parsed:
            continue
        sys.exit("it parsed nothing")
""")


def other_parsers() -> Iterator[tuple[str, list[str]]]:
    """Modules beside the orchestrator whose options a block gives, with these."""
    for block in of("bash"):
        for words in commands_of(block.text):
            match words:
                case ["make", "bench", args]:
                    (bench,) = commands_of(args.removeprefix("ARGS="))
                    yield f"benchmarks.{bench[0]}", bench[1:]
                case ["python", "-m", module, *rest] if module.startswith("workers.pocket"):
                    yield module, rest


@pytest.mark.slow
def test_options_of_benchmarks_and_scripts_are_those_of_their_parsers() -> None:
    given = list(other_parsers())
    assert len(given) > 5
    done = subprocess.run(
        [sys.executable, "-c", PARSE_ONLY],
        input=json.dumps(given),
        cwd=REPOSITORY,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-300:] + done.stderr[-1000:]


# --- bash and python: what can run, runs ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with RUNS, and programs `longhaul` and `python` that are those under test."""
    folder = tmp_path_factory.mktemp("prepared")
    (folder / "bin").mkdir()
    for name, words in (("python", ""), ("longhaul", " -m orchestrator")):
        program = folder / "bin" / name
        program.write_text(f'#!/bin/sh\nexec {sys.executable}{words} "$@"\n')
        program.chmod(0o755)
    words = ["run", "--profile", "fake", "--run", RUNS[0], "--plain", "--set", "fake.step_s=0.0"]
    done = run_script(folder, f"longhaul {' '.join(words)}", folder)
    assert done.returncode == 0, done.stdout
    for name in RUNS[1:]:
        shutil.copytree(folder / "runs" / RUNS[0], folder / "runs" / name)
    return folder


def environment(prepared: Path, cwd: Path) -> dict[str, str]:
    """HOME is the folder, there is no GPU, and no data."""
    return os.environ | {
        "PATH": f"{prepared / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": str(REPOSITORY),
        "HOME": str(cwd),
        "XDG_CONFIG_HOME": str(cwd / ".config"),
        "CUDA_VISIBLE_DEVICES": "",
        "LONGHAUL_DATA": "",
    }


def run_script(prepared: Path, script: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", script],
        cwd=cwd,
        env=environment(prepared, cwd),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=BLOCK_S,
    )


def runnable() -> list[str]:
    """Pages with a block that runs."""
    return sorted({block.page for block in of("bash", "python") if block.is_run})


@pytest.mark.parametrize("page", runnable())
def test_the_blocks_of_a_page_run_in_their_order(page: str, prepared: Path, tmp_path: Path) -> None:
    shutil.copytree(prepared / "runs", tmp_path / "runs")
    for name, text in SCENES.get(page, {}).items():
        (tmp_path / name).write_text(text)
    printed = ""
    for block in BLOCKS:
        if block.page == page and block.language in ("bash", "python") and block.is_run:
            printed = run_block(block, prepared, tmp_path)
        elif block.page == page and block.kind == "output":
            parts = [re.escape(part) for part in " ".join(block.text.split()).split(" ... ")]
            assert re.search(".*?".join(parts), " ".join(printed.split())), f"{block.place}: {printed}"


def run_block(block: Block, prepared: Path, cwd: Path) -> str:
    """What it prints."""
    script = block.text
    for ours, here in SAID_OTHERWISE.get(block.page, {}).items():
        script = script.replace(ours, here)
    if block.language == "python":
        (cwd / "block.py").write_text(script)
        script = "python -P block.py"
    done = run_script(prepared, script, cwd)
    expected = int(block.why) if block.kind == "exit code" else 0
    assert done.returncode == expected, f"{block.place} ended with {done.returncode}: {done.stdout}"
    return done.stdout


@pytest.mark.parametrize("block", named([one for one in of("python") if not one.is_run]))
def test_python_that_does_not_run_here_is_python(block: Block) -> None:
    compile(block.text, block.place, "exec")


# --- toml and json ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", named(of("toml")))
def test_a_profile_is_one(block: Block, tmp_path: Path) -> None:
    tomllib.loads(block.text)
    if not block.is_run:
        return
    assert block.kind == "with" or "extends" in tomllib.loads(block.text)
    base = f'extends = "{block.why}"\n' if block.kind == "with" else ""
    path = tmp_path / "block.toml"
    path.write_text(base + block.text)
    load_profile(str(path))


@pytest.mark.parametrize("block", named(of("json")))
def test_each_line_of_json_is_an_object(block: Block) -> None:
    assert all(isinstance(json.loads(line), dict) for line in block.text.splitlines())


# --- the check itself -------------------------------------------------------------------------------------------------


def test_a_block_is_found_with_its_marker_and_without_its_indentation() -> None:
    text = "a\n\n  <!-- not run: needs a GPU -->\n  ```bash\n  make run\n  ```\n````python\n```\n````\n"
    first, second = blocks_of("page.md", text)
    assert (first.place, first.language, first.text, first.kind, first.why) == (
        "page.md:4", "bash", "make run\n", "not run", "needs a GPU"
    )  # fmt: skip
    assert (second.text, second.kind, second.is_run) == ("```\n", "", True)
    with pytest.raises(ValueError, match="does not end"):
        blocks_of("page.md", "```bash\nmake run\n")


def test_commands_are_found_behind_pipes_redirections_and_assignments() -> None:
    script = "A=b longhaul status --run 'a b' | head -1 > f 2>&1 &   # c\ncat > f <<'E'\nno such\nE\ncd a && \\\n ls"
    assert list(commands_of(script)) == [
        ["longhaul", "status", "--run", "a b"],
        ["head", "-1"],
        ["cat"],
        ["cd", "a"],
        ["ls"],
    ]


@pytest.mark.parametrize(
    "wrong",
    [
        "longhaul statsu",
        "longhaul status --no-such-option",
        "python -m orchestrator run --profile no-such-profile",
        "python -m orchestrator run --profile fake --set run.no_such_knob=1",
        "python -m orchestrator run --set run.max_cycles=many",
        "make no-such-target",
        "make run PROFILE=no-such-profile",
        'make run ARGS="--no-such-option"',
        "make bench ARGS=no_such_benchmark",
        'pip install "longhaul[nosuch]"',
        "python -m workers.no_such_module",
        "bash scripts/no-such.sh",
        "no-such-program",
    ],
)
def test_a_command_that_would_be_refused_is_noticed(wrong: str) -> None:
    (words,) = commands_of(wrong)
    with pytest.raises((AssertionError, SystemExit, LonghaulError)):
        check_command(words)
