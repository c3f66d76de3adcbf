"""Everyday programs do in a jar what they do elsewhere."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
from typing import Any

import pytest

from belljar.engines.jail.engine import JailEngine
from belljar.execution import runs
from belljar.models import Grant, Language, Limits, RunRequest, RunResult, Start, Verdict

pytestmark = pytest.mark.asyncio(loop_scope="module")

GRANT = Grant(limits=Limits(timeout_s=40, cpu_cores=2), accept_weaker_limits=True)
PACKAGES = {
    "cc": "gcc libc6-dev",
    "node": "nodejs",
    "ps": "procps",
    "unzip": "unzip",
}
"""Where the package is not named after the program."""


def needs(*programs: str) -> pytest.MarkDecorator:
    missing = [program for program in programs if shutil.which(program, path="/usr/bin:/bin") is None]
    packages = " ".join(PACKAGES.get(program, program) for program in missing)
    return pytest.mark.skipif(bool(missing), reason=f"not here: {missing}; apt install {packages}")


async def run(engine: JailEngine, code: str, language: Language = Language.BASH, **fields: Any) -> RunResult:
    fields.setdefault("output_files", ())
    result = await runs.run(engine, GRANT, RunRequest(language=language, code=code, **fields))
    assert (result.verdict, result.exit_code) == (Verdict.EXITED, 0), (result.stdout, result.stderr)
    return result


# --- shell and tools ---------------------------------------------------------------------------------------


@needs("sort", "uniq", "sed", "awk", "head")
async def test_a_pipeline_counts_words(engine: JailEngine) -> None:
    code = "tr ' ' '\\n' | sort | uniq -c | sort -rn | awk '{print $2 \":\" $1}' | sed 's/:/=/' | head -2"
    result = await run(engine, code, stdin=b"to be or not to be that is to be\n")
    assert sorted(result.stdout.split()) == [b"be=3", b"to=3"]


async def test_bash_has_its_jobs_traps_and_descriptors(engine: JailEngine) -> None:
    code = """
set -euo pipefail
trap 'echo bye' EXIT
diff <(printf 'a\\nb\\n') <(printf 'a\\nb\\n') && echo same
(until [ -e told ]; do sleep 0.01; done; echo late) & (echo early; touch told) ; wait
cat <<< "$(( 6 * 7 ))"
echo to-err > /dev/stderr
exec 9> file; echo nine >&9; cat file
"""
    result = await run(engine, code)
    assert result.stdout == b"same\nearly\nlate\n42\nnine\nbye\n"
    assert result.stderr == b"to-err\n"


@needs("find", "xargs", "grep")
async def test_find_and_xargs_work_in_parallel(engine: JailEngine) -> None:
    code = """
mkdir -p a/b && for i in 1 2 3 4; do echo "line $i" > "a/b/file $i"; done
find a -type f -print0 | xargs -0 -P 4 -n 1 grep -h line | sort
"""
    assert (await run(engine, code)).stdout == b"line 1\nline 2\nline 3\nline 4\n"


@needs("ps")
async def test_ps_shows_the_programs_of_the_jar_only(engine: JailEngine) -> None:
    names = (await run(engine, "sleep 5 & ps -e -o comm=")).stdout.split()
    assert set(names) <= {b"bash", b"sleep", b"ps"}


@needs("jq")
async def test_jq_reads_json(engine: JailEngine) -> None:
    result = await run(
        engine, "jq -c '[.[] | select(.n > 1) | .name]'", stdin=b'[{"n":1},{"n":2,"name":"x"}]'
    )
    assert result.stdout == b'["x"]\n'


@needs("perl")
async def test_perl_edits_in_place(engine: JailEngine) -> None:
    assert (await run(engine, "echo hello > f && perl -pi -e 's/l+/L/' f && cat f")).stdout == b"heLo\n"


@needs("tar", "gzip", "zip", "unzip")
async def test_archives_are_packed_and_unpacked(engine: JailEngine) -> None:
    code = """
mkdir -p in && echo data > in/file && ln -s file in/link && chmod 640 in/file
tar czf all.tar.gz in && mkdir out && tar xzf all.tar.gz -C out && cat out/in/link
zip -qr all.zip in && unzip -qq all.zip -d unzipped && cmp in/file unzipped/in/file
stat -c %a out/in/file
"""
    assert (await run(engine, code)).stdout == b"data\n640\n"


@needs("sqlite3")
async def test_sqlite_keeps_a_database(engine: JailEngine) -> None:
    code = """
sqlite3 db 'PRAGMA journal_mode=WAL; CREATE TABLE t(n); INSERT INTO t VALUES (1),(2),(39);'
sqlite3 db 'SELECT sum(n) FROM t'
"""
    assert (await run(engine, code)).stdout == b"wal\n42\n"


@needs("git")
async def test_git_commits_branches_and_merges(engine: JailEngine) -> None:
    code = """
set -e
export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@example.org GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@example.org
git init -q -b main repo && cd repo
echo one > file && git add file && git commit -qm first
git switch -qc other && echo two >> file && git commit -qam second
git switch -q main && echo x > new && git add new && git commit -qm third
git merge -q -m merged other
git gc -q && git fsck --no-progress && git clone -q . ../copy
git -C ../copy log --oneline --format=%s | sort
"""
    assert (await run(engine, code)).stdout == b"first\nmerged\nsecond\nthird\n"


@needs("cc")
async def test_c_is_compiled_and_run_in_the_workspace(engine: JailEngine) -> None:
    code = """
cat > main.c <<'C'
#include <pthread.h>
#include <stdio.h>
static void *work(void *n) { return (void *)((long)n * 2); }
int main(void) {
    pthread_t thread; void *result;
    pthread_create(&thread, NULL, work, (void *)21L);
    pthread_join(thread, &result);
    printf("%ld\\n", (long)result);
}
C
cc -O1 -pthread -o main main.c && ./main
"""
    assert (await run(engine, code)).stdout == b"42\n"


async def test_what_lies_in_tmp_is_data_not_a_program(engine: JailEngine) -> None:
    code = "cp /bin/true /tmp/true; /tmp/true; echo $?; cp /bin/true . && ./true; echo $?"
    result = await run(engine, code)
    assert result.stdout == b"126\n0\n"
    assert b"Permission denied" in result.stderr


async def test_time_zones_are_known_and_local_time_is_utc(engine: JailEngine) -> None:
    code = "date -d @0 +%H%Z; TZ=Asia/Tokyo date -d @0 +%H%Z"
    assert (await run(engine, code)).stdout == b"00UTC\n09JST\n"


async def test_names_and_text_are_utf_8(engine: JailEngine) -> None:
    result = await run(engine, "echo grün > größe.txt && ls && wc -m < größe.txt", output_files=None)
    assert result.stdout.decode() == "größe.txt\nmain.sh\n5\n"
    assert [file.path for file in result.artifacts] == ["größe.txt"]


# --- node --------------------------------------------------------------------------------------------------


@needs("node")
async def test_node_has_workers_files_children_and_sockets(engine: JailEngine) -> None:
    code = """
const { Worker, isMainThread, parentPort } = require("worker_threads");
if (!isMainThread) {
  parentPort.postMessage(6 * 7);
} else {
  const fs = require("fs"), http = require("http"), crypto = require("crypto");
  const { execFileSync } = require("child_process");
  fs.mkdirSync("made/deep", { recursive: true });
  fs.writeFileSync("made/deep/file", "text");
  console.log(fs.readdirSync("made"), fs.readFileSync("made/deep/file", "utf8"));
  console.log(execFileSync("echo", ["child"]).toString().trim());
  console.log(crypto.createHash("sha256").update("x").digest("hex").slice(0, 8));
  const worker = new Worker(__filename);
  worker.on("message", (answer) => {
    console.log(answer);
    const server = http.createServer((_, response) => response.end("served"));
    server.listen(0, "127.0.0.1", () =>
      http.get({ port: server.address().port, host: "127.0.0.1" }, (response) => {
        response.on("data", (data) => console.log(data.toString()));
        response.on("end", () => server.close());
      }));
  });
}
"""
    result = await run(engine, code, Language.JAVASCRIPT)
    assert result.stdout.decode().split("\n") == ["[ 'deep' ] text", "child", "2d711642", "42", "served", ""]


# --- python ------------------------------------------------------------------------------------------------

both_starts = pytest.mark.parametrize("start", Start)


@both_starts
async def test_python_uses_processes_threads_and_shared_memory(engine: JailEngine, start: Start) -> None:
    code = """
import concurrent.futures, multiprocessing, multiprocessing.shared_memory, os

def square(n):
    return n * n

if __name__ == "__main__":
    with multiprocessing.Pool(3) as pool:
        print(pool.map(square, range(4)))
    with concurrent.futures.ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        print(list(pool.map(square, range(4))))
    with concurrent.futures.ThreadPoolExecutor() as pool:
        print(list(pool.map(square, range(4))))
    memory = multiprocessing.shared_memory.SharedMemory(create=True, size=16)
    memory.buf[0] = 7
    same = multiprocessing.shared_memory.SharedMemory(memory.name)
    print(same.buf[0])
    same.close()
    memory.close()
    memory.unlink()
"""
    assert (await run(engine, code, Language.PYTHON, start=start)).stdout == 3 * b"[0, 1, 4, 9]\n" + b"7\n"


@both_starts
async def test_python_serves_and_asks_itself_over_loopback(engine: JailEngine, start: Start) -> None:
    code = """
import http.server, socket, threading, urllib.request
server = http.server.ThreadingHTTPServer(("localhost", 0), http.server.SimpleHTTPRequestHandler)
threading.Thread(target=server.serve_forever, daemon=True).start()
open("page.txt", "w").write("page")
with urllib.request.urlopen(f"http://localhost:{server.server_port}/page.txt") as answer:
    print(answer.read().decode())
with socket.create_server(("::1", 0), family=socket.AF_INET6) as listener:
    print(socket.create_connection(listener.getsockname()[:2]).getpeername()[0])
print(socket.gethostname(), socket.gethostbyname("localhost"))
"""
    result = await run(engine, code, Language.PYTHON, start=start)
    assert result.stdout == b"page\n::1\nbelljar 127.0.0.1\n"


@both_starts
async def test_python_runs_a_database_and_an_event_loop(engine: JailEngine, start: Start) -> None:
    code = """
import asyncio, sqlite3

async def main():
    process = await asyncio.create_subprocess_exec("cat", stdin=-1, stdout=-1)
    print((await process.communicate(b"through a pipe"))[0].decode())

with sqlite3.connect("data.db") as database:
    database.execute("create table t (n)")
    database.executemany("insert into t values (?)", [(1,), (41,)])
    print(database.execute("select sum(n) from t").fetchone())
asyncio.run(main())
"""
    result = await run(engine, code, Language.PYTHON, start=start)
    assert result.stdout == b"(42,)\nthrough a pipe\n"


async def test_python_makes_a_virtual_environment_that_works(engine: JailEngine) -> None:
    code = """
python3 -m venv --without-pip env && . env/bin/activate
mkdir -p "$(python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/mine"
python -c 'import sys, mine; print(sys.prefix)'
"""
    assert (await run(engine, code)).stdout == b"/workspace/work/env\n"


async def test_pip_says_its_version(engine: JailEngine) -> None:
    if not await _output_of(sys.executable, "-m", "pip", "--version"):
        pytest.skip("this Python has no pip: apt install python3-pip")
    assert (await run(engine, "python3 -m pip --version")).stdout.startswith(b"pip ")


async def _output_of(*command: str) -> bytes:
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, cwd="/")
    return (await process.communicate())[0]


@both_starts
async def test_programs_do_not_inherit_the_signals_that_the_host_ignores_or_blocks(start: Start) -> None:
    # As of a service that a shell started in the background, or with nohup.
    host = """
import asyncio, json, sys
from belljar.engines.jail.engine import JailEngine
from belljar.execution import runs
from belljar.models import Grant, RunRequest

async def main():
    engine = JailEngine()
    request = RunRequest(code=sys.argv[1], start=sys.argv[2])
    try:
        result = await runs.run(engine, Grant(accept_weaker_limits=True), request)
    finally:
        await engine.close()
    print(result.stdout.decode())

asyncio.run(main())
"""
    program = """
import json, signal
numbers = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1)
ignored = [number.name for number in numbers if signal.getsignal(number) is signal.SIG_IGN]
blocked = [number.name for number in signal.pthread_sigmask(signal.SIG_BLOCK, [])]
print(json.dumps([ignored, blocked]))
"""
    ignoring = ["env", "--ignore-signal=HUP,INT,QUIT", "--block-signal=USR1"]
    process = await _output_of(*ignoring, sys.executable, "-c", host, program, start.value)
    assert json.loads(process) == [[], []]
