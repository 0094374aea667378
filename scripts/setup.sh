#!/usr/bin/env bash
# Makes .venv: a virtual environment with torch for this machine, the pinned dependencies and Longhaul itself.
# Safe to run again, also after it was interrupted: the stamp that `make` looks at is written last.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=.venv
stamp=$venv/.ready
torch=$(sed -n 's/^torch==//p' constraints.txt)
log=$(mktemp -t longhaul-setup.XXXXXX)
trap 'rm -f "$log"' EXIT

say() { printf 'setup: %s\n' "$*"; }
fail() {
    printf 'error: %s\nkept:  everything outside %s\nnext:  %s\n' "$1" "$venv" "$2" >&2
    exit 1
}

accepted=(3.11 3.12 3.13 3.14)                # those of `requires-python` in pyproject.toml; the first found is taken

minor_version() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null || true; }

is_accepted() { [ -n "$1" ] && [[ " ${accepted[*]} " == *" $1 "* ]]; }

find_python() {
    local candidate version found="" candidates=("${accepted[@]/#/python}" python3)
    if [ -n "${PYTHON:=}" ]; then candidates=("$PYTHON"); fi
    for candidate in "${candidates[@]}"; do
        version=$(minor_version "$candidate")
        if is_accepted "$version"; then
            command -v "$candidate"
            return
        fi
        if [ -n "$version$PYTHON" ]; then found+="; $candidate ${version:+is }${version:-does not start}"; fi
    done
    fail "no Python that Longhaul accepts was found (${accepted[*]})$found" \
        "install one (Debian, Ubuntu: apt install python3 python3-venv), or: PYTHON=/path/to/python${accepted[0]} make setup"
}

make_venv() {
    local python
    if is_accepted "$(minor_version $venv/bin/python)" && $venv/bin/python -m pip --version >/dev/null 2>&1; then
        return
    fi
    python=$(find_python)
    say "making $venv with $("$python" --version)"
    rm -rf $venv                              # half-made, or its Python has gone
    "$python" -m venv $venv >"$log" 2>&1 ||
        fail "$(tail -n 1 "$log")" "apt install python3-venv, then: make setup"
}

has_gpu() { [ -e /proc/driver/nvidia/version ] || nvidia-smi -L >/dev/null 2>&1; }

pip_install() {
    $venv/bin/python -m pip install --quiet --disable-pip-version-check --retries 2 "$@" >"$log" 2>&1
}

has_torch() {
    $venv/bin/python -c "import importlib.metadata as m, sys; sys.exit(m.version('torch').split('+')[0] != '$torch')" 2>/dev/null
}

install_torch() {
    if has_torch; then
        return
    fi
    # By itself, before the rest: whatever asks for torch later finds this one and leaves it alone.
    if has_gpu; then
        say "installing torch $torch with CUDA (some GB)"
        pip_install "torch==$torch" && return
    else
        say "installing torch $torch for CPU (about 200 MB)"
        pip_install "torch==$torch+cpu" && return
        pip_install --extra-index-url https://download.pytorch.org/whl/cpu "torch==$torch+cpu" && return
        pip_install "torch==$torch" && return
    fi
    cannot_install torch
}

install_rest() {
    local extras=dev
    if has_gpu; then extras=gpu,dev; fi
    say "installing Longhaul and its dependencies [$extras]"
    pip_install -c constraints.txt -e ".[$extras]" || cannot_install "the dependencies"
}

cannot_install() {
    grep -E '^ERROR' "$log" | tail -n 3 >&2 || tail -n 3 "$log" >&2
    fail "pip could not install $1 (its words are above)" "check the network and the package index (pip config list), then: make setup"
}

# Two `make` at once (run and test) must not build the same environment side by side.
if command -v flock >/dev/null; then
    exec 9>.venv.lock
    flock -n 9 || { say "another setup is at work, waiting for it"; flock 9; }
fi
if [ -e $stamp ] && [ $stamp -nt pyproject.toml ] && [ $stamp -nt constraints.txt ] && [ $stamp -nt scripts/setup.sh ]; then
    exit 0
fi
rm -f $stamp
make_venv
install_torch
install_rest
has_torch || fail "torch is not $torch after the installation" "rm -rf $venv && make setup"
touch $stamp
say "ready: $venv"
