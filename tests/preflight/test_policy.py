"""What a model without a chat template is asked with."""

import pytest
import yaml
from tests.factories import CHATML, byte_tokenizer, model_files

from rlforge import launch
from rlforge.config.compose import Composed
from rlforge.config.roots import compose_run
from rlforge.config.schema import RunConfig
from rlforge.config.sft import SftConfig
from rlforge.continuous.serving.setup import compose_service
from rlforge.errors import ConfigError
from rlforge.preflight.doctor import examine
from rlforge.preflight.policy import checked, with_template

CONFIG = '{"model_type": "llama", "max_position_embeddings": 4096}'


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Folders of two models: with a chat template, and without."""
    root = tmp_path_factory.mktemp("models")
    templates = {"chat": CHATML, "plain": None}
    return {
        name: model_files(byte_tokenizer(eos_token="<eos>", chat_template=one), root / name, CONFIG)
        for name, one in templates.items()
    }


def lines(folder, *more):
    fit = ("engine.max_tokens=16", "engine.max_model_len=2048")
    return ["env=tictactoe", "model=hf", f"model.name={folder}", *fit, *more]


def composed(folder, *more, config_dir=None, root=RunConfig):
    return compose_run(lines(folder, *more), config_dir, root)


def test_a_model_without_a_chat_template_is_asked_in_plain_text_with_a_note(models):
    said = []
    result = checked(composed(models["plain"]), launch.check, said.append)
    assert result.config.model.prompt_template == "default"
    [note] = said
    assert note.startswith("note: model.prompt_template=default: ")
    assert f"{models['plain']} has no chat template" in note
    findings = examine(composed(models["plain"])).findings
    assert [one.detail for one in findings if one.what == "prompts"] == [note[len("note: ") :]]
    assert "valid" in [one.detail for one in findings if one.what == "configuration"]
    sft = composed(models["plain"], "data.players=[random_legal]", root=SftConfig)
    assert with_template(sft)[0].config.model.prompt_template == "default"


def test_a_service_of_a_model_without_a_chat_template_asks_in_plain_text(models, capsys):
    setup = compose_service(lines(models["plain"]))
    assert setup.config.model.prompt_template == "default"
    assert "note: model.prompt_template=default" in capsys.readouterr().err


def test_a_model_with_a_chat_template_uses_it(models):
    said = []
    result = checked(composed(models["chat"]), launch.check, said.append)
    assert (result.config.model.prompt_template, said) == ("chat", [])


@pytest.mark.parametrize("by", ["key", "experiment", "run"])
def test_a_chat_template_that_the_user_chose_is_refused_where_there_is_none(models, tmp_path, by):
    model = {"name": str(models["plain"]), "prompt_template": "chat"}
    (tmp_path / "experiment").mkdir()
    text = "# @package _global_\n" + yaml.safe_dump({"model": model})
    (tmp_path / "experiment" / "own.yaml").write_text(text)
    more = {"key": "model.prompt_template=chat", "experiment": "+experiment=own"}.get(by)
    chosen = composed(models["plain"], *([more] if more else []), config_dir=tmp_path)
    if by == "run":
        chosen = Composed(config=chosen.config, rest="config.yaml")
    named = r"^model\.prompt_template=chat .*needs a chat template, which the tokenizer does not"
    with pytest.raises(ConfigError, match=named):
        checked(chosen, launch.check, print)
