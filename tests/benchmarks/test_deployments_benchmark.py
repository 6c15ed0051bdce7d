"""Deployments under load: the service, its clients and the check of their answers work together."""

import importlib
import sys

import pytest


@pytest.mark.slow
def test_every_answer_is_that_of_a_version_which_was_live(on_path, monkeypatch):
    deployments, found = importlib.import_module("deployments"), {}
    monkeypatch.setattr(deployments, "record", lambda name, results: found.update(results))
    typed = ["deployments.py", "--deployments", "11", "--clients", "2"]  # the tenth is rolled back
    monkeypatch.setattr(sys, "argv", typed)
    deployments.main()
    assert (found["deployments"], found["versions_that_answered"] > 1) == (11, True)
    assert found["answers"] > 0
    assert (found["failed"], found["wrong_answer"], found["wrong_version"]) == (0, 0, 0)
