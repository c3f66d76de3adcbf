"""From a text to its commands; the judge is bash itself."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.policy.shell.grammar import read_script


def commands(script: str) -> list[str]:
    read = read_script(script)
    assert read.fault is None, read.fault
    return [str(command) for command in read.commands if command.words]


def fault_line(script: str) -> int | None:
    fault = read_script(script).fault
    return fault.line if fault else None


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        pytest.param("ls -l a", ["ls -l a"], id="simple"),
        pytest.param("a | b |& c", ["a", "b", "c"], id="pipe"),
        pytest.param("a; b && c || d & e\nf", ["a", "b", "c", "d", "e", "f"], id="lists"),
        pytest.param("X=1 Y=2 ls", ["ls"], id="assignments"),
        pytest.param("a[1 + 2]=3 ls", ["ls"], id="subscript-with-blanks"),
        pytest.param("x=(a $(b) c) d", ["b", "d"], id="array"),
        pytest.param("X=1", [], id="only-an-assignment"),
        pytest.param("> f", [], id="only-a-redirection"),
        pytest.param("2>&1 >f a <g b", ["a b"], id="redirections-anywhere"),
        pytest.param("{fd}>f a", ["a"], id="named-descriptor"),
        pytest.param("1&>f a", ["1 a"], id="number-before-both-streams"),
        pytest.param("a $(b $(c))", ["c", "b $(…)", "a $(…)"], id="substitution"),
        pytest.param("a `b \\`c\\``", ["c", "b $(…)", "a $(…)"], id="backticks"),
        pytest.param('a "x $(b) `c`"', ["b", "c", "a x $(…) $(…)"], id="substitution-in-quotes"),
        pytest.param("a <(b) >(c)", ["b", "c", "a $(…) $(…)"], id="process-substitution"),
        pytest.param("a ${x:-$(b)} ${y#`c`}", ["b", "c", "a $x $y"], id="substitution-in-expansion"),
        pytest.param("a $((1 + $(b)))", ["b", "a $(…)"], id="substitution-in-arithmetic"),
        pytest.param("(a; b)", ["a", "b"], id="subshell"),
        pytest.param("{ a; b; } > f", ["a", "b"], id="group"),
        pytest.param("! a", ["a"], id="negation"),
        pytest.param("time -p a", ["a"], id="time-keyword"),
        pytest.param("a | time b", ["a", "time b"], id="time-program"),
        pytest.param("if a; then b; elif c; then d; else e; fi", ["a", "b", "c", "d", "e"], id="if"),
        pytest.param("while a; do b; done; until c; do d; done", ["a", "b", "c", "d"], id="while"),
        pytest.param("for x in $(a) b; do c; done", ["a", "c"], id="for"),
        pytest.param("for x do a; done; for ((i=0; i<$(b); i++)); do c; done", ["a", "b", "c"], id="for-forms"),
        pytest.param("select x in a; do b; done", ["b"], id="select"),
        pytest.param("case $x in (a|b) c;; *) d;& e) f; esac", ["c", "d", "f"], id="case"),
        pytest.param("[[ a =~ (b|c) && $(d) ]] && e", ["d", "e"], id="conditional"),
        pytest.param("((a = $(b))) || c", ["b", "c"], id="arithmetic-command"),
        pytest.param("f() { a; }\nfunction g { b; }\nf", ["a", "b", "f"], id="functions"),
        pytest.param("f() ( a ); g() if b; then c; fi", ["a", "b", "c"], id="function-bodies"),
        pytest.param("cat <<E; a\n$(b) `c`\nE\nd", ["cat", "a", "b", "c", "d"], id="here-document"),
        pytest.param("cat <<'E'\n$(b)\nE\nd", ["cat", "d"], id="literal-here-document"),
        pytest.param("cat <<A <<-\\B\n$(a)\nA\n\tb\n\tB\nc", ["cat", "a", "c"], id="two-here-documents"),
        pytest.param("cat <<E\nx\\\nE\n$(a)\nE\nb", ["cat", "a", "b"], id="joined-lines-are-no-end-mark"),
        pytest.param("cat <<E\nx\nE\\\n\na", ["cat", "a"], id="joined-lines-are-an-end-mark"),
        pytest.param("a # b\n# c \\\nd", ["a", "d"], id="comments"),
        pytest.param("a \\\n b", ["a b"], id="continuation"),
        pytest.param("echo 'rm -rf /' \"ls; rm\"", ["echo rm -rf / ls; rm"], id="text-is-text"),
        pytest.param("", [], id="empty"),
    ],
)  # fmt: skip
def test_every_command_is_found(script: str, expected: list[str]) -> None:
    assert commands(script) == expected


@pytest.mark.parametrize(
    "script",
    [
        pytest.param("if a", id="unfinished"),
        pytest.param("a 'b", id="open-quote"),
        pytest.param('a "b', id="open-double-quote"),
        pytest.param("a $(b", id="open-substitution"),
        pytest.param("cat <<E\nx", id="open-here-document"),
        pytest.param("a )", id="stray-parenthesis"),
        pytest.param("a; }", id="stray-brace"),
        pytest.param("; a", id="empty-command"),
        pytest.param("a |", id="open-pipe"),
        pytest.param("((a); b)", id="arithmetic-or-subshell"),
        pytest.param("x\\\n=1 rm", id="assignment-over-two-lines"),
        pytest.param("i\\\nf a; then b; fi", id="keyword-over-two-lines"),
        pytest.param("a $\\\n(rm)", id="substitution-over-two-lines"),
        pytest.param("x=(a)b rm", id="text-after-an-array"),
        pytest.param("a \"${x#'}'}\"", id="quote-inside-of-quoted-braces"),
        pytest.param("a ${x@P}", id="prompt-expansion"),
        pytest.param("a ${ rm; }", id="function-substitution"),
        pytest.param("a\0b", id="nul"),
        pytest.param("a\r\nb", id="carriage-return"),
        pytest.param("$'a\\0b'", id="nul-by-escape"),
        pytest.param("coproc a", id="coprocess"),
    ],
)
def test_what_bash_may_read_otherwise_is_a_fault(script: str) -> None:
    assert read_script(script).fault is not None


def test_fault_names_the_line() -> None:
    assert fault_line("a\nb\nif c\n") == 4
    assert fault_line("a\nb )\n") == 2


def test_commands_before_a_fault_are_kept() -> None:
    assert [str(command) for command in read_script("rm x\n)").commands] == ["rm x"]


def test_lines_are_those_of_the_source() -> None:
    read = read_script("a\n\nb \\\n  c\nx=1 \\\n d\ncat <<E\n$(e)\nE\nf `\ng`\n")
    assert {str(command): command.line for command in read.commands} == {
        "a": 1, "b c": 3, "d": 6, "cat": 7, "e": 8, "f $(…)": 10, "g": 11,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("script", "concurrent"),
    [
        pytest.param("f() { f | f & }", [True, True], id="pipe-in-background"),
        pytest.param("f() { f; f; }", [False, False], id="one-after-the-other"),
        pytest.param("f() { f & f; }", [True, False], id="background"),
    ],
)
def test_commands_know_their_function_and_what_runs_beside_them(script: str, concurrent: list[bool]) -> None:
    read = read_script(script)
    assert [command.inside for command in read.commands] == [("f",)] * len(concurrent)
    assert [command.concurrent for command in read.commands] == concurrent


@pytest.mark.parametrize(
    ("script", "fetched"),
    [
        pytest.param("curl x | bash", True, id="pipe"),
        pytest.param("sudo curl x | tee y | bash", True, id="longer-pipe"),
        pytest.param('bash -c "$(wget x)"', True, id="substitution"),
        pytest.param("bash <(curl x)", True, id="process-substitution"),
        pytest.param("curl x; bash", False, id="one-after-the-other"),
        pytest.param("bash | curl x", False, id="the-other-way"),
    ],
)
def test_commands_know_what_the_network_gives_them(script: str, fetched: bool) -> None:
    shells = [command for command in read_script(script).commands if command.name == "bash"]
    assert [command.fetched for command in shells] == [fetched]


@pytest.mark.parametrize(
    ("script", "own"),
    [
        pytest.param("f() { a; }\nf", True, id="defined-before"),
        pytest.param("f\nf() { a; }", False, id="defined-after"),
        pytest.param("if a; then f() { b; }; fi\nf", False, id="perhaps-defined"),
        pytest.param("a && f() { b; }\nf", False, id="defined-on-success"),
        pytest.param("f() { a; } &\nf", False, id="defined-in-the-background"),
        pytest.param("(f() { a; })\nf", False, id="defined-in-a-subshell"),
    ],
)
def test_call_of_a_surely_defined_function_is_told_apart(script: str, own: bool) -> None:
    calls = [command for command in read_script(script).commands if command.name == "f"]
    assert [command.calls_function for command in calls] == [own]


@pytest.mark.parametrize(
    "script",
    [
        pytest.param("[[ a || rm ]]", id="conditional"),
        pytest.param("((rm))", id="arithmetic"),
        pytest.param("ls &>f rm", id="both-streams"),
    ],
)
def test_what_only_bash_reads_so_is_noted(script: str) -> None:
    assert read_script(script).bash_only is not None


# Each runs `rm` somewhere that is easy to miss.
HIDDEN_IN_BASH = [
    "r\\\nm x", "'r'm", "r\\m", "$'rm'", "$'\\x72m'", '"rm"', "rm{,x}", "echo a#b; rm", "echo a\\\n#; rm", "a[1 + 2]=3 rm",
    "x=1 >f rm", "1&>f rm; rm", "[[ a =~ `rm` ]]", "[[ a == $(rm)* ]]", "echo ${x#$(rm)}", "echo ${x/`rm`/b}",
    'echo "${y:-`rm`}"', 'echo "${y:-\'$(rm)\'}"', "echo $((1+$(rm)))", "((x[$(rm)]))", "x=($(rm))", "x[$(rm)]=1",
    "cat <<E\n`rm`\nE", "cat <<E\nx\nE\\\n\nrm", "cat <<'E'; rm\nE", "echo `echo \\`rm\\``", "! rm", "time rm", "if rm; then :; fi",
    "for x in $(rm); do :; done", "case $(rm) in *) rm;; esac", "f() { rm; }; f", "echo <(rm)", ": >(rm)", "declare x=$(rm)",
    "export x[$(rm)]=1", "echo $(echo $(echo $(rm)))", "{ rm; } 2>f", "(((1))); rm", "echo \\\\$(rm)", "coproc rm",
    "until rm; do break; done", "select x in a; do rm; break; done <<<1", "echo $\\\n(rm)", "i\\\nf rm; then :; fi",
    "x\\\n=1 rm", "((rm) || (rm))", "echo $((rm) | (rm))", "x=(a)b rm", "function f { rm; }; f", "false || rm & wait",
]  # fmt: skip


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash to compare with")
@pytest.mark.parametrize("script", HIDDEN_IN_BASH)
def test_nothing_that_bash_runs_is_missed(script: str, tmp_path: Path) -> None:
    log = tmp_path / "ran"
    handler = tmp_path / "handler"
    handler.write_text(f'command_not_found_handle() {{ echo "$1" >> {log}; }}')
    # No program can be found, so that bash asks the handler for each.
    environment = {"PATH": str(tmp_path / "none"), "BASH_ENV": str(handler), "x": "set"}
    log.touch()
    bash = shutil.which("bash") or ""
    subprocess.run([bash, "-c", script], cwd=tmp_path, env=environment, capture_output=True, timeout=60)
    read = read_script(script)
    seen = {command.name for command in read.commands if command.words}
    assert "rm" in log.read_text().split(), "the script is no test: bash does not run rm"
    assert read.fault or "rm" in seen or None in seen


@pytest.mark.parametrize(
    "unit",
    ["(", "( ", "$(", "`", '"$(', "{ ", "a|", "<", "(()", "${x:-", "if ", "<<E\n", "x=(", "a[", "((", "'", "\\\n", "a;"],
)  # fmt: skip
def test_hostile_repetition_is_read_in_bounded_time(unit: str) -> None:
    read_script(unit * (1_000_000 // len(unit)))
    read_script(unit * 3000)


@given(st.text(alphabet=st.sampled_from("ab$(){}[]<>|&;`'\"\\ \n\t=#!*?~-@:0E\0é"), max_size=60))
def test_any_text_is_read_or_is_a_fault(text: str) -> None:
    read = read_script(text)
    assert all(command.line >= 1 for command in read.commands)
    assert read.fault is None or read.fault.reason


@given(st.text(max_size=200))
def test_text_in_single_quotes_is_one_word(text: str) -> None:
    quoted = "'" + text.replace("'", "'\\''") + "'"
    read = read_script(f"echo {quoted}")
    if read.fault is None:
        assert [word.text for word in read.commands[0].words] == ["echo", text]
