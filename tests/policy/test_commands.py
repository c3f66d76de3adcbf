from __future__ import annotations

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.errors import CommandNotAllowed
from belljar.models import PatternRules, RiskTier
from belljar.policy.commands import check_argv, check_commands, shapes_of
from belljar.policy.shell.wrappers import read_commands

# The lists of seed 004.
SEED_ALLOW = ("ls", "cat", "grep", "find", "python", "node")
SEED_DENY = ("rm -rf", "sudo", "curl", "wget", "nc", "ssh")


def denying(*patterns: str) -> list[PatternRules]:
    return [PatternRules("tool", deny=patterns)]


def allowing(*patterns: str) -> list[PatternRules]:
    return [PatternRules("tool", allow=patterns)]


def is_allowed(script: str, rules: list[PatternRules]) -> bool:
    try:
        check_commands(script, rules)
    except CommandNotAllowed:
        return False
    return True


# Which lists are in force


@pytest.mark.parametrize("script", ["ls", "rm -rf /", "$x", "if", "a\0b", "eval $x"])
def test_without_a_list_everything_passes(script: str) -> None:
    check_commands(script, [])
    check_commands(script, [PatternRules("settings"), PatternRules("role")])


def test_empty_allow_list_allows_nothing() -> None:
    assert not is_allowed("true", allowing())
    assert is_allowed("", allowing())


def test_every_layer_must_allow() -> None:
    layers = [PatternRules("role", allow=("ls", "cat")), PatternRules("tool", allow=("ls", "rm"))]
    assert is_allowed("ls", layers)
    assert not is_allowed("cat", layers)
    assert not is_allowed("rm", layers)


def test_any_layer_may_deny() -> None:
    layers = [PatternRules("role", allow=("ls",)), PatternRules("tool", deny=("ls",))]
    assert not is_allowed("ls", layers)


def test_refusal_names_command_layer_and_line() -> None:
    with pytest.raises(
        CommandNotAllowed, match=r"line 3: 'curl x' is denied by layer 'tool', pattern 'curl'"
    ):
        check_commands("ls\n\nls | curl x", [PatternRules("role"), PatternRules("tool", deny=("curl",))])
    with pytest.raises(CommandNotAllowed, match=r"line 2: 'rm x' is not among .* layer 'role' allows"):
        check_commands("ls\nrm x", [PatternRules("role", allow=("ls",))])


def test_refusal_of_the_unknown_names_layer_and_line() -> None:
    with pytest.raises(CommandNotAllowed, match=r"line 2: the name of '\$x y' .* layer 'tool'"):
        check_commands("ls\n$x y", denying("rm"))
    with pytest.raises(CommandNotAllowed, match=r"line 3: .* cannot be checked .* layer 'tool'"):
        check_commands("ls\nif x\n", denying("rm"))


# Ordinary scripts


@pytest.mark.parametrize(
    "script",
    [
        "ls -la /workspace", "python analyze.py data.csv", "cat a | grep -v 'rm -rf' > out", "grep curl *.md && ls",
        "for f in *.py; do cat \"$f\"; done", "find . -name '*.py' | grep -c x", "x=$(ls | cat); ls \"$x\"",
        "if ls a; then cat a; else ls; fi 2>/dev/null", "cat <<'E'\nrm -rf /\nE", "show() { cat \"$1\"; }\nshow a",
        "[[ -f a ]] && cat a # curl", "node -e 'console.log(1)'", "/bin/ls", "((n = 1 + 2)); ls", "find . -exec cat {} +",
    ],
)  # fmt: skip
def test_ordinary_scripts_pass_the_lists_of_the_seed(script: str) -> None:
    check_commands(script, [PatternRules("shell_exec", allow=SEED_ALLOW, deny=SEED_DENY)])


@pytest.mark.parametrize(
    "script",
    ["echo hi", "rm a", "cat a; echo", "[ -f a ]", "ls $(id)", "./ls", "/tmp/ls", "export A=1", "cat a | tee b", "env ls"],
)  # fmt: skip
def test_what_is_not_listed_is_refused(script: str) -> None:
    assert not is_allowed(script, [PatternRules("shell_exec", allow=SEED_ALLOW, deny=SEED_DENY)])


@pytest.mark.parametrize(
    "script", ["rm a", "rm -r a", "rm -f a", "rm -- -rf", "rm ./*", "echo rm -rf", "find . -exec rm {} \\;"]
)
def test_deny_list_leaves_the_rest_alone(script: str) -> None:
    check_commands(script, denying(*SEED_DENY))


def test_function_of_ones_own_needs_no_entry() -> None:
    assert is_allowed("f() { ls; }\nf a\nls | f", allowing("ls"))
    assert not is_allowed("f() { rm; }\nf", allowing("ls"))


@pytest.mark.parametrize(
    "script",
    [
        pytest.param("if ls; then curl() { ls; }; fi; curl x", id="perhaps-defined"),
        pytest.param("curl() { ls; }; unset -f curl; curl x", id="undefined-again"),
        pytest.param("curl() { ls; }; env curl x", id="program-of-that-name"),
        pytest.param("curl() { ls; }; bash -c 'curl x'", id="another-shell"),
    ],
)
def test_name_of_a_function_is_no_way_past_the_list(script: str) -> None:
    assert not is_allowed(script, allowing("ls", "unset", "env", "bash"))


# What a pattern matches


@pytest.mark.parametrize(
    "script",
    [
        "rm -rf a", "rm -fr a", "rm -r -f a", "rm -f a -r", "rm -Rf a", "rm -rvf a", "rm --recursive --force a",
        "rm --rec --fo a", "rm -r --force a", "/bin/rm -rf a", "../../bin/rm -rf a", "rm a -rf",
        "rm $flags a", 'rm "$x"', "rm *", "rm {-rf,a}", "echo -rf a | xargs rm", "rm -r $(echo -f) a",
    ],
)  # fmt: skip
def test_flags_are_denied_in_any_order_and_spelling(script: str) -> None:
    assert not is_allowed(script, denying("rm -rf"))
    assert not is_allowed(script, denying("rm --recursive --force"))


def test_refusal_of_a_possible_option_says_how_to_avoid_it() -> None:
    with pytest.raises(CommandNotAllowed, match="put '--' before"):
        check_commands('rm "$x"', denying("rm -rf"))
    check_commands('rm -- "$x"', denying("rm -rf"))


@pytest.mark.parametrize(
    ("pattern", "script", "denied"),
    [
        pytest.param("git push", "git -C x push", True, id="operand-anywhere"),
        pytest.param("git push", "git pull", False, id="other-operand"),
        pytest.param("git push", 'git "$x"', True, id="unknown-operand"),
        pytest.param("git push", "git $x pull", True, id="unknown-operands"),
        pytest.param("mkfs.*", "mkfs.ext4 x", True, id="glob"),
        pytest.param("/bin/rm", "rm x", True, id="path-as-pattern"),
        pytest.param("find -delete", "find . -delete", True, id="single-dash-word"),
        pytest.param("[", "[ a ]", True, id="bracket"),
        pytest.param("curl", "curly", False, id="longer-name"),
        pytest.param("curl", "echo curl", False, id="argument"),
    ],
)
def test_deny_pattern(pattern: str, script: str, denied: bool) -> None:
    assert is_allowed(script, denying(pattern)) is not denied


@pytest.mark.parametrize(
    ("pattern", "script", "allowed"),
    [
        pytest.param("git status", "git status -s", True, id="operand"),
        pytest.param("git status", "git -C x status", False, id="operand-not-first"),
        pytest.param("git status", "git", False, id="no-operand"),
        pytest.param("git status", "git $x status", False, id="unknown-operand"),
        pytest.param("rm -i", "rm -vi x", True, id="flag"),
        pytest.param("rm -i", "rm x", False, id="flag-missing"),
        pytest.param("rm -i", "rm --ignore x", False, id="other-long-option"),
        pytest.param("python3*", "python3.11 x", True, id="glob"),
        pytest.param("ls", "/usr/bin/ls", True, id="system-directory"),
        pytest.param("ls", "/usr/bin/../../tmp/ls", False, id="out-of-a-system-directory"),
        pytest.param("./run.sh", "./run.sh", True, id="path"),
        pytest.param("/usr/bin/ls", "ls", False, id="name-for-a-path"),
    ],
)
def test_allow_pattern(pattern: str, script: str, allowed: bool) -> None:
    assert is_allowed(script, allowing(pattern)) is allowed


@pytest.mark.parametrize(
    "script",
    [
        "$cmd -rf", "${x} -rf", "$(echo rm) -rf", "bash -c \"$X\"", 'eval "$X"', "alias ls=rm", ". file", "bash file",
        "curl=1; if", "((ls); ls)", "PATH=. ls", "ls\0", "ls\r\n",
    ],
)  # fmt: skip
@pytest.mark.parametrize("rules", [denying("nothing"), allowing("*")], ids=["deny", "allow"])
def test_what_cannot_be_known_is_refused_under_any_list(script: str, rules: list[PatternRules]) -> None:
    assert not is_allowed(script, rules)


# Commands given as a list of words


def test_argv_is_checked_like_a_script() -> None:
    check_argv(["ls", "; rm -rf x", "$(curl)"], denying("rm", "curl"))
    for argv in (
        ["rm", "-f", "-r", "x"],
        ["/bin/bash", "-lc", "ls; rm -rf x"],
        ["env", "A=1", "rm", "-rf", "x"],
    ):
        with pytest.raises(CommandNotAllowed):
            check_argv(argv, denying("rm -rf"))


def test_argv_that_reads_its_commands_elsewhere_is_refused() -> None:
    for argv in (["bash", "main.sh"], ["sh"], ["xargs"], []):
        with pytest.raises(CommandNotAllowed):
            check_argv(argv, allowing("bash", "sh"))
        check_argv(argv, [])


# No way of writing it hides a denied command

NAMES = ["curl", "cu\\rl", "'cu'rl", '"curl"', "$'\\x63url'", "c\\\nurl", "/usr/bin/curl", "./curl"]
LEADING = ["", "A=1 ", "time ", "! ", "2>e ", "! B=2 "]
WRAPPERS = [
    "env ", "env -i A=1 ", "timeout 5 ", "timeout -k 1 5 ", "nohup ", "nice -n 5 ", "sudo -u x ", "stdbuf -oL ",
    "setsid ", "xargs -n1 ", "find . -exec ", "command ", "exec ", "builtin ", "flock l ", "watch -n1 ", "chroot / ",
    "busybox ", "/usr/bin/time -p ", "strace -f ",
]  # fmt: skip
CONTEXTS = [
    "{}", "ls | {} | ls", "ls; {}", "ls && {}", "ls || {}", "{} &", "echo $({})", 'echo "$({})"', "x=$({})", "cat <({})",
    "ls > >({})", "ls; ({})", "{{ {}; }}", "f() {{ {}; }}", "function f {{ {}; }}", "if {}; then ls; fi", "if ls; then {}; fi",
    "for x in a; do {}; done", "while {}; do ls; done", "case x in x) {};; esac", "[[ a ]] && {}", "echo ${{x:-$({})}}",
    "echo $((1 + $({})))", "a[$({})]=1", "x=($({}))", "cat <<E\n$({})\nE\n", "declare x=$({})",
]  # fmt: skip
SCRIPTS = ["bash -c {}", "sh -lc {}", "eval {}", "bash <<< {}", "trap {} EXIT", "su -c {} x", "flock l -c {}", "watch {}"]  # fmt: skip


@st.composite
def hidden_commands(draw: st.DrawFn) -> str:
    wrappers = draw(st.lists(st.sampled_from(WRAPPERS), max_size=3))
    script = "".join([draw(st.sampled_from(LEADING)), *wrappers, draw(st.sampled_from(NAMES)), " x"])
    for _ in range(draw(st.integers(0, 3))):
        if draw(st.booleans()):
            script = draw(st.sampled_from(SCRIPTS)).format(shlex.quote(script))
        else:
            script = draw(st.sampled_from(CONTEXTS)).format(script)
    return script


@given(hidden_commands())
def test_no_wrapping_hides_a_denied_command(script: str) -> None:
    assert not is_allowed(script, denying("curl"))


@pytest.mark.parametrize("template", [*CONTEXTS, *SCRIPTS])
def test_the_same_contexts_let_a_harmless_command_through(template: str) -> None:
    harmless = shlex.quote("ls x") if template in SCRIPTS else "ls x"
    check_commands(template.format(harmless), denying("curl"))


@given(st.text(alphabet=st.sampled_from("rm$(){}[]<>|&;`'\"\\ \n\t=#!*-@:0E\0é\ud800"), max_size=60))
def test_any_text_is_allowed_or_refused(text: str) -> None:
    is_allowed(text, [PatternRules("tool", allow=("rm",), deny=("rm -rf",))])


@pytest.mark.parametrize(
    "script",
    ["(" * 500_000, "a;" * 500_000, "\0" * 1_000_000, "$(" * 400_000 + ")" * 400_000, "sudo " * 9_000, "find . " + "-exec a \\; " * 9_000],
    ids=["parentheses", "commands", "nul", "substitutions", "wrappers", "actions"],
)  # fmt: skip
def test_hostile_scripts_are_refused_in_bounded_time(script: str) -> None:
    assert not is_allowed(script, denying("a"))


# Shapes of an attack


@pytest.mark.parametrize(
    "script",
    [
        "rm -rf /", "rm -fr /", "rm -r -f /", "rm -rf /*", "rm -rf ~", "rm -rf ~/", "rm -rf ~root", 'rm -rf "$HOME"', "rm -rf ${HOME}/*",
        "rm -rf //", "rm -rf /./", "rm -rf /etc/..", "rm -rf /usr/*", "rm --recursive /", "rm -rf --no-preserve-root x",
        "sudo rm -rf /", "bash -c 'rm -rf /'", "r\\m -rf '/'", "find / -exec rm -rf / \\;", "find / -delete",
        ":(){ :|:& };:", "bomb() { bomb | bomb & }; bomb", "f() { f & f; }; f", "function f { f | f; }", "$0 & $0 &",
        "mkfs /dev/sda", "mkfs.ext4 disk.img", "dd if=/dev/zero of=/dev/sda", "dd of='/dev/nvme0n1' bs=1M", "echo x > /dev/sda",
        "cat x >> /dev/vda1", "{ ls; } > /dev/sdb", "tee /dev/sda", "cp x /dev/sda", "chmod -R 777 /", "chmod 777 -R /", "chown -R x /etc",
    ],
)  # fmt: skip
def test_attack_is_known_by_its_shape(script: str) -> None:
    findings = shapes_of(read_commands(script))
    assert findings
    assert {finding.tier for finding in findings} == {RiskTier.CRITICAL}


@pytest.mark.parametrize(
    "script",
    [
        'echo "rm -rf /"', "# rm -rf /", "cat <<'E'\nrm -rf /\nmkfs x\nE", "rm -rf build", "rm -rf /tmp/x", "rm -f /etc/x", "rm -rf ./*",
        "grep mkfs log", "dd if=/dev/zero of=disk.img", "dd of=/dev/null", "ls > /dev/null 2>/dev/stderr", "echo ':(){ :|:& };:'",
        "walk() { walk x | cat; }", "f() { ls | wc & }", "f() { f; f; }", "chmod -R 755 build", "chmod 777 /tmp/x", "find . -delete", "rm / x",
    ],
)  # fmt: skip
def test_what_only_looks_like_an_attack_is_none(script: str) -> None:
    assert shapes_of(read_commands(script)) == ()


def test_shape_names_the_line() -> None:
    assert [finding.line for finding in shapes_of(read_commands("ls\nrm -rf /\nls\nmkfs x"))] == [2, 4]
