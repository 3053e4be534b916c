"""Weights between folders and places: a small hub of this machine's own, and URLs that fsspec opens."""

import base64
import hashlib
import json
import os
import threading
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import fsspec
import pytest
from commands import ROOT, run_in
from trees import refused

from projects.Weights.sharing import pull, push

WEIGHTS = {"a.safetensors": os.urandom(70_000), "a.yaml": b"source: mine\n", "a.md": b"# A card\r\n\xc3\xa9\n"}


class Hub(BaseHTTPRequestHandler):
    """What huggingface_hub asks of the hub to list, to read and to commit, for one repository: me/net."""

    files: dict[str, bytes] = {}
    commits: list[list[str]] = []

    def log_message(self, *_: object) -> None: ...

    def answer(self, content: object = None, code: int = 200, **headers: str) -> None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(code)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body if self.command != "HEAD" else b"")

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        if "/me/net" not in path:
            self.answer({"error": "Repository not found"}, 404, X_Error_Code="RepoNotFound")
        elif "/tree/" in path:
            entries = [
                {"type": "file", "path": name, "size": len(b), "oid": "0" * 40} for name, b in self.files.items()
            ]
            self.answer(entries)
        elif "/resolve/main/" in path:
            self.answer(self.files[path.rpartition("/")[2]], ETag='"0"', X_Repo_Commit="1" * 40)
        else:
            self.answer({"id": "me/net", "sha": "1" * 40, "siblings": [], "private": False, "tags": []})

    do_HEAD = do_GET

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Authorization") != "Bearer mine":
            self.answer({"error": "not yours"}, 403)
        elif self.path.endswith("/api/validate-yaml"):
            self.answer({"errors": [], "warnings": []})
        elif "/preupload/" in self.path:
            in_commit = {
                "uploadMode": "regular",
                "shouldIgnore": False,
            }  # not next to it, as the hub asks for large ones
            self.answer({"files": [{"path": file["path"], **in_commit} for file in json.loads(body)["files"]]})
        else:
            added = [line["value"] for line in map(json.loads, body.splitlines()) if line["key"] == "file"]
            self.commits.append([file["path"] for file in added])
            self.files |= {file["path"]: base64.b64decode(file["content"]) for file in added}
            self.answer({"commitUrl": f"http://{self.headers['Host']}/me/net/commit/1", "commitOid": "1" * 40})


@pytest.fixture
def hub(monkeypatch):
    """Environment of a command that knows this hub and a token for it."""
    monkeypatch.setattr(Hub, "files", {".gitattributes": b"*"})
    monkeypatch.setattr(Hub, "commits", [])
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    endpoint = f"http://127.0.0.1:{server.server_port}"
    template = f"{endpoint}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", endpoint)
    monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setenv("HF_TOKEN", "mine")
    yield endpoint
    server.shutdown()
    server.server_close()


@pytest.fixture
def folder(tmp_path) -> Path:
    (tmp_path / "mine").mkdir()
    for name, content in WEIGHTS.items():
        (tmp_path / "mine" / name).write_bytes(content)
    (tmp_path / "mine/notes.txt").write_text("not of the weights")
    return tmp_path / "mine"


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("source", ["mine", "mine/a.safetensors"])
@pytest.mark.parametrize("place", ["memory://shared/{}", "file://{}"])
def test_what_is_pulled_is_what_was_pushed(source, place, folder, tmp_path):
    url = place.format(tmp_path / "there")
    assert sorted(push(tmp_path / source, url)) == sorted(WEIGHTS)
    pull(url, tmp_path / "back")
    assert contents(tmp_path / "back") == WEIGHTS
    refused("already has a", push, folder, url)
    refused("already has a", pull, url, tmp_path / "back")
    (folder / "a.md").write_bytes(b"# Another\n")
    push(folder, url, replace=True)
    pull(url, tmp_path / "back", replace=True)
    assert contents(tmp_path / "back") == WEIGHTS | {"a.md": b"# Another\n"}


@pytest.mark.parametrize("source", ["mine", "mine/a.safetensors"])
def test_weights_next_to_the_flags_of_others_are_not_pushed(source, folder, tmp_path):
    (folder / "a.yaml").write_text("source: mine\nsha256: " + "0" * 64)
    refused("a.yaml is of other weights than .*a.safetensors", push, tmp_path / source, "memory://pairs")
    digest = hashlib.sha256(WEIGHTS["a.safetensors"]).hexdigest()
    (folder / "a.yaml").write_text(f"source: mine\nsha256: {digest}")
    assert len(push(tmp_path / source, f"file://{tmp_path}/there")) == 3


def test_on_the_hub_a_push_is_one_commit_whose_card_is_its_page(hub, folder, tmp_path):
    push(folder, "hf://me/net")
    assert Hub.files == {".gitattributes": b"*", "README.md": WEIGHTS["a.md"]} | WEIGHTS and len(Hub.commits) == 1
    pull("hf://me/net", tmp_path / "back")
    assert contents(tmp_path / "back") == {"README.md": WEIGHTS["a.md"]} | WEIGHTS
    refused("already has a.md, a.safetensors, a.yaml", push, folder, "hf://me/net")
    (folder / "a.md").write_bytes(b"# Another\n")
    push(folder, "hf://me/net", replace=True)
    assert Hub.files["README.md"] == b"# Another\n"
    for written in (b"# By hand\n", b"# Somebody's page\n"):  # the first is as long as the card
        Hub.files["README.md"] = written
        push(folder, "hf://me/net", replace=True)
        assert Hub.files["README.md"] == written


def test_commands_push_and_pull(hub, folder, tmp_path):
    environment = os.environ | {"PYTHONPATH": str(ROOT), "HF_ENDPOINT": hub}
    text = run_in(tmp_path, environment, f"python {ROOT}/tools/push.py mine/a.safetensors hf://me/net")
    assert "wrote README.md, a.safetensors, a.yaml, a.md to hf://me/net" in text
    run_in(tmp_path, environment, f"python {ROOT}/tools/pull.py hf://me/net back")
    assert contents(tmp_path / "back") == {"README.md": WEIGHTS["a.md"]} | WEIGHTS


def test_a_hub_that_refuses_is_one_line(hub, folder, tmp_path, monkeypatch):
    refused("hf://me/other.*repository not found", pull, "hf://me/other", tmp_path / "back")
    refused("hf://me/other.*repository not found", push, folder, "hf://me/other")
    refused("hf://me: .*expected hf://USER/NAME", pull, "hf://me", tmp_path / "back")
    refused("hf://me/net has no weights: found nothing", pull, "hf://me/net", tmp_path / "back")
    monkeypatch.setenv("HF_TOKEN", "another")
    refused("hf://me/net.*log in", push, folder, "hf://me/net")
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "none"))
    refused("no token.*hf auth login", push, folder, "hf://me/net")
    assert not (tmp_path / "back").exists() and not Hub.commits


def test_no_network_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    refused("hf://me/net: .*is there a network", pull, "hf://me/net", tmp_path / "back")


def test_what_cannot_be_pushed_or_pulled_is_one_line(folder, tmp_path):
    url = f"file://{tmp_path}/there"
    (tmp_path / "empty").mkdir()
    refused("empty has no weights: found nothing", push, tmp_path / "empty", url)
    refused("a.yaml has no weights: found a.md, a.yaml", push, folder / "a.yaml", url)
    refused("no such file or folder", push, tmp_path / "absent", url)
    refused("there has no weights: found nothing", pull, url, tmp_path / "back")
    refused("is no URL", push, folder, str(tmp_path / "there"))
    refused("nowhere://x: .*a URL that fsspec opens here$", push, folder, "nowhere://x")
    (folder / "b.pth").write_bytes(b"0")
    refused("b.pth has no b.yaml or b.md", push, folder, url)
    (folder / "last_checkpoint").write_text("model_final.pth")
    refused("is a run's folder", push, folder, url)
    assert not (tmp_path / "there").exists()


def test_a_file_that_comes_in_part_does_not_get_its_name(folder, tmp_path, monkeypatch):
    push(folder, "memory://part")
    memory = type(fsspec.filesystem("memory"))
    monkeypatch.setattr(memory, "get_file", lambda self, there, path: Path(path).write_bytes(b"a part"))
    refused("bytes, of which 6 came", pull, "memory://part", tmp_path / "back")
    assert list((tmp_path / "back").iterdir()) == []


@pytest.mark.parametrize("is_said", [True, False])
def test_a_web_server_that_lists_no_sizes_is_pulled_from(is_said, served, tmp_path, monkeypatch):
    for name, content in WEIGHTS.items():
        (tmp_path / "served" / name).write_bytes(content)
    if not is_said:
        say = SimpleHTTPRequestHandler.send_header
        silent = lambda self, name, value: say(self, name, value) if name != "Content-Length" else None  # noqa: E731
        monkeypatch.setattr(SimpleHTTPRequestHandler, "send_header", silent)
    assert sorted(pull(served, tmp_path / "pulled")) == sorted(WEIGHTS)
    assert {path.name: path.read_bytes() for path in (tmp_path / "pulled").iterdir()} == WEIGHTS
