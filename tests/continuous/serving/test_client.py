"""Admin calls to a service, and to what is none."""

import pytest
from tests.harness.server import Answers, served

from rlforge.continuous.serving.client import ask_admin, state_folder
from rlforge.continuous.serving.tokens import ADMIN_VARIABLE
from rlforge.errors import ConfigError, RunError


@pytest.fixture
def answering(monkeypatch):
    """The address of a server with one answer to all, which is set by its attribute."""
    monkeypatch.setenv(ADMIN_VARIABLE, "token")

    class Handler(Answers):
        def do_GET(self):  # noqa: N802 - a name of the library
            self.send(404, self.server.answer)

    with served(Handler) as server:
        yield server


@pytest.mark.parametrize(
    "answer", [[1], "hi", 3, None, {"error": "no"}, {"error": None}, {"detail": "Not Found"}]
)
def test_a_server_that_is_no_service_is_said_to_be_none(answering, answer, tmp_path):
    answering.answer = answer
    with pytest.raises(RunError, match=r"is no service of rlforge \(HTTP status 404\)"):
        ask_admin(answering.url, tmp_path, "deployments")


def test_the_password_of_an_address_is_not_shown(answering, tmp_path):
    with pytest.raises(RunError, match=r"^no service answers at http://\*\*\*@127.0.0.1:1: "):
        ask_admin("http://me:secret@127.0.0.1:1", tmp_path, "deployments")


@pytest.mark.parametrize("url", ["http://[::1", "localhost:8000", "http://", "http://a:99999"])
def test_an_address_that_is_none_is_refused(answering, url, tmp_path):
    with pytest.raises(ConfigError, match="must be an http:// or https:// address"):
        ask_admin(url, tmp_path, "deployments")


def test_a_run_stands_for_the_folder_of_its_service(tmp_path):
    own = tmp_path / "deployments"
    assert state_folder(tmp_path) == tmp_path
    own.mkdir()
    assert state_folder(tmp_path) == state_folder(None, tmp_path) == state_folder(own) == own
