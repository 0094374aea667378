#!/usr/bin/env bash
# Creates .venv: a virtual environment with torch for this machine, the pinned dependencies and Longhaul itself.
# Safe to run again, even after an interruption: the stamp that `make` checks is written last.
# LOCKED=1: takes only files whose hashes stand in requirements.lock (Python 3.11, without the extra `gpu`).
# PACKAGES_OF=/path/to/.venv: of another copy of this tree; uses the packages that are there in place of installing any.
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

accepted=(3.11 3.12 3.13 3.14)                # as in `requires-python` of pyproject.toml; the first one found is used

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
    fail "no supported Python was found (${accepted[*]})$found" \
        "install one (Debian, Ubuntu: apt install python3 python3-venv), or: PYTHON=/path/to/python${accepted[0]} make setup"
}

make_venv() {
    local python
    if is_accepted "$(minor_version $venv/bin/python)" && $venv/bin/python -m pip --version >/dev/null 2>&1; then
        return
    fi
    python=$(find_python)
    say "creating $venv with $("$python" --version)"
    rm -rf $venv                              # incomplete, or its Python is gone
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
    # First and alone, so that later installs find this torch and leave it alone.
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
    if [ -n "${LOCKED:-}" ]; then
        say "installing Longhaul and exactly what requirements.lock names"
        pip_install --require-hashes --no-deps -r requirements.lock || cannot_install "what requirements.lock names"
        pip_install --no-deps --no-build-isolation -e . || cannot_install "Longhaul"
        return
    fi
    say "installing Longhaul and its dependencies [$extras]"
    pip_install -c constraints.txt -e ".[$extras]" || cannot_install "the dependencies"
}

# The packages are links, and this tree comes before the one that they were installed for.
use_packages() {
    local other=$1 own script
    rm -rf $venv
    "$other/bin/python" -m venv --without-pip $venv >"$log" 2>&1 || fail "$(tail -n 1 "$log")" "make setup"
    own=$(packages_of $venv)
    ln -s "$(packages_of "$other")"/* "$own"
    echo "$PWD" >"$own/0-tree.pth"            # sorts first
    for script in "$other"/bin/*; do
        if head -n 1 "$script" | grep -aq '^#!.*python' && [ ! -e "$venv/bin/${script##*/}" ]; then
            { echo "#!$PWD/$venv/bin/python" && tail -n +2 "$script"; } >"$venv/bin/${script##*/}"
            chmod +x "$venv/bin/${script##*/}"
        fi
    done
    say "uses the packages of $other"
}

packages_of() { "$1/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }

cannot_install() {
    grep -E '^ERROR' "$log" | tail -n 3 >&2 || tail -n 3 "$log" >&2
    fail "pip could not install $1 (see its output above)" "check the network and the package index (pip config list), then: make setup"
}

# Two concurrent `make` (run and test) must not build the same environment.
if command -v flock >/dev/null; then
    exec 9>.venv.lock
    flock -n 9 || { say "waiting for another setup to finish"; flock 9; }
fi
if [ -e $stamp ] && [ $stamp -nt pyproject.toml ] && [ $stamp -nt constraints.txt ] && [ $stamp -nt scripts/setup.sh ]; then
    exit 0
fi
rm -f $stamp
if [ -n "${PACKAGES_OF:-}" ]; then
    use_packages "$PACKAGES_OF"
else
    make_venv
    install_torch
    install_rest
fi
has_torch || fail "torch is not $torch after the installation" "rm -rf $venv && make setup"
touch $stamp
say "ready: $venv"
