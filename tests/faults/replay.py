"""What a disk may hold after a power cut, by the letter of POSIX: rebuilt from the system calls of a run.

strace records every call that changes a file. A small model of the file system replays them up to any one. Contents of
a file are safe once the file is synced, and names in a directory once the directory is. Of everything else the disk may
hold any part: `Disk.after_cut` draws one.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest

MODELLED = frozenset(
    {"openat", "write", "pwrite64", "ftruncate", "fallocate", "rename", "unlink", "unlinkat", "mkdir", "rmdir"}
    | {"fsync", "fdatasync", "link", "linkat", "sendfile", "renameat", "writev"}
)
CALLS = MODELLED | {"pwritev", "pwritev2", "truncate", "renameat2", "mkdirat"}
CALLS |= {"symlink", "symlinkat", "copy_file_range"}
"""All that change files. One that the model does not know fails the test."""
NOT_ON_DISK = re.compile(r"-shm$|\.sock$")
"""SQLite makes its -shm file anew after a crash."""
_TEXT = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')
_DESCRIPTOR = re.compile(r"^(?:\d+|AT_FDCWD)<([^>]*)>")
_CALL = re.compile(r"^(\d+) +(\w+)\((.*)\) += (-?\d+)")
_BEGUN = re.compile(r"^(\d+) +(\w+\(.*?),? <unfinished \.\.\.>$")
_RESUMED = re.compile(r"^(\d+) +<\.\.\. \w+ resumed>(.*)$")


def recorded(command: list[str], trace: Path) -> list[str]:
    """The command line that runs `command` and records it. Skips the test where there is no strace."""
    if shutil.which("strace") is None:
        pytest.skip("recording system calls needs strace")
    return [
        "strace",
        "-f",
        "--seccomp-bpf",
        "-y",
        "-xx",
        "-s",
        "4000000",
        "-e",
        f"trace={','.join(sorted(CALLS))}",
        "-o",
        str(trace),
        *command,
    ]


@dataclass(frozen=True)
class Call:
    """One call that succeeded. paths: absolute. data: what it wrote. numbers: its other arguments."""

    name: str
    paths: tuple[str, ...]
    data: bytes = b""
    numbers: tuple[int, ...] = ()
    flags: str = ""


def calls(trace: Path, root: Path) -> list[Call]:
    """The calls that change something below `root`, in the order of their ends."""
    found = [call for line in _whole(trace) if (call := _call(line, str(root))) is not None]
    strange = {call.name for call in found} - MODELLED
    assert not strange, f"the model does not know {strange}"
    return found


def _whole(trace: Path) -> Iterator[str]:
    """Lines, each a whole call: strace cuts one in two where another process came between."""
    begun: dict[str, str] = {}
    with trace.open() as lines:
        for line in lines:
            if half := _BEGUN.match(line.rstrip("\n")):
                begun[half[1]] = half[2]
            elif rest := _RESUMED.match(line):
                if rest[1] in begun:
                    yield f"{rest[1]} {begun.pop(rest[1])}{rest[2]}"
            else:
                yield line


def _call(line: str, root: str) -> Call | None:
    parsed = _CALL.match(line)
    if parsed is None or int(parsed[4]) < 0:
        return None
    name, arguments, result = parsed[2], parsed[3], int(parsed[4])
    texts = [bytes.fromhex(text.replace("\\x", "")) for text in _TEXT.findall(arguments)]
    descriptor = _DESCRIPTOR.match(arguments)
    base = _plain(descriptor[1]) if descriptor else ""
    rest = _TEXT.sub("", arguments[descriptor.end() :] if descriptor else arguments)
    numbers = tuple(int(word) for word in re.findall(r"(?<![\w<])\d+(?![\w>])", rest))
    if name in ("write", "writev", "pwrite64", "pwritev", "pwritev2"):
        call = Call(name, (base,), b"".join(texts)[:result], numbers)
    elif name in ("openat", "unlinkat"):
        call = Call(name, (str(Path(base) / texts[0].decode()),), flags=rest)
    elif name == "renameat":
        folders = [_plain(path) for path in re.findall(r"(?:\d+|AT_FDCWD)<([^>]*)>", arguments)]
        call = Call(name, tuple(str(Path(one) / text.decode()) for one, text in zip(folders, texts, strict=True)))
    elif name == "sendfile":
        copied = [_plain(path) for path in re.findall(r"\d+<([^>]*)>", arguments)]
        call = Call(name, tuple(copied), numbers=(result,))
    elif texts:
        call = Call(name, tuple(map(os.fsdecode, texts)), numbers=numbers)
    else:
        call = Call(name, (base,), numbers=numbers)
    is_ours = all(path.startswith(f"{root}/") or path == root for path in call.paths)
    is_reading = name == "openat" and "O_CREAT" not in call.flags and "O_TRUNC" not in call.flags
    return call if is_ours and not is_reading and "(deleted)" not in line else None


def _plain(text: str) -> str:
    return re.sub(r"\\x([0-9a-f]{2})", lambda found: chr(int(found[1], 16)), text).encode("latin-1").decode()


@dataclass(eq=False)
class File:
    """now: what a reader sees. safe: what was synced. later: what was done since, in order. at: where its writer, of
    whom there is one at a time, writes next; None: at the end."""

    now: bytearray = field(default_factory=bytearray)
    safe: bytearray = field(default_factory=bytearray)
    later: list[Callable[[bytearray], None]] = field(default_factory=list)
    at: int | None = None

    def do(self, change: Callable[[bytearray], None]) -> None:
        change(self.now)
        self.later.append(change)

    def sync(self) -> None:
        self.safe, self.later = bytearray(self.now), []

    def after_cut(self, draw: Random | None) -> bytearray:
        found = bytearray(self.safe)
        for change in self.later:
            if draw is not None and draw.random() < 0.5:
                change(found)
        return found


@dataclass(eq=False)
class Change:
    """Names that come and go together: a rename is never half done. None: the name goes."""

    entries: list[tuple[Folder, str, File | Folder | None]]
    is_safe: bool = False


@dataclass(eq=False)
class Folder:
    now: dict[str, File | Folder] = field(default_factory=dict)
    safe: dict[str, File | Folder] = field(default_factory=dict)
    later: list[Change] = field(default_factory=list)

    def sync(self) -> None:
        for change in self.later:
            change.is_safe = True
            for folder, name, node in change.entries:
                _put(folder.safe, name, node)
                if folder is not self:
                    folder.later.remove(change)
        self.later = []


def _put(entries: dict[str, File | Folder], name: str, node: File | Folder | None) -> None:
    if node is None:
        entries.pop(name, None)
    else:
        entries[name] = node


class Disk:
    """The model. `root` is there from the beginning."""

    def __init__(self, root: Path, there: Path | None = None) -> None:
        """there: a copy of what the root holds at the beginning, all of it safe. None: nothing."""
        self._root, self._at = Folder() if there is None else _folder(there), root

    def do(self, call: Call) -> bool:
        """Replay one call. True if it makes something safe."""
        match call.name:
            case "openat":
                self._open(call)
            case "write" | "writev":
                self._write(call)
            case "pwrite64":
                data, offset = call.data, call.numbers[-1]
                self._file(call).do(lambda content: _write_at(content, offset, data))
            case "ftruncate":
                size = call.numbers[-1]
                self._file(call).do(lambda content: _resize(content, size))
            case "fallocate":
                size = call.numbers[-2] + call.numbers[-1]
                self._file(call).do(lambda content: _resize(content, max(size, len(content))))
            case "mkdir":
                self._change([(*self._place(call.paths[0]), Folder())])
            case "unlink" | "unlinkat" | "rmdir":
                self._change([(*self._place(call.paths[0]), None)])
            case "rename" | "renameat":
                old, new = self._place(call.paths[0]), self._place(call.paths[1])
                self._change([(*old, None), (*new, old[0].now[old[1]])])
            case "link" | "linkat":
                old = self._place(call.paths[0])
                self._change([(*self._place(call.paths[1]), old[0].now[old[1]])])
            case "sendfile":
                self._copy(call)
            case "fsync" | "fdatasync":
                node = self._node(call.paths[0])
                assert node is not None, call
                node.sync()
                return True
        return False

    def after_cut(self, into: Path, draw: Random | None) -> None:
        """Write what the disk holds if power fails now. draw: chooses what else got there; None: nothing did."""
        names: dict[int, dict[str, File | Folder]] = {}
        chosen: dict[int, bool] = {}

        def entries(folder: Folder) -> dict[str, File | Folder]:
            if id(folder) not in names:
                found = dict(folder.safe)
                for change in folder.later:
                    if draw is not None and chosen.setdefault(id(change), draw.random() < 0.5):
                        for where, name, node in change.entries:
                            if where is folder:
                                _put(found, name, node)
                names[id(folder)] = found
            return names[id(folder)]

        def write(folder: Folder, at: Path) -> None:
            at.mkdir(mode=0o700, exist_ok=True)
            for name, node in entries(folder).items():
                if isinstance(node, Folder):
                    write(node, at / name)
                elif not NOT_ON_DISK.search(name):
                    _store(node.after_cut(draw), at / name)

        write(self._root, into)

    def now(self) -> dict[str, bytes]:
        """Every file as a reader sees it, by its path below the root."""
        found: dict[str, bytes] = {}

        def walk(folder: Folder, at: str) -> None:
            for name, node in folder.now.items():
                if isinstance(node, Folder):
                    walk(node, f"{at}{name}/")
                elif not NOT_ON_DISK.search(name):
                    found[f"{at}{name}"] = bytes(node.now)

        walk(self._root, "")
        return found

    def _open(self, call: Call) -> None:
        folder, name = self._place(call.paths[0])
        if name not in folder.now:
            self._change([(folder, name, File())])
        elif "O_TRUNC" in call.flags:
            self._file(call).do(lambda content: _resize(content, 0))
        if isinstance(file := folder.now[name], File):
            file.at = None if "O_APPEND" in call.flags else 0

    def _write(self, call: Call) -> None:
        file, data = self._file(call), call.data
        if file.at is None:
            file.do(lambda content: content.extend(data))
        else:
            begin = file.at
            file.do(lambda content: _write_at(content, begin, data))
            file.at += len(data)

    def _copy(self, call: Call) -> None:
        """Whole files are copied from their beginning, so what a call adds begins where the copy ends."""
        source = self._node(call.paths[1])
        assert isinstance(source, File), call
        target = self._file(call)
        begin = len(target.now)
        data = bytes(source.now[begin : begin + call.numbers[0]])
        target.do(lambda content: content.extend(data))

    def _change(self, entries: list[tuple[Folder, str, File | Folder | None]]) -> None:
        change = Change(entries)
        for folder, name, node in entries:
            _put(folder.now, name, node)
            if change not in folder.later:
                folder.later.append(change)

    def _place(self, path: str) -> tuple[Folder, str]:
        parent = self._node(str(Path(path).parent))
        assert isinstance(parent, Folder), path
        return parent, Path(path).name

    def _file(self, call: Call) -> File:
        node = self._node(call.paths[0])
        assert isinstance(node, File), call
        return node

    def _node(self, path: str) -> File | Folder | None:
        node: File | Folder | None = self._root
        for part in Path(path).relative_to(self._at).parts:
            node = node.now.get(part) if isinstance(node, Folder) else None
        return node


def _folder(there: Path) -> Folder:
    entries: dict[str, File | Folder] = {}
    for path in there.iterdir():
        if path.is_dir():
            entries[path.name] = _folder(path)
        elif path.is_file():
            entries[path.name] = File(bytearray(path.read_bytes()), bytearray(path.read_bytes()))
    return Folder(dict(entries), dict(entries))


def _write_at(content: bytearray, offset: int, data: bytes) -> None:
    _resize(content, max(len(content), offset + len(data)))
    content[offset : offset + len(data)] = data


def _resize(content: bytearray, size: int) -> None:
    if size <= len(content):
        del content[size:]
    else:
        content.extend(bytes(size - len(content)))


def _store(content: bytearray, path: Path) -> None:
    path.touch(mode=0o600)
    if content.count(0) < len(content):
        path.write_bytes(content)
    else:  # the ballast, without its blocks
        with path.open("r+b") as file:
            file.truncate(len(content))
