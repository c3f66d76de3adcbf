"""What a shell script could do, read from the commands it runs.

The commands come from the same reading that the command policy checks, so that wrappers, quoting and
`bash -c` hide nothing from one that the other sees. Python and JavaScript that is given as text
(`python -c …`) is read as such.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from belljar.models import Finding, RiskTier
from belljar.policy.commands import shapes_of
from belljar.policy.risk import dangers
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
        conda mamba npm npx pnpm yarn bun gem cargo go cpan
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
    (_MEDIUM, "reads files", """
        cat tac head tail less more grep egrep fgrep rg awk gawk sed cut sort uniq wc diff strings
        xxd od base64 jq source .
    """),
    (_MEDIUM, "runs a program of its own", """
        python python2 python3 node nodejs deno ruby perl php lua make cmake gcc cc g++ rustc java
    """),
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

_PYTHON = re.compile(r"python[\d.]*")
_NODE = ("node", "nodejs")
# Python's options may be joined to one word, and the code to that: -Ic'print(1)'.
_PYTHON_CODE = re.compile(r"-[bBdEhiIOPqsSuvVx]*c(.*)", re.DOTALL)
_NODE_CODE = re.compile(r"(?:-e|-p|-pe|--eval|--print)(?:=(.*))?", re.DOTALL)
_HARMLESS_TARGETS = ("/dev/null", "/dev/stdout", "/dev/stderr", "/dev/tty", "/dev/fd/")


def find_in_shell(code: str) -> list[Finding]:
    reading = read_commands(code)
    findings = list(shapes_of(reading))
    if reading.fault:
        # High, so that a person looks: bash runs every line before the one it cannot read.
        reason = f"the script cannot be read from here: {reading.fault.reason}"
        findings.append(Finding(_HIGH, reason, reading.fault.line))
    findings += [Finding(obscure.tier, obscure.reason, obscure.line) for obscure in reading.obscure]
    for command in reading.commands:
        findings += _does(command)
    return findings


def _does(command: Command) -> Iterator[Finding]:
    for redirect in command.redirects:
        yield from _redirected(command, redirect)
    if command.name is None:
        return
    name = base_name(command.name)
    if command.fetched and (name in _INTERPRETERS or name in ("eval", "source", ".")):
        yield Finding(_CRITICAL, f"{name} runs what was fetched from the network", command.line)
    if name in _COMMANDS:
        tier, reason = _COMMANDS[name]
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
    if _PYTHON.fullmatch(name) or name in _NODE:
        yield from _inline_code(command, name)


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


def _inline_code(command: Command, name: str) -> Iterator[Finding]:
    option = _NODE_CODE if name in _NODE else _PYTHON_CODE
    line = command.line
    for index, word in enumerate(command.words):
        given = option.fullmatch(word.text) if word.text is not None else None
        if given is not None:
            following = command.words[index + 1 : index + 2]
            code = given[1] or (following[0].text if following else "")
            break
    else:
        here = [redirect for redirect in command.redirects if redirect.operator in ("<<", "<<<")]
        if not here:
            return
        code, line = here[-1].target.text, here[-1].line
    if code is None:
        yield Finding(_CRITICAL, f"the code that {name} runs is only known at run time", command.line)
        return
    if name in _NODE:
        from belljar.policy.risk_javascript import find_in_javascript

        findings = find_in_javascript(code)
    else:
        from belljar.policy.risk_python import find_in_python

        findings = find_in_python(code)
    for finding in findings:
        yield Finding(finding.tier, finding.reason, finding.line + line - 1)
