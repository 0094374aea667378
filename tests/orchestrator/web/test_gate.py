"""Who may read: tokens, cookies and names of hosts."""

from __future__ import annotations

import pytest

from orchestrator.web.gate import cookie_name, cookie_of, host_of, is_known_host, is_same

NAMES = frozenset({"box", "box.local"})


@pytest.mark.parametrize(
    ("header", "host"),
    [
        ("localhost", "localhost"),
        ("LOCALHOST:8642", "localhost"),
        ("127.0.0.1:8642", "127.0.0.1"),
        ("[::1]:8642", "::1"),
        ("[fe80::1]", "fe80::1"),
        ("fe80::1", "fe80::1"),
        ("", ""),
    ],
)
def test_the_host_of_a_header_is_its_name_without_the_port(header: str, host: str) -> None:
    assert host_of(header) == host


@pytest.mark.parametrize("header", ["localhost:1", "127.0.0.1:8642", "[::1]:8642", "10.0.0.7", "box:8642", "Box.Local"])
def test_addresses_and_own_names_are_known(header: str) -> None:
    assert is_known_host(header, NAMES)


@pytest.mark.parametrize(
    "header",
    ["", "evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "box.evil", "127.0.0.1@evil.example"],
)
def test_a_name_that_another_site_may_have_rebound_is_refused(header: str) -> None:
    assert not is_known_host(header, NAMES)


@pytest.mark.parametrize("given", ["", "a", "secret ", "SECRET", "secretsecret", "sécret", "\ud800"])
def test_anything_but_the_token_is_another(given: str) -> None:
    assert is_same("secret", "secret")
    assert not is_same(given, "secret")


def test_a_cookie_depends_on_the_token_and_does_not_hold_it() -> None:
    assert cookie_of("one") != cookie_of("two")
    assert "one" not in cookie_of("one")
    assert cookie_name(1) != cookie_name(2)
