"""What people use goes out through the way out, in a jail, to real servers on loopback."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import http.server
import importlib.util
import io
import json
import os
import shutil
import subprocess
import tarfile
import threading
import zipfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import ClassVar

import pytest
import pytest_asyncio
import websockets
from tests.egress.jars import jail, run
from tests.egress.places import answered, certified, egress, network, server

from belljar.egress.gate import Quota
from belljar.engines.base import Engine
from belljar.models import InputFile, Language, Limits, Verdict

pytestmark = pytest.mark.asyncio(loop_scope="module")

ROOMY = Limits(timeout_s=100, pids=256)
HOSTS = ("*.test",)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine() -> AsyncIterator[Engine]:
    engine = jail(egress())
    probe = await engine.probe()
    if not probe.usable:
        pytest.skip(f"the jail cannot be used here: {probe.missing}")
    yield engine
    await engine.close()


def needed(program: str) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")


class Web(http.server.BaseHTTPRequestHandler):
    """Pages by path; POST gives back what was sent; a git repository under /repo.git."""

    protocol_version = "HTTP/1.1"
    pages: ClassVar[dict[str, bytes]] = {}
    repository: ClassVar[Path]

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        if self.path.startswith("/repo.git"):
            self._git()
        else:
            page = self.pages.get(self.path, b"page " + self.path.encode())
            self._answer(page, ("content-type", "text/html" if page.startswith(b"<") else "text/plain"))

    def do_POST(self) -> None:
        if self.path.startswith("/repo.git"):
            self._git()
        else:
            self._answer(self._body())

    def _body(self) -> bytes:
        if "transfer-encoding" not in self.headers:
            return self.rfile.read(int(self.headers.get("content-length", 0)))
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def _answer(self, body: bytes, *headers: tuple[str, str]) -> None:
        self.send_response(200)
        for name, value in (*headers, ("content-length", str(len(body)))):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def _git(self) -> None:
        path, _, query = self.path.partition("?")
        env = {
            "PATH": os.defpath,
            "GIT_PROJECT_ROOT": str(self.repository),
            "GIT_HTTP_EXPORT_ALL": "1",
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "REQUEST_METHOD": self.command,
            "CONTENT_TYPE": self.headers.get("content-type", ""),
            "HTTP_CONTENT_ENCODING": self.headers.get("content-encoding", ""),
            "GIT_CONFIG_COUNT": "1",
            "GIT_CONFIG_KEY_0": "safe.directory",
            "GIT_CONFIG_VALUE_0": "*",
        }
        done = subprocess.run(
            ["git", "http-backend"], input=self._body(), env=env, capture_output=True, check=True
        )
        head, _, body = done.stdout.partition(b"\r\n\r\n")
        headers = [tuple(line.split(": ", 1)) for line in head.decode().split("\r\n")]
        self._answer(body, *((name, value) for name, value in headers if name != "Status"))


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    Web.repository = tmp_path_factory.mktemp("web")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Web) as serving:
        thread = threading.Thread(target=serving.serve_forever)
        thread.start()
        yield serving.server_port
        serving.shutdown()
        thread.join()


async def test_curl_reaches_a_page_and_is_told_why_not_another(engine: Engine, web: int) -> None:
    needed("curl")
    result, contacts = await run(
        engine,
        network(web, hosts=HOSTS),
        f"""
        curl -sS http://a.test:{web}/one
        curl -sS -d sent http://a.test:{web}/
        curl -sS --proxy socks5h://127.0.0.1:3128 http://a.test:{web}/two
        curl -sS http://elsewhere.example:{web}/
        """,
    )
    assert result.stdout.startswith(b"page /onesentpage /two")
    assert b"elsewhere.example:%d is refused (settings: not in allowed_domains)" % web in result.stdout
    assert [contact.allowed for contact in contacts] == [True, True, True, False]
    assert result.usage.network_bytes_sent > 100
    assert result.usage.network_bytes_recv > 100


async def test_curl_speaks_tls_to_the_host_it_names(engine: Engine) -> None:
    needed("curl")
    identities, _ = certified("a.test")
    async with server(answered(b"sealed"), identity=identities["a.test"]) as (port, _):
        result, _ = await run(engine, network(port, hosts=HOSTS), f"curl -sSk https://a.test:{port}/")
    assert result.stdout == b"sealed"


async def test_urllib_reaches_a_page(engine: Engine, web: int) -> None:
    result, _ = await run(
        engine,
        network(web, hosts=HOSTS),
        f"""
        import urllib.error, urllib.request
        print(urllib.request.urlopen("http://a.test:{web}/page").read())
        print(urllib.request.urlopen("http://a.test:{web}/", data=bytes(300_000)).read().count(0))
        try:
            urllib.request.urlopen("https://elsewhere.example/")
        except OSError as error:
            print(error)
        """,
        Language.PYTHON,
    )
    lines = result.stdout.decode().splitlines()
    assert lines[:2] == ["b'page /page'", "300000"]
    assert "elsewhere.example:443 is refused" in lines[2]


async def test_node_reaches_a_page_by_fetch_and_by_http(engine: Engine, web: int) -> None:
    needed("node")
    identities, _ = certified("a.test")
    async with server(answered(b"sealed"), identity=identities["a.test"]) as (port, _):
        result, contacts = await run(
            engine,
            network(web, port, hosts=HOSTS),
            f"""
            process.env.NODE_TLS_REJECT_UNAUTHORIZED = "0";
            process.removeAllListeners("warning");
            const text = async (address) => (await fetch(address)).text();
            console.log(await text("http://a.test:{web}/fetch"));
            console.log(await text("https://a.test:{port}/"));
            console.log(await text("http://elsewhere.example:{web}/").catch((error) => "refused"));
            const http = await import("node:http");
            http.get("http://a.test:{web}/get", (answer) => answer.on("data", (data) => console.log(String(data))));
            """,
            Language.JAVASCRIPT,
            limits=ROOMY,
        )
    assert result.stdout.decode().splitlines() == ["page /fetch", "sealed", "refused", "page /get"], result
    assert [contact.allowed for contact in contacts] == [True, True, False, True]


@pytest.fixture
def repository(web: int) -> None:
    needed("git")
    bare = Web.repository / "repo.git"
    subprocess.run(["git", "init", "-q", "--bare", bare], check=True)
    subprocess.run(["git", "-C", bare, "config", "http.receivepack", "true"], check=True)


@pytest.mark.usefixtures("repository")
async def test_git_clones_and_pushes(engine: Engine, web: int) -> None:
    result, _ = await run(
        engine,
        network(web, hosts=HOSTS),
        f"""
        set -e
        export GIT_AUTHOR_NAME=x GIT_AUTHOR_EMAIL=x@x GIT_COMMITTER_NAME=x GIT_COMMITTER_EMAIL=x@x
        git clone -q http://git.test:{web}/repo.git one 2>/dev/null
        cd one
        head -c 2000000 /dev/urandom > file
        git add file && git commit -q -m first && git push -q origin HEAD:main
        cd .. && git clone -q -b main http://git.test:{web}/repo.git two
        cmp one/file two/file && echo same
        """,
        limits=ROOMY,
        output_files=(),
    )
    assert result.stdout == b"same\n", result


def wheel() -> bytes:
    """A package of one module."""
    content = {
        "greeting.py": "def greet():\n    return 'hello from a wheel'\n",
        "greeting-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: greeting\nVersion: 1.0\n",
        "greeting-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    content["greeting-1.0.dist-info/RECORD"] = "".join(f"{name},,\n" for name in content)
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, text in content.items():
            archive.writestr(name, text)
    return packed.getvalue()


async def test_pip_installs_from_an_index(engine: Engine, web: int) -> None:
    name, content = "greeting-1.0-py3-none-any.whl", wheel()
    digest = hashlib.sha256(content).hexdigest()
    Web.pages["/simple/greeting/"] = f'<a href="/{name}#sha256={digest}">{name}</a>'.encode()
    Web.pages[f"/{name}"] = content
    result, _ = await run(
        engine,
        network(web, hosts=HOSTS),
        f"""
        pip="python3 -m pip"
        $pip --version >/dev/null 2>&1 || {{ python3 -m venv venv; pip=venv/bin/pip; }}
        $pip install -q --disable-pip-version-check --no-cache-dir --target here \
            --index-url http://pypi.test:{web}/simple --trusted-host pypi.test greeting
        PYTHONPATH=here python3 -c 'import greeting; print(greeting.greet())'
        """,
        limits=ROOMY,
        output_files=(),
    )
    assert result.stdout == b"hello from a wheel\n", result


def library(*packages: str) -> Iterator[InputFile]:
    """Packages of the environment that the tests run in, as files; what is compiled in them can be left out."""
    for package in packages:
        origin = importlib.util.find_spec(package)
        assert origin is not None, f"{package} is not installed"
        assert origin.origin is not None
        folder = Path(origin.origin).parent
        for path in sorted(folder.rglob("*")):
            if path.suffix in (".py", ".pem"):
                yield InputFile(str(path.relative_to(folder.parent)), path.read_bytes())


async def test_requests_reads_posts_and_keeps_a_session(engine: Engine, web: int) -> None:
    result, contacts = await run(
        engine,
        network(web, hosts=HOSTS),
        f"""
        import requests

        with requests.Session() as session:
            print(session.get("http://a.test:{web}/one", params={{"x": 1}}, timeout=30).text)
            print(session.post("http://a.test:{web}/", data=b"sent", timeout=30).text)
        print(requests.get("http://elsewhere.example:{web}/", timeout=30).reason)
        """,
        Language.PYTHON,
        files=tuple(library("requests", "urllib3", "certifi", "idna", "charset_normalizer")),
        limits=ROOMY,
        output_files=(),
    )
    read, posted, refused = result.stdout.decode().splitlines()
    assert (read, posted) == ("page /one?x=1", "sent"), result
    assert refused.endswith("is refused (settings: not in allowed_domains)")
    assert [contact.allowed for contact in contacts] == [True, True, False]


async def test_requests_speaks_tls_that_is_opened_for_it() -> None:
    """It brings authorities of its own, and has to be told of ours."""
    identities, trust = certified("a.test")
    engine = jail(egress(trust=trust))
    if not (await engine.probe()).usable:
        pytest.skip("the jail cannot be used here")
    async with server(answered(b"sealed"), identity=identities["a.test"]) as (port, _):
        try:
            result, _ = await run(
                engine,
                network(port, hosts=HOSTS, read_only=HOSTS),
                f"""
                import requests

                print(requests.get("https://a.test:{port}/", timeout=30).text)
                print(requests.put("https://a.test:{port}/", data=b"x", timeout=30).status_code)
                """,
                Language.PYTHON,
                files=tuple(library("requests", "urllib3", "certifi", "idna", "charset_normalizer")),
                limits=ROOMY,
                output_files=(),
            )
        finally:
            await engine.close()
    assert result.stdout == b"sealed\n403\n", result


def npm_package(name: str, says: str) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        for path, text in (
            ("package/package.json", json.dumps({"name": name, "version": "1.0.0"})),
            ("package/index.js", f"module.exports = {json.dumps(says)}"),
        ):
            entry = tarfile.TarInfo(path)
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
    return content.getvalue()


async def test_npm_installs_from_a_registry(engine: Engine, web: int) -> None:
    needed("npm")
    content = npm_package("greeting", "hello from a package")
    digest = base64.b64encode(hashlib.sha512(content).digest()).decode()
    dist = {"tarball": f"http://npm.test:{web}/greeting-1.0.0.tgz", "integrity": f"sha512-{digest}"}
    version = {"name": "greeting", "version": "1.0.0", "dist": dist}
    about = {"name": "greeting", "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": version}}
    Web.pages["/greeting"] = json.dumps(about).encode()
    Web.pages["/greeting-1.0.0.tgz"] = content
    result, contacts = await run(
        engine,
        network(web, hosts=HOSTS),
        f"""
        npm install --silent --no-audit --no-fund --no-update-notifier --cache /tmp/npm \
            --registry http://npm.test:{web}/ greeting
        node -p 'require("greeting")'
        """,
        limits=ROOMY,
        output_files=(),
    )
    assert result.stdout.endswith(b"hello from a package\n"), result
    assert {contact.host for contact in contacts} == {"npm.test"}


async def test_a_websocket_is_spoken_through_a_tunnel(engine: Engine) -> None:
    async def shout(socket: websockets.ServerConnection) -> None:
        async for message in socket:
            await socket.send(str(message).upper())

    async with websockets.serve(shout, "127.0.0.1", 0) as serving:
        port = next(iter(serving.sockets)).getsockname()[1]
        result, _ = await run(
            engine,
            network(port, hosts=HOSTS),
            f"""
            import base64, http.client, os
            tunnel = http.client.HTTPConnection("127.0.0.1", 3128)
            tunnel.set_tunnel("ws.test", {port})
            key = base64.b64encode(os.urandom(16)).decode()
            tunnel.request("GET", "/", headers={{"Connection": "Upgrade", "Upgrade": "websocket",
                                               "Sec-WebSocket-Key": key, "Sec-WebSocket-Version": "13"}})
            sock = tunnel.sock
            assert b" 101 " in sock.recv(4096)
            mask, text = os.urandom(4), b"hello"
            sock.sendall(b"\\x81" + bytes([0x80 | len(text)]) + mask + bytes(b ^ mask[i % 4] for i, b in enumerate(text)))
            print(sock.recv(100)[2:].decode())
            """,
            Language.PYTHON,
        )
    assert result.stdout == b"HELLO\n", result


async def test_megabytes_arrive_as_they_were_sent(engine: Engine) -> None:
    needed("curl")
    content = os.urandom(1 << 20) * 40
    async with server(answered(content)) as (port, _):
        result, _ = await run(
            engine,
            network(port, hosts=HOSTS),
            f"curl -sS http://a.test:{port}/ | sha256sum",
            limits=ROOMY,
        )
    assert result.stdout.split()[0].decode() == hashlib.sha256(content).hexdigest()
    assert result.usage.network_bytes_recv == len(answered(content))


async def test_a_slow_server_holds_up_nobody_else(engine: Engine) -> None:
    needed("curl")
    others = asyncio.Semaphore(0)

    async def wait_for_the_others(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nd")
        for _ in range(5):
            await others.acquire()
        writer.write(b"rop\n")

    async def release(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await answer_and_go(reader, writer)
        others.release()

    async with server(release) as (quick, _), server(wait_for_the_others) as (slow, _):
        result, _ = await run(
            engine,
            network(slow, quick, hosts=HOSTS),
            f"""
            curl -sS http://slow.test:{slow}/ > slow &
            for i in 1 2 3 4 5; do curl -sS -o /dev/null http://a.test:{quick}/; done
            wait
            cat slow
            """,
        )
    assert result.stdout == b"drop\n"


async def test_a_noisy_run_does_not_starve_anothers_tunnel() -> None:
    """It takes all that it can get, on many connections, for as long as its neighbour needs."""
    moved = 0
    noisy, neighbour_done = asyncio.Event(), asyncio.Event()

    async def pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal moved
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while not neighbour_done.is_set():
            writer.write(bytes(1 << 16))
            await writer.drain()
            moved += 1 << 16
            if moved > 16 << 20:
                noisy.set()

    engine = jail(egress(quota=Quota(megabytes=1 << 20)))
    if not (await engine.probe()).usable:
        pytest.skip("the jail cannot be used here")
    try:
        async with server(pour) as (port, seen), server(answered(b"ok\n")) as (other, _):
            download = f"curl -sS -o /dev/null http://a.test:{port}/ &\n"
            noise = asyncio.create_task(
                run(engine, network(port, hosts=HOSTS), 16 * download + "wait", limits=ROOMY)
            )
            await noisy.wait()
            before = moved
            quiet, _ = await run(
                engine,
                network(other, hosts=HOSTS),
                f"for i in $(seq 20); do curl -sS http://a.test:{other}/; done",
                limits=ROOMY,
            )
            meanwhile = moved - before
            neighbour_done.set()
            loud, contacts = await noise
    finally:
        neighbour_done.set()
        await engine.close()
    assert quiet.stdout == 20 * b"ok\n", quiet
    assert meanwhile > 0
    assert (loud.exit_code, seen.connections, len(contacts)) == (0, 16, 16), loud


async def test_thousands_of_connections_in_one_run(engine: Engine) -> None:
    async with server(answer_and_go) as (port, seen):
        result, contacts = await run(
            engine,
            network(port, hosts=HOSTS),
            f"""
            import socket
            from concurrent.futures import ThreadPoolExecutor
            def ask(number):
                with socket.create_connection(("127.0.0.1", 3128)) as one:
                    one.sendall(b"GET http://a.test:{port}/ HTTP/1.1\\r\\nHost: a.test:{port}\\r\\n\\r\\n")
                    data = b""
                    while piece := one.recv(4096):
                        data += piece
                    return data.endswith(b"ok")
            with ThreadPoolExecutor(64) as threads:
                print(sum(threads.map(ask, range(2000))))
            """,
            Language.PYTHON,
            limits=ROOMY,
        )
    assert result.stdout == b"2000\n", result
    assert seen.connections == len(contacts) == 2000


async def answer_and_go(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(answered(b"ok"))
    await writer.drain()


async def test_nothing_of_a_run_is_told_after_its_end(engine: Engine) -> None:
    """A program that leaves a connection open when it ends."""
    async with server(answered(b"")) as (port, _):
        result, contacts = await run(
            engine,
            network(port, hosts=HOSTS),
            f"""
            import os, socket
            one = socket.create_connection(("127.0.0.1", 3128))
            one.sendall(b"CONNECT a.test:{port} HTTP/1.1\\r\\n\\r\\n")
            one.recv(100)
            os._exit(3)
            """,
            Language.PYTHON,
        )
    assert (result.verdict, result.exit_code) == (Verdict.EXITED, 3)
    assert len(contacts) == 1
