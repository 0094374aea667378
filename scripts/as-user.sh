#!/usr/bin/env bash
# Runs a command as an ordinary user, in that user's own copy of this tree: as-user.sh COMMAND...
# Creates the user (login shell /bin/sh) and the copy, whose .venv uses this tree's packages, and removes both
# afterwards. Without root, or if the machine does not allow it, says so and succeeds.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf 'as a user: %s\n' "$*"; }
skip() {
    say "skipped, $*"
    exit 0
}

if [ "$(id -u)" -ne 0 ]; then skip "already an ordinary user"; fi
for tool in useradd userdel runuser unshare tar; do
    command -v $tool >/dev/null || skip "$tool is not installed"
done

# Only this script and its children see the mounts made below.
if [ "${AS_USER_MOUNTS:-}" = "" ]; then
    AS_USER_MOUNTS=none
    if unshare --mount --propagation private true 2>/dev/null; then AS_USER_MOUNTS=own; fi
    export AS_USER_MOUNTS
    if [ $AS_USER_MOUNTS = own ]; then exec unshare --mount --propagation private "$BASH" "scripts/$(basename "$0")" "$@"; fi
fi

user=longhaul-$$
home=$(mktemp -d /tmp/longhaul-user.XXXXXX)
clean_up() {
    cd /
    userdel "$user" >/dev/null 2>&1 || true
    rm -rf --one-file-system "$home"
}
trap clean_up EXIT
useradd --home-dir "$home" --no-create-home --shell /bin/sh "$user" 2>/dev/null || skip "cannot create a user"
chmod 755 "$home"

as_user() {
    local known=(HOME="$home" USER="$user" LOGNAME="$user" SHELL=/bin/sh LANG="${LANG:-C.UTF-8}" TERM="${TERM:-dumb}"
        PATH=/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin)
    if [ -n "${data:-}" ]; then known+=(LONGHAUL_DATA="$data"); fi
    runuser -u "$user" -- env -i "${known[@]}" "$@"
}

# The interpreter and its packages may be below a directory that only root may enter, such as /root. Mount an empty
# directory over it that contains only them.
first_closed() {
    local path=/ part
    local IFS=/
    for part in ${1#/}; do
        path=${path%/}/$part
        as_user test -x "$path" || { echo "$path"; return; }
    done
}

open_up() {
    local path number closed=()
    for path in "$@"; do
        local found
        found=$(first_closed "$path")
        if [ -z "$found" ]; then continue; fi
        if [ "$AS_USER_MOUNTS" = none ]; then skip "$found is closed to users, and mounting is not allowed"; fi
        if [ "$found" = "$path" ]; then skip "$path is closed to users"; fi
        number=${#closed[@]}
        mkdir -p "$home/.shown/$number"
        mount --bind "$path" "$home/.shown/$number"
        closed+=("$found" "$path")
    done
    for ((number = 0; number < ${#closed[@]}; number += 2)); do
        mountpoint -q "${closed[number]}" || mount -t tmpfs -o mode=755,size=1m none "${closed[number]}"
        mkdir -p "${closed[number + 1]}"
        mount --move "$home/.shown/$number" "${closed[number + 1]}"
    done
}

tree=$home/longhaul
mkdir "$tree"
tar -c --exclude=./.venv --exclude=./.git --exclude=./runs --exclude=__pycache__ . | tar -x -C "$tree"
data=${LONGHAUL_DATA:-}
{ read -r python; read -r prefix; read -r packages; } < <(.venv/bin/python -c '
import sys, sysconfig
print(sys._base_executable, sys.base_prefix, sysconfig.get_path("purelib"), sep="\n")')
PACKAGES_OF=$PWD/.venv bash "$tree/scripts/setup.sh"
chown -R "$user:" "$home"
open_up "$prefix" "$packages" ${data:+"$data"}
cd "$tree"
as_user .venv/bin/python -c 'import pytest, torch' 2>/dev/null || skip "$user cannot start $python with $packages"
say "$user, in a copy of this tree"
as_user "$@"
