from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.errors import BadPolicy, BadRequest, LimitExceeded, PackageNotAllowed, PolicyEscalation
from belljar.models import PatternRules
from belljar.policy import files
from belljar.policy.decisions import decide
from belljar.policy.packages import MAX_CHARS, MAX_PACKAGES, check_allowed, name_of, pattern, requirements

POLICY = """
policies:
  default: {allowed_packages: ["*"], denied_packages: [evil-*]}
  tools: {code_run: {allowed_packages: [numpy, PyYAML]}}
  agent_roles: {analyst: {tools: [code_run], allowed_packages: [numpy, pandas]}}
"""


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        pytest.param("numpy", "numpy", id="name"),
        pytest.param("numpy>=2", "numpy>=2", id="version"),
        pytest.param("requests==2.32.*", "requests==2.32.*", id="any-patch"),
        pytest.param("Foo_.Bar [B,a] >= 1 , < 2", "foo-bar[a,b]<2,>=1", id="all-of-it"),
        pytest.param("x (>=1)", "x>=1", id="old-parentheses"),
    ],
)
def test_a_requirement_has_one_form(text: str, canonical: str) -> None:
    assert requirements([text]) == (canonical,)


def test_the_order_in_which_packages_are_asked_for_says_nothing() -> None:
    assert requirements(["b", "A>1"]) == requirements(["a>1", "b"])


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="empty"),
        pytest.param("x @ https://example.com/x.whl", id="address"),
        pytest.param("x @ file:///etc/passwd", id="file"),
        pytest.param("https://example.com/x.whl", id="bare-address"),
        pytest.param("git+https://example.com/x", id="repository"),
        pytest.param("./x", id="path"),
        pytest.param("../x.whl", id="path-above"),
        pytest.param("-r requirements.txt", id="option"),
        pytest.param("--index-url=https://example.com", id="long-option"),
        pytest.param("x==1 --hash=sha256:00", id="option-after-it"),
        pytest.param("x; python_version < '3'", id="marker"),
        pytest.param("x===1", id="arbitrary-equality"),
        pytest.param("x==$HOME", id="variable"),
        pytest.param("x\n--pre", id="second-line"),
        pytest.param("x>=1\n", id="line-feed"),
        pytest.param("x y", id="two-words"),
        pytest.param("\uff4eumpy", id="full-width"),
        pytest.param("\u212aafka", id="kelvin-sign"),
        pytest.param("x\0", id="nul"),
    ],
)
def test_what_is_more_or_less_than_a_name_and_versions_is_refused(text: str) -> None:
    with pytest.raises(BadRequest) as refused:
        requirements(["numpy", text])
    assert refused.value.field == "packages"


@pytest.mark.parametrize(
    "texts",
    [
        pytest.param(["x" * (MAX_CHARS + 1)], id="long"),
        pytest.param([f"x{number}" for number in range(MAX_PACKAGES + 1)], id="many"),
    ],
)
def test_what_is_too_much_is_refused(texts: list[str]) -> None:
    with pytest.raises(LimitExceeded) as refused:
        requirements(texts)
    assert refused.value.field == "packages"


def test_one_package_under_two_names_is_refused() -> None:
    with pytest.raises(BadRequest, match="twice"):
        requirements(["ruamel.yaml", "Ruamel_Yaml>1"])


@given(st.text(max_size=MAX_CHARS + 5))
def test_any_text_is_a_requirement_or_refused(text: str) -> None:
    try:
        (found,) = requirements([text])
    except BadRequest:
        return
    assert requirements([found]) == (found,)
    assert not found.startswith("-")
    assert found.isprintable()
    assert " " not in found


def test_without_a_list_nothing_is_allowed() -> None:
    with pytest.raises(PackageNotAllowed, match="no layer lists allowed_packages") as refused:
        check_allowed(["numpy"], ())
    assert refused.value.field == "packages"


@pytest.mark.parametrize(
    ("name", "why"),
    [
        pytest.param("numpy", "", id="both-allow"),
        pytest.param("pyyaml", r"role:analyst: not in allowed_packages", id="only-the-tool"),
        pytest.param("pandas", r"tool:code_run: not in allowed_packages", id="only-the-role"),
        pytest.param("evil-thing", r"settings: denied_packages evil-\*", id="denied"),
    ],
)
def test_every_layer_must_allow_and_any_may_deny(name: str, why: str) -> None:
    decision = decide(files.loads(POLICY), role="analyst", tool="code_run")
    if not why:
        check_allowed([name], decision.grant.packages)
        return
    with pytest.raises(PackageNotAllowed, match=why):
        check_allowed([name], decision.grant.packages)


def test_explain_says_which_layers_speak_of_packages() -> None:
    decision = decide(files.loads(POLICY), role="analyst", tool="code_run")
    row = next(row for row in decision.explain() if row.field == "packages")
    assert row.layer == "settings, role:analyst, tool:code_run"
    assert row.value == decision.grant.packages


def test_names_in_a_list_are_read_in_their_one_form() -> None:
    grant = decide(files.loads(POLICY), tool="code_run").grant
    assert PatternRules("tool:code_run", allow=("numpy", "pyyaml")) in grant.packages


def test_a_request_may_narrow_the_list() -> None:
    grant = decide(files.loads(POLICY), overrides={"allowed_packages": ["numpy"]}).grant
    check_allowed(["numpy"], grant.packages)
    with pytest.raises(PackageNotAllowed, match="request: not in allowed_packages"):
        check_allowed(["pandas"], grant.packages)


def test_a_request_cannot_make_the_first_list() -> None:
    with pytest.raises(PolicyEscalation) as refused:
        decide(files.loads("policies: {}"), overrides={"allowed_packages": ["numpy"]})
    assert refused.value.field == "packages"


@pytest.mark.parametrize("text", ["numpy>=2", "a b", "", "-x", "x/y", "x?"])
def test_an_entry_that_is_no_name_is_refused(text: str) -> None:
    with pytest.raises(BadRequest, match="is not the name of a package"):
        pattern(text)
    with pytest.raises(BadPolicy, match="is not the name of a package"):
        files.loads(f"policies: {{default: {{allowed_packages: ['{text}']}}}}")


@given(st.from_regex(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,20}[A-Za-z0-9])?", fullmatch=True))
def test_the_form_of_a_name_is_that_of_the_packaging_library(name: str) -> None:
    from packaging.utils import canonicalize_name

    assert name_of(name) == canonicalize_name(name)
    assert pattern(name) == name_of(name)
