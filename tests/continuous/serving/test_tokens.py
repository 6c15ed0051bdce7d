"""Tokens of a service, ids of its answers, and the addresses of its clients."""

import dataclasses

import pytest

from rlforge.continuous.serving.tokens import (
    ADMIN_VARIABLE,
    CLIENT_VARIABLE,
    AnswerIds,
    make_tokens,
    network,
    read_admin_token,
)
from rlforge.errors import ConfigError


@pytest.mark.parametrize(
    ("name", "variable"), [("token", CLIENT_VARIABLE), ("admin_token", ADMIN_VARIABLE)]
)
def test_tokens_are_made_once_and_readable_by_their_owner_only(
    tmp_path, monkeypatch, name, variable
):
    for each in (CLIENT_VARIABLE, ADMIN_VARIABLE):
        monkeypatch.delenv(each, raising=False)
    with pytest.raises(ConfigError, match="no token"):
        read_admin_token(tmp_path)
    tokens = make_tokens(tmp_path)
    assert min(len(tokens.client), len(tokens.admin)) >= 32
    assert tokens.client != tokens.admin
    assert make_tokens(tmp_path) == tokens
    assert read_admin_token(tmp_path) == tokens.admin
    file = tmp_path / name
    assert file.stat().st_mode & 0o777 == 0o600
    file.chmod(0o644)
    with pytest.raises(ConfigError, match=r"can be read by others.*chmod 600"):
        make_tokens(tmp_path)
    file.chmod(0o600)
    file.write_text("\n")
    with pytest.raises(ConfigError, match="is empty"):
        make_tokens(tmp_path)
    monkeypatch.setenv(variable, "from the environment")
    assert "from the environment" in dataclasses.astuple(make_tokens(tmp_path))


def test_ids_of_answers_are_those_of_their_service_only():
    ours, other = AnswerIds("one"), AnswerIds("other")
    made = [ours.new(kind, "deploy-7") for kind in ("chatcmpl", "cmpl") for _ in range(50)]
    assert len(set(made)) == 100
    assert len({ours.read(one) for one in made}) == 100  # each of another, unknown user
    users = [AnswerIds("one").read(ours.new("cmpl", "deploy-7", user)) for user in "aab"]
    assert users[0] == users[1] != users[2]
    trials = [ours.read(ours.new("cmpl", "deploy-7", trial=trial)) for trial in (None, 8)]
    assert [known and known.trial for known in trials] == [None, 8]
    again = AnswerIds("one").read(made[0])  # after a restart
    assert again == ours.read(made[0])
    assert again.uid == "deploy-7"
    assert {other.read(one) for one in made} == {None}
    first = made[0]
    for place in range(len(first)):  # no character can be changed
        other_character = "0" if first[place] != "0" else "1"
        assert ours.read(first[:place] + other_character + first[place + 1 :]) is None


def test_addresses_of_one_machine_are_one():
    assert network("2001:db8::1") == network("2001:db8::ffff:1") != network("2001:db8:0:1::1")
    assert network("::ffff:10.0.0.1") == network("10.0.0.1") != network("10.0.0.2")
    assert network("testclient") == "testclient"
