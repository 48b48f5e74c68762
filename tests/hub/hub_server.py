"""A small Hub on the loopback interface: enough of its endpoints for uploading and downloading models, kept in memory.

Branches begin as copies of "main". Writing needs a token, and so does reading what is private. Large files go by Git
LFS; of xet, which replaces it, there is no server to be had, so clients have to switch it off (HF_HUB_DISABLE_XET=1).
"""

import base64
import hashlib
import json
import re
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

TOKEN = "hf_" + "a" * 34
USER = "someone"


@dataclass
class Repository:
    """Files by path, and the files of every commit by its hash; `commits`, `files` and `sha` are those of "main"."""

    private: bool = False
    commits: list[tuple[str, str, dict[str, bytes]]] = field(default_factory=list)
    branches: dict[str, list[tuple[str, str, dict[str, bytes]]]] = field(default_factory=dict)

    @property
    def files(self) -> dict[str, bytes]:
        return self.commits[-1][2]

    @property
    def sha(self) -> str:
        return self.commits[-1][0]

    def commit(self, message: str, files: dict[str, bytes], branch: str = "main") -> str:
        parts = [
            message,
            str(len(self.commits)),
            *(f"{path} {git_hash(data)}" for path, data in sorted(files.items())),
        ]
        sha = hashlib.sha1("\n".join(parts).encode()).hexdigest()
        self.branches.get(branch, self.commits).append((sha, message, files))
        return sha

    def at(self, revision: str) -> tuple[str, dict[str, bytes]] | None:
        if revision in ("main", "refs/heads/main"):
            return self.sha, self.files
        if revision in self.branches:
            sha, _, files = self.branches[revision][-1]
            return sha, files
        commits = [commit for branch in (self.commits, *self.branches.values()) for commit in branch]
        return next(((sha, files) for sha, _, files in commits if sha == revision), None)


class HubServer:
    """The server; a context manager that serves while it is open."""

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.objects: dict[str, bytes] = {}
        self.requests: list[str] = []
        self.unknown: list[str] = []
        self.lock = threading.Lock()
        self.http = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (Handler,), {"hub": self}))
        self.endpoint = f"http://127.0.0.1:{self.http.server_address[1]}"

    def __enter__(self) -> "HubServer":
        self.thread = threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.http.shutdown()
        self.http.server_close()
        self.thread.join()

    def environment(self, home: str, token: str | None = TOKEN) -> dict[str, str]:
        """Return what a client's environment needs; it is read when huggingface_hub is imported."""
        values = {
            "HF_ENDPOINT": self.endpoint,
            "HF_HOME": str(home),
            "HF_HUB_OFFLINE": "0",
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "NO_PROXY": "127.0.0.1",
            "no_proxy": "127.0.0.1",
        }
        return values | ({} if token is None else {"HF_TOKEN": token})


class Handler(BaseHTTPRequestHandler):
    """One request. Routes are (method, pattern, what to call with the groups)."""

    hub: HubServer
    protocol_version = "HTTP/1.1"

    def answer(self, head: bool = False) -> None:
        path = unquote(urlsplit(self.path).path)
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers.get("Transfer-Encoding") == "chunked":
            self.body = self.read_chunks()
        method = "GET" if head else self.command
        with self.hub.lock:
            self.hub.requests.append(f"{self.command} {path}")
            for wanted, pattern, respond in ROUTES:
                match = re.fullmatch(pattern, path)
                if wanted == method and match:
                    return respond(self, *match.groups())
            self.hub.unknown.append(f"{self.command} {path}")
            self.error(404, "EntryNotFound", f"no endpoint {path}")

    def do_GET(self) -> None:
        self.answer()

    def do_HEAD(self) -> None:
        self.answer(head=True)

    def do_POST(self) -> None:
        self.answer()

    def do_PUT(self) -> None:
        self.answer()

    def log_message(self, *_: Any) -> None:
        """Say nothing: tests look at what happened, not at a log."""

    # -- endpoints -------------------------------------------------------------------------------------------------

    def whoami(self) -> None:
        if self.authorized():
            self.json({"name": USER, "type": "user", "orgs": [], "auth": {"accessToken": {"role": "write"}}})

    def create(self) -> None:
        if not self.authorized():
            return
        wanted = json.loads(self.body)
        repo_id = f"{wanted.get('organization') or USER}/{wanted['name']}"
        if not re.fullmatch(r"[\w.-]+/[\w.-]+", repo_id) or ".." in repo_id:
            return self.error(400, "BadRequest", "no name of a repository")
        exists = repo_id in self.hub.repositories
        if not exists:
            repository = self.hub.repositories[repo_id] = Repository(
                private=bool(wanted.get("private")) or wanted.get("visibility") == "private"
            )
            repository.commit(
                "initial commit", {".gitattributes": b"*.safetensors filter=lfs diff=lfs merge=lfs -text\n"}
            )
        self.json({"url": f"{self.hub.endpoint}/{repo_id}", "id": repo_id}, 409 if exists else 200)

    def validate_yaml(self) -> None:
        content = json.loads(self.body)["content"]
        errors = [] if content.startswith("---\n") else [{"message": "no metadata"}]
        self.json({"errors": errors, "warnings": []}, 400 if errors else 200)

    def info(self, repo_id: str, revision: str | None) -> None:
        found = self.find(repo_id, revision or "main")
        if found:
            repository, sha, files = found
            siblings = [{"rfilename": path, "size": len(data)} for path, data in files.items()]
            more = {"private": repository.private, "tags": [], "downloads": 0, "likes": 0, "siblings": siblings}
            self.json({"_id": repo_id, "id": repo_id, "modelId": repo_id, "sha": sha, "author": USER, **more})

    def refs(self, repo_id: str) -> None:
        found = self.find(repo_id, "main")
        if found:
            branch = {"name": "main", "ref": "refs/heads/main", "targetCommit": found[1]}
            self.json({"branches": [branch], "tags": [], "converts": []})

    def create_branch(self, repo_id: str, branch: str) -> None:
        if self.authorized() and (found := self.find(repo_id, "main")):
            if branch == "main" or branch in found[0].branches:
                return self.error(409, "Conflict", f"the branch {branch} exists")
            found[0].branches[branch] = list(found[0].commits)
            self.json({})

    def tree(self, repo_id: str, revision: str, folder: str | None) -> None:
        found = self.find(repo_id, revision)
        if found:
            files = {path: data for path, data in found[2].items() if path.startswith(f"{folder}/" if folder else "")}
            if folder and not files:
                return self.error(404, "EntryNotFound", "no such folder")
            self.json([describe(path, data) for path, data in files.items()])

    def paths_info(self, repo_id: str, revision: str) -> None:
        found = self.find(repo_id, revision)
        if found:
            kind = self.headers.get("Content-Type", "")
            wanted = json.loads(self.body)["paths"] if "json" in kind else form_values(self.body, "paths")
            self.json([describe(path, found[2][path]) for path in wanted if path in found[2]])

    def preupload(self, repo_id: str, revision: str) -> None:
        if self.authorized() and (found := self.find(repo_id, revision)):
            files = []
            for entry in json.loads(self.body)["files"]:
                held = found[2].get(entry["path"])
                mode = "lfs" if is_large(entry["path"]) else "regular"
                oid = None if held is None else describe(entry["path"], held)["oid"]
                files.append({"path": entry["path"], "uploadMode": mode, "shouldIgnore": False, "oid": oid})
            self.json({"files": files})

    def lfs_batch(self, repo_id: str) -> None:
        if self.authorized() and self.find(repo_id, "main"):
            objects = []
            for wanted in json.loads(self.body)["objects"]:
                upload = {"upload": {"href": f"{self.hub.endpoint}/lfs/{wanted['oid']}"}}
                objects.append({**wanted, **({} if wanted["oid"] in self.hub.objects else {"actions": upload})})
            self.json({"transfer": "basic", "objects": objects})

    def lfs_put(self, oid: str) -> None:
        if hashlib.sha256(self.body).hexdigest() != oid:
            return self.error(400, "BadRequest", "the content has another hash")
        self.hub.objects[oid] = self.body
        self.json({})

    def commit(self, repo_id: str, revision: str) -> None:
        if not self.authorized():
            return
        found = self.find(repo_id, revision)
        if not found:
            return
        repository, _, files = found
        files, message = dict(files), ""
        for line in self.body.splitlines():
            entry = json.loads(line)
            key, value = entry["key"], entry["value"]
            path = value.get("path", "")
            if path.startswith(("/", ".git/")) or ".." in path.split("/") or "\\" in path:
                return self.error(400, "BadRequest", f"no path: {path}")
            if key == "header":
                message = value["summary"]
            elif key == "file":
                files[path] = base64.b64decode(value["content"])
            elif key == "lfsFile":
                files[path] = self.hub.objects[value["oid"]]
            elif key == "deletedFile":
                files.pop(path, None)
            else:
                return self.error(400, "BadRequest", f"unknown {key}")
        sha = repository.commit(message, files, revision)
        self.json(
            {
                "success": True,
                "commitOid": sha,
                "commitUrl": f"{self.hub.endpoint}/{repo_id}/commit/{sha}",
                "hookOutput": "",
            }
        )

    def resolve(self, repo_id: str, revision: str, path: str) -> None:
        found = self.find(repo_id, revision)
        if not found:
            return
        _, sha, files = found
        if path not in files:
            return self.error(404, "EntryNotFound", f"no file {path}", {"X-Repo-Commit": sha})
        data, etag = files[path], describe(path, files[path])
        large = etag.get("lfs")
        headers = {
            "ETag": f'"{large["oid"] if large else etag["oid"]}"',
            "X-Repo-Commit": sha,
            "Accept-Ranges": "bytes",
        }
        if large:
            headers |= {"X-Linked-Etag": headers["ETag"], "X-Linked-Size": str(len(data))}
        begin = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if begin:
            first, last = int(begin[1]), int(begin[2] or len(data) - 1)
            headers["Content-Range"] = f"bytes {first}-{last}/{len(data)}"
            return self.send(206, data[first : last + 1], {"Content-Type": "application/octet-stream", **headers})
        self.send(200, data, {"Content-Type": "application/octet-stream", **headers})

    # -- parts -----------------------------------------------------------------------------------------------------

    def token(self) -> str:
        return self.headers.get("Authorization", "").removeprefix("Bearer ")

    def authorized(self) -> bool:
        if self.token() == TOKEN:
            return True
        self.error(401, "Unauthorized", "a token is needed")
        return False

    def find(self, repo_id: str, revision: str) -> tuple[Repository, str, dict[str, bytes]] | None:
        repository = self.hub.repositories.get(repo_id)
        if repository is None or (repository.private and self.token() != TOKEN):
            self.error(401 if self.token() != TOKEN else 404, "RepoNotFound", "Repository not found")
            return None
        state = repository.at(revision)
        if state is None:
            self.error(404, "RevisionNotFound", "Revision not found")
            return None
        return repository, *state

    def read_chunks(self) -> bytes:
        parts = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def json(self, content: Any, status: int = 200) -> None:
        self.send(status, json.dumps(content).encode(), {"Content-Type": "application/json"})

    def error(self, status: int, code: str, message: str, headers: dict[str, str] | None = None) -> None:
        more = {
            "Content-Type": "application/json",
            "X-Error-Code": code,
            "X-Error-Message": message,
            **(headers or {}),
        }
        self.send(status, json.dumps({"error": message}).encode(), more)

    def send(self, status: int, data: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


def is_large(path: str) -> bool:
    """Whether a file goes by Git LFS."""
    return path.endswith(".safetensors")


def git_hash(data: bytes) -> str:
    """Return the name that git gives to a file's content."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def describe(path: str, data: bytes) -> dict[str, Any]:
    """Return the entry of a file in a listing."""
    entry: dict[str, Any] = {"type": "file", "path": path, "size": len(data), "oid": git_hash(data)}
    if is_large(path):
        oid = hashlib.sha256(data).hexdigest()
        pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{oid}\nsize {len(data)}\n".encode()
        entry |= {"oid": git_hash(pointer), "lfs": {"oid": oid, "size": len(data), "pointerSize": len(pointer)}}
    return entry


def form_values(body: bytes, name: str) -> list[str]:
    """Return the values of a name in a form."""
    pairs = [part.split("=", 1) for part in body.decode().split("&") if "=" in part]
    return [unquote(value.replace("+", " ")) for key, value in pairs if key == name]


_ID = r"([^/]+/[^/]+)"
ROUTES = [
    ("GET", "/api/whoami-v2", Handler.whoami),
    ("POST", "/api/repos/create", Handler.create),
    ("POST", "/api/validate-yaml", Handler.validate_yaml),
    ("GET", f"/api/models/{_ID}()?", lambda self, repo_id, _: self.info(repo_id, None)),
    ("GET", f"/api/models/{_ID}/revision/(.+)", Handler.info),
    ("GET", f"/api/models/{_ID}/refs", Handler.refs),
    ("POST", f"/api/models/{_ID}/branch/([^/]+)", Handler.create_branch),
    ("GET", f"/api/models/{_ID}/tree/([^/]+)(?:/(.+))?", Handler.tree),
    ("POST", f"/api/models/{_ID}/paths-info/([^/]+)", Handler.paths_info),
    ("POST", f"/api/models/{_ID}/preupload/([^/]+)", Handler.preupload),
    ("POST", f"/api/models/{_ID}/commit/([^/]+)", Handler.commit),
    ("POST", rf"/{_ID}\.git/info/lfs/objects/batch", Handler.lfs_batch),
    ("PUT", "/lfs/([0-9a-f]{64})", Handler.lfs_put),
    ("GET", f"/{_ID}/resolve/([^/]+)/(.+)", Handler.resolve),
]
