"""Editors can check experiments by the schema that ``rlforge show --schema`` prints."""

import jsonschema
import pytest
from omegaconf import OmegaConf
from tests.harness.composed import ROOTS, composed

from rlforge.config.compose import to_yaml
from rlforge.config.json_schema import json_schema
from rlforge.config.keys import conf_dir


@pytest.fixture(scope="module")
def schema():
    found = json_schema()
    jsonschema.Draft202012Validator.check_schema(found)
    return jsonschema.Draft202012Validator(found)


def test_every_experiment_and_every_whole_configuration_is_valid(schema):
    files = sorted((conf_dir() / "experiment").glob("*.yaml"))
    assert len(files) > 20
    texts = {file.name: file.read_text() for file in files}
    for command, root in ROOTS.items():
        lines = ["data=random_legal"] if command == "sft" else []
        texts[command] = to_yaml(composed(*lines, root=root).config)
    contents = {
        name: OmegaConf.to_container(OmegaConf.create(text)) for name, text in texts.items()
    }
    assert [name for name, content in contents.items() if not schema.is_valid(content)] == []


@pytest.mark.parametrize(
    "content",
    [
        {"kind": "games", "learner": {"batchsize": 3}},
        {"kind": "games", "learner": {"batch_size": 0}},
        {"kind": "games", "market": {}},
        {"kind": "sft", "buffer": {}},
        {"kind": "continuous", "ruler": {"judge": {"group_by": "day"}}},
        {"kind": "games", "algorithm": {"name": "ppo", "group_size": 4}},
        {"learner": {"batchsize": 3}},
        {"kind": "foo"},
        {"kind": "foo", "learner": {"batch_size": 3}},
        {"learner": {"batch_size": "${seed"}},
    ],
)
def test_wrong_keys_and_values_are_not(schema, content):
    assert not schema.is_valid(content)


def test_an_algorithm_of_a_plug_in_may_have_keys_of_its_own(schema):
    assert schema.is_valid({"kind": "games", "algorithm": {"name": "mine:Best", "best": 3}})


@pytest.mark.parametrize(
    "content",
    [
        {"learner": {"batch_size": "${seed}", "betas": "${x}"}, "name": "run_${seed}"},
        {"kind": "sft", "model": {"dtype": "${pool.hf.dtype}"}},
        {"kind": "mine:KIND", "tournament": {"games": 3}},
    ],
)
def test_references_and_kinds_of_others_are(schema, content):
    assert schema.is_valid(content)
