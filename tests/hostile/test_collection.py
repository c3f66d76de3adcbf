"""Output collection: the host reads what hostile code has arranged.

The control is a careless host, which follows links, trusts names and reads while the program still runs.
"""

from __future__ import annotations

import json
import os
import resource
from typing import TYPE_CHECKING

import pytest
from tests.hostile.attacks import Attack, Control, answers, small

from belljar.engines.base import Area, Command
from belljar.models import Ended, Grant, InputFile, RunResult, SkipReason

if TYPE_CHECKING:
    from tests.hostile.glass import Glass


def skipped(result: RunResult) -> dict[str, SkipReason]:
    return {skip.path: skip.reason for skip in result.skipped}


def contents(result: RunResult) -> dict[str, bytes]:
    return {artifact.path: artifact.content for artifact in result.artifacts}


@pytest.mark.every_engine
def test_symlinks_are_named_and_not_followed(glass: Glass) -> None:
    result = glass.contains(
        Attack(
            control=Control.BARE,
            code="""
            import os
            os.symlink(os.environ["HOST_FILE"], "file")
            os.symlink(os.path.dirname(os.environ["HOST_FILE"]), "folder")
            os.symlink("/", "root") if "OUTSIDE" not in os.environ else None
            os.symlink("nowhere", "dangling")
            os.symlink("loop", "loop")
            os.symlink("/etc/passwd", "/workspace/artifacts/passwd") if "OUTSIDE" not in os.environ else None
            """,
        )
    )
    links = ("file", "folder", "root", "dangling", "loop", "artifacts/passwd")
    assert skipped(result) == dict.fromkeys(links, SkipReason.SYMLINK)
    assert not result.artifacts


def test_symlink_in_place_of_the_declared_output_is_not_followed(glass: Glass) -> None:
    result = glass.contains(
        Attack(
            control=Control.BARE,
            output_files=("out/secret.txt", "out", "gone.txt"),
            code="""
            import os
            os.symlink(os.path.dirname(os.environ["HOST_FILE"]), "out")
            """,
        )
    )
    assert skipped(result) == {
        "out/secret.txt": SkipReason.SYMLINK,
        "out": SkipReason.SYMLINK,
        "gone.txt": SkipReason.MISSING,
    }


@pytest.mark.every_engine
def test_magic_links_are_not_followed(glass: Glass) -> None:
    result = glass.contains(
        Attack(
            control=Control.BARE,
            code="""
            import os
            os.symlink("/proc/self/root" + os.environ["HOST_FILE"], "root")
            os.symlink("/proc/1/environ", "environ")
            os.symlink("/proc/self/fd/0", "descriptor")
            os.symlink("/dev/stdin", "stdin")
            """,
        )
    )
    assert skipped(result) == dict.fromkeys(("root", "environ", "descriptor", "stdin"), SkipReason.SYMLINK)


def test_hard_links_stay_in_the_workspace(glass: Glass) -> None:
    result = glass.contains(
        Attack(
            control=Control.PROBE,
            inputs=(InputFile("data.txt", b"given"),),
            code="""
            from tactics import *
            attempt("tree", os.link, "/usr/bin/env", "env")
            attempt("input", os.link, "/workspace/inputs/data.txt", "data")
            attempt("proc", os.link, "/proc/self/environ", "environ")
            with open("one.txt", "w") as file:
                file.write("twice")
            os.link("one.txt", "two.txt")
            """,
        )
    )
    assert set(answers(result.stdout).values()) == {"EXDEV"}
    assert contents(result) == {"one.txt": b"twice", "two.txt": b"twice"}


@pytest.mark.every_engine
def test_inputs_cannot_be_changed(glass: Glass) -> None:
    result = glass.contains(
        Attack(
            control=Control.PROBE,
            inputs=(InputFile("data.txt", b"given"),),
            code="""
            from tactics import *
            for flags in (os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_TRUNC):
                attempt(f"open_{flags}", os.open, "/workspace/inputs/data.txt", flags)
            attempt("remove", os.unlink, "/workspace/inputs/data.txt")
            attempt("mode", os.chmod, "/workspace/inputs/data.txt", 0o777)
            attempt("rename", os.rename, "/workspace/inputs", "/workspace/work/inputs")
            given = os.open("/workspace/inputs/data.txt", os.O_RDONLY)
            attempt("through_fd", os.open, f"/proc/self/fd/{given}", os.O_RDWR)
            say("content", read("/workspace/inputs/data.txt").decode())
            """,
        )
    )
    said = answers(result.stdout)
    assert said.pop("content") == "given"
    assert said.pop("rename") in ("EROFS", "EXDEV", "EBUSY", "EACCES")
    assert set(said.values()) <= {"EROFS", "EACCES", "EPERM"}


@pytest.mark.every_engine
def test_inputs_cannot_be_changed_by_a_root_of_the_jars_own(glass: Glass) -> None:
    """gVisor lets everybody have namespaces, inside of it, and with them mount what was read-only anew."""
    result = glass.contains(
        Attack(
            control=Control.PROBE,
            inputs=(InputFile("data.txt", b"original"),),
            code="""
            from tactics import *
            def become_root():
                checked(libc.unshare(0x10020000))
                with open("/proc/self/uid_map", "w") as file:
                    file.write("0 1000 1")
            def write(path):
                with open(path, "w") as file:
                    file.write("changed")
            for deed in (
                become_root,
                lambda: checked(libc.mount(b"", b"/workspace/inputs", None, 32 | 4096, None)),
                lambda: os.chmod("/workspace/inputs", 0o777),
                lambda: os.chmod("/workspace/inputs/data.txt", 0o666),
            ):
                try:
                    deed()
                except OSError:
                    pass
            attempt("write", write, "/workspace/inputs/data.txt")
            attempt("add", write, "/workspace/inputs/more.txt")
            attempt("remove", os.unlink, "/workspace/inputs/data.txt")
            attempt("rename", os.rename, "/workspace/inputs/data.txt", "/workspace/inputs/other.txt")
            """,
        )
    )
    assert set(answers(result.stdout).values()) <= {"EROFS", "EACCES", "EPERM"}


def test_fifos_are_not_opened(glass: Glass) -> None:
    """To open one waits for somebody at its other end."""
    result = glass.contains(
        Attack(
            control=Control.PROBE,
            output_files=("pipe", "folder/pipe"),
            code="""
            import os
            os.mkdir("folder")
            os.mkfifo("pipe")
            os.mkfifo("folder/pipe")
            """,
        )
    )
    assert skipped(result) == dict.fromkeys(("pipe", "folder/pipe"), SkipReason.NOT_REGULAR)


def test_sockets_are_not_opened(glass: Glass) -> None:
    result = glass.contains(
        Attack(
            control=Control.PROBE,
            code="""
            import socket
            for path in ("here", "/workspace/artifacts/there"):
                socket.socket(socket.AF_UNIX).bind(path)
            """,
        )
    )
    assert skipped(result) == dict.fromkeys(("here", "artifacts/there"), SkipReason.NOT_REGULAR)


def test_sparse_file_is_judged_by_its_size_and_never_read(glass: Glass) -> None:
    before = _memory_kb()
    result = glass.contains(
        Attack(
            control=Control.PROBE,
            code="""
            import os
            for name in ("big", "bigger", "/workspace/artifacts/biggest"):
                with open(name, "wb") as file:
                    file.truncate(1 << 40)
            with open("small.txt", "w") as file:
                file.write("here")
            """,
        )
    )
    assert skipped(result) == dict.fromkeys(("big", "bigger", "artifacts/biggest"), SkipReason.TOO_LARGE)
    assert contents(result) == {"small.txt": b"here"}
    assert _memory_kb() - before < 16 << 10


def test_artifacts_stop_at_their_cap(glass: Glass) -> None:
    """One file is past the cap by itself; the others are only together."""
    result = glass.contains(
        Attack(
            control=Control.ROOMY,
            roomy=small(artifact_mb=16),
            code="""
            for number in range(5):
                with open(f"{number}.bin", "wb") as file:
                    file.write(bytes(1 << 20))
            with open("past.bin", "wb") as file:
                file.write(bytes(4 << 20) + b"REACHED")
            """,
        )
    )
    assert [artifact.size for artifact in result.artifacts] == [1 << 20] * 4
    assert set(skipped(result).values()) == {SkipReason.TOO_LARGE}
    assert len(result.skipped) == 2


def test_million_files_stop_at_the_inode_cap(glass: Glass) -> None:
    result = glass.contains(
        Attack(
            control=Control.ROOMY,
            code="""
            from tactics import *
            made = 0
            try:
                while made < 5000:
                    os.close(os.open(f"file-{made}", os.O_CREAT | os.O_WRONLY))
                    made += 1
                say("all", "REACHED")
            except OSError as error:
                say(f"{made}", errno.errorcode[error.errno])
            """,
        )
    )
    made, answer = result.stdout.split()
    assert answer == b"ENOSPC"
    assert 1000 <= int(made) <= 1024
    assert result.usage.disk_full
    assert len(result.artifacts) == 50
    assert set(skipped(result).values()) == {SkipReason.TOO_MANY}


def test_thousands_of_links_end_the_listing_with_a_word(glass: Glass) -> None:
    result = glass.contains(
        Attack(
            control=Control.PROBE,
            limits=small(workspace_files=16384),
            code="""
            import os
            for number in range(3000):
                os.symlink("/etc/passwd", f"link-{number}")
            """,
        )
    )
    assert set(skipped(result).values()) == {SkipReason.SYMLINK, SkipReason.TOO_MANY}


def test_links_in_both_areas_do_not_cost_the_files_beside_them(glass: Glass) -> None:
    """Each area has fewer than a listing takes; the two together have more."""
    result = glass.contains(
        Attack(
            control=Control.PROBE,
            limits=small(workspace_files=16384),
            code="""
            import os
            for folder in ("/workspace/work", "/workspace/artifacts"):
                for number in range(900):
                    os.symlink("/etc/passwd", f"{folder}/link-{number}")
                with open(f"{folder}/good.txt", "w") as file:
                    file.write("good")
            """,
        )
    )
    assert contents(result) == {"good.txt": b"good", "artifacts/good.txt": b"good"}
    assert list(skipped(result).values()) == [SkipReason.SYMLINK] * 1800


def test_deep_tree_is_left_out_and_goes_away(glass: Glass) -> None:
    result = glass.contains(
        Attack(
            control=Control.PROBE,
            limits=small(workspace_files=8192),
            code="""
            import os
            for _ in range(3000):
                os.mkdir("d")
                os.chdir("d")
            with open("bottom.txt", "w") as file:
                file.write("deep")
            with open("/workspace/work/top.txt", "w") as file:
                file.write("top")
            """,
        )
    )
    assert contents(result) == {"top.txt": b"top"}
    assert list(skipped(result).values()) == [SkipReason.TOO_DEEP]


EVIL_NAMES = [
    pytest.param(b"line\nbreak", id="newline"),
    pytest.param(b"\x1b[2Jcleared", id="ansi"),
    pytest.param("\u202etxt.exe".encode(), id="bidi"),
    pytest.param(b"-rf", id="leading-dash"),
    pytest.param(b"n" * 255, id="255-bytes"),
    pytest.param(b"space ", id="trailing-space"),
    pytest.param(rb"..\up", id="backslash"),
    pytest.param(rb"C:\x", id="drive"),
    pytest.param(b"con", id="device-name"),
    pytest.param(b"\xff\xfe.txt", id="not-utf8"),
    pytest.param("\u2028".encode(), id="line-separator"),
    pytest.param(b"\x07\x08\x7f", id="control"),
    pytest.param("\ud800".encode("utf-8", "surrogatepass"), id="lone-surrogate"),
]


@pytest.mark.parametrize("name", EVIL_NAMES)
def test_evil_name_comes_back_as_harmless_text(glass: Glass, name: bytes) -> None:
    """Nothing in it moves a cursor, ends a line, hides or is not text; a clean name comes back as it is."""
    harmless = name.isascii() and name.decode().isprintable()
    result = glass.contains(
        Attack(
            control=Control.PROBE if harmless else Control.BARE,
            goal="GOAL" if harmless else os.fsdecode(name),
            code=f"""
            import os
            os.close(os.open({name!r}, os.O_CREAT | os.O_WRONLY))
            os.symlink("nowhere", {name[:200]!r} + b".link")
            """,
        )
    )
    paths = [*contents(result), *skipped(result)]
    assert len(paths) == 2
    for path in paths:
        assert path.isprintable()
        assert json.loads(json.dumps(path)) == path
        assert path.encode()


def test_closed_folders_are_left_out_and_go_away(glass: Glass) -> None:
    result = glass.contains(
        Attack(
            control=Control.PROBE,
            code="""
            import os
            os.mkdir("closed")
            for path in ("closed/file", "closed-file"):
                os.close(os.open(path, os.O_CREAT | os.O_WRONLY))
                os.chmod(path, 0)
            os.chmod("closed", 0)
            """,
        )
    )
    assert skipped(result) == dict.fromkeys(("closed", "closed-file"), SkipReason.UNREADABLE)


def test_closed_work_folder_does_not_cost_the_artifacts(glass: Glass) -> None:
    result = glass.contains(
        Attack(
            control=Control.PROBE,
            code="""
            import os
            with open("/workspace/artifacts/report.txt", "w") as file:
                file.write("kept")
            os.chmod("/workspace/work", 0)
            """,
        )
    )
    assert contents(result) == {"artifacts/report.txt": b"kept"}
    assert set(skipped(result).values()) == {SkipReason.UNREADABLE}


@pytest.mark.shared_kernel("it has no leases")
def test_lease_does_not_stall_the_collector(glass: Glass) -> None:
    """A plain open of a leased file waits for its holder, 45 seconds; here the holder is dead by then."""
    result = glass.contains(
        Attack(
            control=Control.BARE,
            code="""
            import fcntl, os, signal
            fd = os.open("leased.txt", os.O_CREAT | os.O_RDWR)
            os.write(fd, b"mine")
            fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
            if os.fork() == 0:
                os.setsid()
                null = os.open("/dev/null", os.O_RDWR)
                for number in (0, 1, 2):
                    os.dup2(null, number)
                signal.signal(signal.SIGIO, signal.SIG_IGN)
                signal.pause()
            """,
        )
    )
    assert contents(result) == {"leased.txt": b"mine"}
    assert result.usage.wall_s < 30


SWAPPER = """
    import os
    token = os.environ["HOST_FILE"]
    with open("plain", "w") as file:
        file.write("plain")
    os.symlink(token, "link")
    os.symlink(os.path.dirname(token), "folder-link")
    os.mkdir("folder")
    with open("folder/secret.txt", "w") as file:
        file.write("plain")
    os.link("plain", "target")
    if os.fork() == 0:
        os.setsid()
        null = os.open("/dev/null", os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(null, number)
        while True:
            os.rename("link", "target")
            os.symlink(token, "link")
            os.link("plain", "other")
            os.rename("other", "target")
            os.rename("folder", "aside")
            os.rename("folder-link", "folder")
            os.rename("folder", "folder-link")
            os.rename("aside", "folder")
            with open("grown", "wb") as file:
                file.truncate(1 << 40)
            os.truncate("grown", 0)
    """


def test_swapping_names_while_they_are_collected_gains_nothing(glass: Glass) -> None:
    """The swapper would go on for ever; it is dead before the first name is read, in each of 20 runs."""
    attack = Attack(control=Control.PROBE, code=SWAPPER)
    for _ in range(20):
        result = glass.wait(glass.attack(attack))
        for artifact in result.artifacts:
            assert artifact.size == len(artifact.content)
            assert artifact.path == "tactics.py" or artifact.content in (b"plain", b"")
    glass.contains(attack)


def test_file_put_into_a_used_jar_does_not_follow_what_was_planted(glass: Glass) -> None:
    """The shape of CVE-2024-28185 and CVE-2024-28189: the next step's file, by way of the last one's link."""

    async def two_steps() -> tuple[Ended, dict[str, bytes]]:
        jar = await glass.engine.create(Grant(accept_weaker_limits=True))
        try:
            plant = """
import os
os.mkdir("aside")
os.symlink("/workspace/work/aside/caught.txt", "main.sh")
os.symlink("/workspace/work/aside", "folder")
os.symlink(os.environ["HOST_FILE"], "host.txt")
"""
            await jar.put(Area.WORK, [InputFile("plant.py", plant.encode())])
            command = Command(
                argv=("/workspace/work/plant.py",), warm=True, env={"HOST_FILE": "/tmp/not-mine.txt"}
            )
            ended = [event async for event in jar.exec(command)][-1]
            assert isinstance(ended, Ended)
            await jar.put(Area.WORK, [InputFile("main.sh", b"ours"), InputFile("host.txt", b"ours too")])
            left = await jar.collect(("main.sh", "host.txt", "aside/caught.txt"))
            return ended, {artifact.path: artifact.content for artifact in left.artifacts}
        finally:
            await jar.destroy()

    with glass.watching(Control.PROBE):
        ended, left = glass.wait(two_steps())
        assert ended.exit_code == 0
        assert left == {"main.sh": b"ours", "host.txt": b"ours too"}


def _memory_kb() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
