"""What a shell script could do, read from the commands it runs.

The commands come from the same reading that the command policy checks, so that wrappers, quoting and
`bash -c` hide nothing from one that the other sees. Python and JavaScript that is given as text
(`python -c …`) is read as such.
"""

from __future__ import annotations

from collections.abc import Iterator

from belljar.models import Finding, Language, RiskTier
from belljar.policy.commands import shapes_of
from belljar.policy.programs import Given, Program, is_of_the_system, program_of
from belljar.policy.risk import Beside, dangers
from belljar.policy.shell.script import Command, Redirect
from belljar.policy.shell.wrappers import OTHER_SHELLS, SHELLS, base_name, read_commands

_CRITICAL, _HIGH, _MEDIUM, _LOW = RiskTier.CRITICAL, RiskTier.HIGH, RiskTier.MEDIUM, RiskTier.LOW

_COMMANDS = dangers(
    (_CRITICAL, "runs text as commands", "eval"),
    (_CRITICAL, "changes the kernel or stops the machine", """
        insmod modprobe rmmod kexec shutdown reboot halt poweroff init
    """),
    (_HIGH, "acts as another user", "sudo su doas pkexec runuser"),
    (_HIGH, "opens the network", """
        curl wget nc ncat netcat socat ssh scp sftp rsync ftp telnet ping nmap dig nslookup host
        aria2c rclone aws gcloud az kubectl gh
    """),
    (_HIGH, "installs packages", """
        apt apt-get aptitude dpkg yum dnf rpm apk pacman zypper brew snap flatpak pip pip3 pipx uv
        conda mamba npm npx pnpm yarn gem cargo go cpan
    """),
    (_HIGH, "changes or deletes files", """
        rm rmdir mv shred truncate chmod chown chgrp ln dd tee install unlink
    """),
    (_HIGH, "starts, stops or schedules programs", """
        kill pkill killall crontab at batch systemctl service docker podman
    """),
    (_HIGH, "changes what the system looks like", """
        mount umount chroot unshare nsenter swapon swapoff iptables sysctl useradd passwd
    """),
    (_MEDIUM, "writes files", "cp mkdir touch tar unzip zip gzip gunzip bzip2 xz patch split"),
    (_HIGH, "runs a program that is not read here", """
        perl ruby php lua awk gawk mawk nawk deno bun java make cmake tclsh Rscript julia
    """),
    (_MEDIUM, "reads files", """
        cat tac head tail less more grep egrep fgrep rg sed cut sort uniq wc diff strings
        xxd od base64 jq source .
    """),
    (_MEDIUM, "runs a program of its own", "python python2 python3 node nodejs gcc cc g++ rustc"),
    (_LOW, "reads the file system or the environment", """
        ls find fd tree du df stat file pwd env printenv id whoami uname ps
    """),
    (_LOW, "fetches or changes a repository", "git"),
)  # fmt: skip

_HARMLESS = frozenset(
    """
    : [ alias bg break builtin cd command continue date declare dirs disown echo exec exit export
    expr false fg getopts hash jobs let local mapfile printf pushd popd read readarray readonly
    return seq set shift shopt sleep test time times timeout trap true type typeset ulimit umask
    unset wait xargs nohup setsid nice stdbuf yes basename dirname tr
    """.split()
)

_INTERPRETERS = SHELLS | OTHER_SHELLS

_HARMLESS_TARGETS = ("/dev/null", "/dev/stdout", "/dev/stderr", "/dev/tty", "/dev/fd/")


def find_in_shell(code: str, beside: Beside) -> list[Finding]:
    reading = read_commands(code)
    findings = list(shapes_of(reading))
    if reading.fault:
        # High, so that a person looks: bash runs every line before the one it cannot read.
        reason = f"the script cannot be read from here: {reading.fault.reason}"
        findings.append(Finding(_HIGH, reason, reading.fault.line))
    findings += [Finding(obscure.tier, obscure.reason, obscure.line) for obscure in reading.obscure]
    for command in reading.commands:
        findings += _does(command, beside)
    return findings


def _does(command: Command, beside: Beside) -> Iterator[Finding]:
    for redirect in command.redirects:
        yield from _redirected(command, redirect)
    if command.name is None:
        return
    name = base_name(command.name)
    if command.fetched and (name in _INTERPRETERS or name in ("eval", "source", ".")):
        yield Finding(_CRITICAL, f"{name} runs what was fetched from the network", command.line)
    if not is_of_the_system(command.name) and not beside.has(command.name, None):
        yield Finding(_HIGH, f"{command.name} is a program that is not read here", command.line)
    elif (known := _COMMANDS.get(name) or _COMMANDS.get(name.rstrip("0123456789."))) is not None:
        tier, reason = known
        yield Finding(tier, f"{name} {reason}", command.line)
    elif "/" in command.name:
        yield Finding(_MEDIUM, f"{command.name} is a program that is not known here", command.line)
    elif name not in _HARMLESS and name not in _INTERPRETERS and not command.calls_function:
        yield Finding(_LOW, f"{name} is a program that is not known here", command.line)
    if name in ("nc", "ncat", "netcat") and any(
        word.text in ("-e", "-c", "--exec") for word in command.words
    ):
        yield Finding(_CRITICAL, f"{name} gives a shell to the network", command.line)
    if name in ("sed", "perl") and any(word.shape.startswith("-i") for word in command.words):
        yield Finding(_HIGH, f"{name} -i changes files", command.line)
    program = program_of(command)
    if program is not None and program.language in (
        Language.PYTHON,
        Language.JAVASCRIPT,
        Language.TYPESCRIPT,
    ):
        yield from _interpreted(command, name, program, beside)


def _redirected(command: Command, redirect: Redirect) -> Iterator[Finding]:
    target = redirect.target.shape
    if redirect.operator in ("<<", "<<<"):
        return
    if target.startswith(("/dev/tcp/", "/dev/udp/")):
        tier = _CRITICAL if base_name(command.name or "") in _INTERPRETERS else _HIGH
        yield Finding(tier, f"{target} opens the network", redirect.line)
    elif ">" not in redirect.operator:
        if redirect.operator != "<&" and not target.startswith(_HARMLESS_TARGETS):
            yield Finding(_MEDIUM, f"reads {target}", redirect.line)
    elif target == "/proc/sysrq-trigger":
        yield Finding(_CRITICAL, "sends the kernel a command", redirect.line)
    elif not target.startswith(_HARMLESS_TARGETS) and not (
        redirect.operator == ">&" and target.strip("-").isdigit() or target == "-"
    ):
        yield Finding(_HIGH, f"writes {target}", redirect.line)


def _interpreted(command: Command, name: str, program: Program, beside: Beside) -> Iterator[Finding]:
    if program.given is Given.TEXT:
        if program.text is None:
            yield Finding(_CRITICAL, f"the code that {name} runs is only known at run time", command.line)
            return
        for finding in _read(program.text, program.language):
            yield Finding(finding.tier, finding.reason, finding.line + program.line - 1)
    elif program.given is Given.INPUT and command.fetched:
        yield Finding(_CRITICAL, f"{name} runs what was fetched from the network", command.line)
    elif not _is_read(program, command, beside):
        yield Finding(_HIGH, f"the program that {name} runs is not read here", command.line)


def _read(code: str, language: Language | None) -> list[Finding]:
    if language is Language.PYTHON:
        from belljar.policy.risk_python import find_in_python

        return find_in_python(code)
    from belljar.policy.risk_javascript import find_in_javascript

    return find_in_javascript(code)


def _is_read(program: Program, command: Command, beside: Beside) -> bool:
    if program.given is Given.INPUT:
        return beside.stdin and not command.concurrent
    return any(beside.has(path, program.language) for path in program.places)
