"""The scripts for bash and zsh: the same two tables of words, and functions in the words of each shell. (pure)"""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.completion.words import SHIPPED, Command, Kind, by_answer, knob_words, quoted

HEADER = "# Completion of longhaul. `longhaul completion SHELL` made it; make it anew after an upgrade.\n"

LOOKS = {
    Kind.RUN: "_longhaul_runs",
    Kind.PROFILE: "_longhaul_profiles",
    Kind.KNOB: "_longhaul_knobs",
    Kind.FOLDER: "_longhaul_folders",
    Kind.FILE: "_longhaul_files",
    Kind.OTHER: ":",
}

BASH = r"""
_longhaul_offer() {  # those of the words that begin like what is typed
    local word
    for word in "$@"; do
        if [[ $word == "$cur"* ]]; then COMPREPLY+=("$(printf %q "$word")"); fi
    done
}
_longhaul_root() {  # the folder of all runs
    local i
    root=runs
    for ((i = 1; i < COMP_CWORD; i++)); do
        if [[ ${COMP_WORDS[i]} == --runs ]]; then root=${COMP_WORDS[i + 1]/#\~/$HOME}; fi
    done
}
_longhaul_runs() {
    local root path
    _longhaul_root
    for path in "$root"/*/state.db; do
        if [[ -e $path ]]; then path=${path%/state.db}; _longhaul_offer "${path##*/}"; fi
    done
}
_longhaul_profiles() {
    local path
    for path in "$shipped"/*.toml; do
        if [[ -e $path ]]; then path=${path##*/}; _longhaul_offer "${path%.toml}"; fi
    done
    compopt -o filenames
    mapfile -t -O ${#COMPREPLY[@]} COMPREPLY < <(compgen -f -X '!*.toml' -- "$cur"; compgen -d -- "$cur")
}
_longhaul_knobs() { compopt -o nospace; COMPREPLY=($(compgen -W "$knobs" -- "$cur")); }
_longhaul_folders() { compopt -o filenames; mapfile -t COMPREPLY < <(compgen -d -- "$cur"); }
_longhaul_files() { compopt -o filenames; mapfile -t COMPREPLY < <(compgen -f -- "$cur"); }
_longhaul() {
    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} command=${COMP_WORDS[1]}
    COMPREPLY=()
    if [[ $cur == = ]]; then cur=; elif [[ $prev == = ]]; then prev=${COMP_WORDS[COMP_CWORD - 2]}; fi
    if ((COMP_CWORD == 1)); then _longhaul_offer "${commands[@]}"; return; fi
    _longhaul_words "$command" "$prev"
}
complete -F _longhaul longhaul
"""
ZSH = r"""
_longhaul_offer() { compadd -- "$@" }
_longhaul_root() {
    local i
    root=runs
    for ((i = 2; i < CURRENT; i++)); do
        if [[ ${words[i]} == --runs ]]; then root=${${(Q)words[i + 1]}/#\~/$HOME}; fi
    done
}
_longhaul_runs() {
    local root
    _longhaul_root
    local found=("$root"/*/state.db(N:h:t))
    compadd -a found
}
_longhaul_profiles() {
    local found=("$shipped"/*.toml(N:t:r))
    compadd -a found
    _files -g '*.toml'
}
_longhaul_knobs() { compadd -S '' -- ${=knobs} }
_longhaul_folders() { _files -/ }
_longhaul_files() { _files }
_longhaul() {
    local cur=${words[CURRENT]} prev=${words[CURRENT - 1]} command=${words[2]}
    if ((CURRENT == 2)); then _describe command commands; return; fi
    if [[ $cur == --*=* ]]; then prev=${cur%%=*}; compset -P '*='; cur=${cur#*=}; fi
    _longhaul_words "$command" "$prev"
}
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then _longhaul "$@"; else compdef _longhaul longhaul; fi
"""


def bash(commands: Sequence[Command]) -> str:
    named = " ".join(quoted(command.name) for command in commands)
    return "".join(
        [
            HEADER.replace("SHELL", "bash"),
            f"_longhaul_words() {{  # command, the word before\n{_table(commands)}}}\n",
            BASH.replace('"$shipped"', quoted(SHIPPED))
            .replace('"${commands[@]}"', named)
            .replace('"$knobs"', quoted(" ".join(knob_words()))),
        ]
    )


def zsh(commands: Sequence[Command]) -> str:
    described = " ".join(quoted(f"{one.name}:{one.help}") for one in commands)
    return "".join(
        [
            "#compdef longhaul\n",
            HEADER.replace("SHELL", "zsh"),
            f"_longhaul_words() {{  # command, the word before\n{_table(commands)}}}\n",
            ZSH.replace('"$shipped"', quoted(SHIPPED))
            .replace("_describe command commands", f"local commands=({described})\n        _describe command commands")
            .replace("${=knobs}", " ".join(map(quoted, knob_words()))),
        ]
    )


def _table(commands: Sequence[Command]) -> str:
    """What is offered after an option, else the options of the command, or what is typed without one."""
    lines = ['    case "$1 $2" in\n']
    for (kind, choices), places in by_answer(commands).items():
        pattern = "|".join(quoted(f"{command} {name}") for command, name in places)
        lines.append(f"        {pattern}) {_look(kind, choices)}; return ;;\n")
    lines += ["    esac\n", '    if [[ $cur == -* ]]; then\n        case "$1" in\n']
    lines += [
        f"            {quoted(one.name)}) _longhaul_offer {' '.join(map(quoted, one.names))} ;;\n" for one in commands
    ]
    lines += ['        esac\n        return\n    fi\n    case "$1" in\n']
    lines += [f"        {quoted(one.name)}) {_typed(one)} ;;\n" for one in commands if one.typed]
    return "".join([*lines, "    esac\n"])


def _typed(command: Command) -> str:
    """What is typed without an option: choices as the first word, else as the last kind of it."""
    first, last = command.typed[0], command.typed[-1]
    if first.kind is not Kind.CHOICE:
        return _look(last.kind, last.choices)
    rest = LOOKS.get(last.kind, ":")
    return f"if [[ $2 == {quoted(command.name)} ]]; then {_look(first.kind, first.choices)}; else {rest}; fi"


def _look(kind: Kind, choices: tuple[str, ...]) -> str:
    return f"_longhaul_offer {' '.join(map(quoted, choices))}" if kind is Kind.CHOICE else LOOKS[kind]
