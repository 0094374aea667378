#!/usr/bin/env bash
# Installs the programs that some tests drive (tmux: keys in a terminal; strace: kills at system calls; mkfs: power cuts
# below a file system; sshfs: two hosts on one network directory; Slurm: jobs; zsh and fish: completion; systemd: whether
# a unit is valid; Chromium: the web page; g++: CUDA kernels on a CPU).
# Where it cannot, it says so and succeeds: those tests then skip, and say why.
set -euo pipefail

declare -A packages=([tmux]=tmux [strace]=strace [slurmctld]="slurmctld slurmd slurm-client munge" [shellcheck]=shellcheck
    [sshfs]="sshfs openssh-sftp-server" [mkfs.ext4]=e2fsprogs [mkfs.xfs]=xfsprogs [mkfs.btrfs]=btrfs-progs [zsh]=zsh [fish]=fish
    [systemd-analyze]=systemd [chromium]=chromium [g++]=g++)
missing=()
for program in "${!packages[@]}"; do
    PATH=$PATH:/usr/sbin command -v "$program" >/dev/null || read -ra missing <<< "${missing[*]} ${packages[$program]}"
done
if [ ${#missing[@]} -eq 0 ]; then
    exit 0
fi
if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
    echo "system packages: ${missing[*]} not found; the tests that need them will skip"
    exit 0
fi
export DEBIAN_FRONTEND=noninteractive
install() { apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null 2>&1; }
if install || { apt-get update -qq >/dev/null 2>&1 && install; }; then
    echo "system packages: installed ${missing[*]}"
else
    echo "system packages: could not install ${missing[*]}; the tests that need them will skip"
fi
