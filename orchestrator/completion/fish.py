"""The script for fish, which has words of its own for completions. (pure)"""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.completion.words import SHIPPED, Command, Kind, Option, knob_words

HEADER = "# Completion of longhaul. `longhaul completion fish` made it; make it anew after an upgrade.\n"
FUNCTIONS = r"""
function __longhaul_runs
    set -l root runs
    set -l typed (commandline -opc)
    for i in (seq (count $typed))
        if test "$typed[$i]" = --runs; and test $i -lt (count $typed)
            set root (string replace -r '^~' $HOME -- $typed[(math $i + 1)])
        end
    end
    set -l found $root/*/state.db
    string replace -r '^.*/([^/]+)/state\.db$' '$1' -- $found
end
function __longhaul_profiles
    set -l found SHIPPED/*.toml
    string replace -r '^.*/([^/]+)\.toml$' '$1' -- $found
    __fish_complete_suffix .toml
end
function __longhaul_knobs
    printf '%s\n' KNOBS
end
complete -c longhaul -f
"""
ARGUMENTS = {
    Kind.NOTHING: "",
    Kind.RUN: "-x -a '(__longhaul_runs)'",
    Kind.PROFILE: "-x -a '(__longhaul_profiles)'",
    Kind.KNOB: "-x -a '(__longhaul_knobs)'",
    Kind.FOLDER: "-x -a '(__fish_complete_directories)'",
    Kind.FILE: "-r -F",
    Kind.OTHER: "-x",
}


def fish(commands: Sequence[Command]) -> str:
    functions = FUNCTIONS.replace("SHIPPED", _quoted(SHIPPED)).replace("KNOBS", " ".join(map(_quoted, knob_words())))
    lines = [HEADER, functions]
    for command in commands:
        lines.append(f"complete -c longhaul -n __fish_use_subcommand -a {command.name} -d {_quoted(command.help)}\n")
        lines += [_line(command, option) for option in command.options]
        lines += [_line(command, option) for option in command.typed if option.kind is not Kind.OTHER]
    return "".join(lines)


def _line(command: Command, option: Option) -> str:
    words = ["complete -c longhaul", f"-n '__fish_seen_subcommand_from {command.name}'"]
    words += [f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in option.names]
    chosen = f"-x -a {_quoted(' '.join(option.choices))}" if option.kind is Kind.CHOICE else ARGUMENTS[option.kind]
    if not option.names:
        chosen = chosen.replace("-x ", "").replace("-r ", "")
    return " ".join(filter(None, [*words, chosen, f"-d {_quoted(option.help)}"])) + "\n"


def _quoted(text: str) -> str:
    """A text in single quotes, for fish."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
