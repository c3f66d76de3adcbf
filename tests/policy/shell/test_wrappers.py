from __future__ import annotations

import pytest

from belljar.models import RiskTier
from belljar.policy.shell.wrappers import read_argv, read_commands


def run_by(script: str) -> list[str]:
    """Everything a script runs, which must be known."""
    reading = read_commands(script)
    assert reading.fault is None, reading.fault
    assert reading.obscure == ()
    return [str(command) for command in reading.commands if command.words]


@pytest.mark.parametrize(
    "script",
    [
        "env rm x", "env -i -- A=1 rm x", "env -u X - A=1 rm x", "sudo rm x", "sudo -u bob -E A=1 rm x", "doas -u bob rm x",
        "nohup rm x", "setsid -w rm x", "timeout 5 rm x", "timeout -k 1 -s KILL 5s rm x", "timeout --signal=KILL 5 rm x",
        "nice rm x", "nice -n 5 rm x", "nice -10 rm x", "ionice -c 3 rm x", "chrt -f 10 rm x", "taskset -c 0 rm x",
        "stdbuf -oL -e0 rm x", "/usr/bin/time -f %e rm x", "command rm x", "command -p rm x", "builtin rm x", "exec rm x",
        "exec -a ls rm x", "chroot /srv rm x", "strace -f -o log rm x", "busybox rm x", "flock lock rm x", "flock -n lock -c 'rm x'",
        "watch -n 1 rm x", "watch 'rm x'", "su -c 'rm x' bob", "bash -c 'rm x'", "sh -lc 'rm x'", "bash -o pipefail -ec 'rm x'",
        "bash -c -x 'rm x'", "bash <<< 'rm x'", "bash -s a b <<'E'\nrm x\nE", "eval rm x", "eval -- 'rm x'", "eval 'rm' x",
        "trap 'rm x' EXIT", "find . -exec rm x \\;", "find . -name '*.py' -execdir rm x ';' -print", "/usr/bin/env /bin/rm x",
        "sudo env nice timeout 5 bash -c \"eval 'rm x'\"",
    ],
)  # fmt: skip
def test_command_behind_a_wrapper_is_found(script: str) -> None:
    assert run_by(script)[-1].removeprefix("/bin/") == "rm x"


def test_wrapper_counts_as_a_command_itself() -> None:
    assert run_by("sudo env A=1 ls") == ["sudo env A=1 ls", "env A=1 ls", "ls"]


@pytest.mark.parametrize(
    ("script", "inner"),
    [
        pytest.param("xargs -n 1 rm -f", "rm -f $(…)", id="appended"),
        pytest.param("xargs -I % mv % x", "mv $(…) x", id="replaced"),
        pytest.param("find . -exec rm {} +", "rm ./$(…)", id="found"),
    ],
)
def test_arguments_that_the_run_adds_are_marked(script: str, inner: str) -> None:
    assert run_by(script)[-1] == inner


def test_each_action_of_find_counts() -> None:
    assert run_by("find . -exec a \\; -o -ok b {} \\;")[1:] == ["a", "b ./$(…)"]


@pytest.mark.parametrize(
    "script",
    [
        "command -v rm",
        "bash --version",
        "trap - INT",
        "trap '' INT",
        "trap -p",
        "exec 3>&1",
        "env",
        "hash -r",
    ],
)
def test_what_runs_nothing_is_no_wrapper(script: str) -> None:
    assert len(run_by(script)) == 1


@pytest.mark.parametrize(
    "script",
    [
        "$cmd x", "${cmd} x", "$(echo rm) x", "`echo rm` x", "r? x", "{rm,x}", '"$@"', "<(rm)",
        'bash -c "$X"', "bash -c", "bash", "echo rm | bash", "bash < file", "bash file", "bash - x", "bash +x -c rm",
        'eval "$X"', "eval rm $X", ". file", "source file", "alias a=rm", 'alias a="$X"', "hash -p /bin/rm ls", "enable -f x y",
        "xargs", "xargs $X rm", "xargs -i rm", "xargs sh -c", "xargs -I{} sh -c 'rm {}'", "find . $X", 'find . "$X" rm {} \\;',
        "find . -exec {} \\;", "find . -exec sh -c 'rm {}' \\;", "timeout $T rm", 'timeout "$T" rm', "env -S 'rm x'", "env --unknown rm",
        "sudo -i", "su bob", "parallel rm ::: x", "zsh -c 'rm x'", "bash -c 'if'", "bash <<E\n$X\nE", "trap \"$X\" EXIT",
        "sh -c '[[ a || rm ]]'", "sh -c '((rm))'", "watch 'ls &>f rm'", "sh -c \"eval '((rm))'\"",
        "PATH=. ls", "export PATH=.", "env PATH=. ls", "read PATH", "for PATH in .; do ls; done", "printf -v PATH .", "LD_PRELOAD=x ls",
        "declare -n p=PATH", 'export "$X"', "unset 'a[$(rm)]'", "x='a[$(rm)]'",
    ],
)  # fmt: skip
def test_what_only_the_run_decides_is_said(script: str) -> None:
    reading = read_commands(script)
    # xargs alone runs echo.
    assert bool(reading.obscure) is (script != "xargs")


def test_bash_inside_of_another_shell_is_bash_again() -> None:
    assert run_by("sh -c \"bash -c '[[ a ]] && ls'\"")[-1] == "ls"


def test_running_unknown_text_is_critical() -> None:
    assert [obscure.tier for obscure in read_commands('bash -c "$X"').obscure] == [RiskTier.CRITICAL]
    assert [obscure.tier for obscure in read_commands("$X").obscure] == [RiskTier.HIGH]


def test_inner_lines_are_lines_of_the_whole() -> None:
    reading = read_commands("ls\nbash <<'E'\na\nb\nE\nbash -c '\nc'")
    assert {str(command): command.line for command in reading.commands if len(command.words) == 1} == {
        "ls": 1, "bash": 2, "a": 3, "b": 4, "c": 7,
    }  # fmt: skip


def test_endless_wrapping_ends() -> None:
    for wrapper in ("sudo ", "eval ", "env A=1 "):
        assert read_commands(wrapper * 10_000 + "rm").obscure


def test_argv_is_read_without_a_shell() -> None:
    reading = read_argv(["echo", "$(rm)", "|", "rm"])
    assert [str(command) for command in reading.commands] == ["echo $(rm) | rm"]


def test_argv_of_a_shell_is_read_as_its_script() -> None:
    reading = read_argv(["/bin/bash", "-lc", "ls | rm x"])
    assert [str(command) for command in reading.commands][1:] == ["ls", "rm x"]
