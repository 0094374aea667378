"""A small Hugging Face hub over HTTP: the part of its interface that huggingface_hub uses, with faults on request."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Hub:
    """One repository. commits: commit -> file -> content. refs: branch -> commit. breaks: transfers of weights that
    end after half of what was asked."""

    def __init__(self, repository: str) -> None:
        self.repository = repository
        self.commits: dict[str, dict[str, bytes]] = {}
        self.refs: dict[str, str] = {}
        self.breaks = 0
        self.is_gated = False
        self.garbles = False
        self.pretended: dict[str, int] = {}
        """File -> size that the list of files gives in place of its own."""
        self.requests: list[str] = []
        """Method, path and range of each, in order."""
        self.url = ""

    def add(self, files: dict[str, bytes], branch: str = "main") -> str:
        """A commit with these files, to which the branch moves."""
        commit = hashlib.sha1(json.dumps(sorted((n, len(c), hash(c)) for n, c in files.items())).encode()).hexdigest()
        self.commits[commit] = files
        self.refs[branch] = commit
        return commit

    def commit_of(self, revision: str) -> str:
        return self.refs.get(revision, revision if revision in self.commits else "")

    def of_weights(self) -> list[str]:
        return [one for one in self.requests if ".safetensors" in one and one.startswith("GET")]


def is_large(name: str) -> bool:
    return name.endswith(".safetensors")


def etag_of(name: str, content: bytes) -> str:
    """As the hub: SHA-256 of large files, Git's SHA-1 of the others."""
    if is_large(name):
        return hashlib.sha256(content).hexdigest()
    return hashlib.sha1(f"blob {len(content)}\0".encode() + content).hexdigest()


@contextmanager
def serving(hub: Hub) -> Iterator[Hub]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args: Any) -> None:
            pass

        def do_HEAD(self) -> None:
            self.answer(with_body=False)

        def do_GET(self) -> None:
            self.answer(with_body=True)

        def answer(self, *, with_body: bool) -> None:
            hub.requests.append(f"{self.command} {self.path} {self.headers.get('Range', '')}".strip())
            name = re.escape(hub.repository)
            if found := re.fullmatch(rf"/api/models/{name}(/revision/([^?]+))?(\?.*)?", self.path):
                self.info(found[2] or "main")
            elif found := re.fullmatch(rf"/api/models/{name}/tree/([^/?]+)/?(\?.*)?", self.path):
                self.tree(found[1])
            elif found := re.fullmatch(rf"/{name}/resolve/([^/]+)/(.+)", self.path):
                self.file(found[1], found[2], with_body=with_body)
            else:
                self.fail(404, "RepoNotFound")

        def info(self, revision: str) -> None:
            commit = hub.commit_of(revision)
            if hub.is_gated:
                self.fail(403, "GatedRepo")
            elif not commit:
                self.fail(404, "RevisionNotFound")
            else:
                names = [{"rfilename": one} for one in hub.commits[commit]]
                self.json({"id": hub.repository, "modelId": hub.repository, "sha": commit, "siblings": names})

        def tree(self, revision: str) -> None:
            commit = hub.commit_of(revision)
            if not commit:
                self.fail(404, "RevisionNotFound")
                return
            rows = []
            for name, content in hub.commits[commit].items():
                row: dict[str, Any] = {
                    "type": "file",
                    "path": name,
                    "size": hub.pretended.get(name, len(content)),
                    "oid": etag_of(name, content),
                }
                if is_large(name):
                    row["lfs"] = {"oid": etag_of(name, content), "size": row["size"], "pointerSize": 134}
                rows.append(row)
            self.json(rows)

        def file(self, revision: str, name: str, *, with_body: bool) -> None:
            commit = hub.commit_of(revision)
            content = hub.commits.get(commit, {}).get(name)
            if content is None:
                self.fail(404, "EntryNotFound")
                return
            etag = etag_of(name, content)
            if hub.garbles and is_large(name):
                content = bytes(len(content))
            begin, end = 0, len(content)
            if wanted := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")):
                begin, end = int(wanted[1]), int(wanted[2]) + 1 if wanted[2] else len(content)
            self.send_response(206 if self.headers.get("Range") else 200)
            self.send_header("ETag", f'"{etag}"')
            self.send_header("X-Repo-Commit", commit)
            self.send_header("Accept-Ranges", "bytes")
            size = len(content) if with_body else hub.pretended.get(name, len(content))
            self.send_header("Content-Length", str(end - begin if with_body else size))
            if self.headers.get("Range"):
                self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{len(content)}")
            if is_large(name):
                self.send_header("X-Linked-Etag", f'"{etag}"')
                self.send_header("X-Linked-Size", str(size))
            self.end_headers()
            if not with_body:
                return
            if is_large(name) and hub.breaks:
                hub.breaks -= 1
                self.wfile.write(content[begin : begin + (end - begin) // 2])
                self.wfile.flush()
                self.connection.close()
                self.close_connection = True
                return
            self.wfile.write(content[begin:end])

        def json(self, content: Any) -> None:
            body = json.dumps(content).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def fail(self, code: int, kind: str) -> None:
            self.send_response(code)
            self.send_header("X-Error-Code", kind)
            self.send_header("X-Error-Message", kind)
            self.send_header("Content-Length", "0")
            self.end_headers()

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
