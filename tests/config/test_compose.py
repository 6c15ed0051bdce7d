"""Composition: types, origins, and one readable message for each kind of mistake."""

import re

import pytest

import rlforge
from rlforge.config.compose import compose, from_yaml, to_yaml
from rlforge.config.keys import all_keys, conf_dir, not_there
from rlforge.config.overrides import in_grammar
from rlforge.config.roots import compose_any
from rlforge.config.training import ALGORITHM_CONFIGS, GrpoConfig
from rlforge.errors import ConfigError, DamagedError


def test_what_is_offered_for_a_misspelt_key_or_group_can_be_written():
    config = compose([]).config
    known = {key for key in all_keys(type(config)) if key.count(".") < 2}
    for key in known:
        misspelt = key[:-2] + key[-1]
        if misspelt not in known:
            found = re.search(r"did you mean (.+)\?", not_there(misspelt, config))
            assert found is None or {*found[1].split(", ")} <= {*all_keys(type(config))}, misspelt
    with pytest.raises(ConfigError, match=r"no such key; did you mean algorithm, algorithm\.kl"):
        compose(["algoritm=grpo"])


def test_groups_and_overrides_become_typed_objects():
    config = compose(["algorithm=grpo", "buffer=episode", "algorithm.group_size=4"]).config
    assert isinstance(config.algorithm, GrpoConfig)
    assert config.algorithm.group_size == 4
    assert config.env.train[0].id == "SimpleTak-v0-train"


@pytest.mark.parametrize("name", ALGORITHM_CONFIGS)
def test_yaml_round_trips(name, tmp_path):
    config = compose([f"algorithm={name}", "pool.lag_range=[2,3]"]).config
    (tmp_path / "config.yaml").write_text(to_yaml(config))
    assert from_yaml(tmp_path / "config.yaml") == config


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("learner: {batchsize: 3}\n", r"learner\.batchsize .*mine\.yaml.*did you mean"),
        ("learner: {batch_size: hello}\n", r"learner\.batch_size=hello .*mine\.yaml\): must"),
        ("learner: {batch_size: [}\n", r"YAML does not parse.*mine\.yaml.*line 2"),
    ],
)
def test_mistakes_in_a_file_name_the_file(tmp_path, text, message):
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text(f"# @package _global_\n{text}")
    with pytest.raises(ConfigError, match=message):
        compose(["+experiment=mine"], tmp_path)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"name: mine\n", r"mine\.yaml: its first line must be '# @package _global_'"),
        (b"", r"mine\.yaml: is empty"),
        (b"# @package _global_\n1: 3\n", r"^1 \(.*mine\.yaml\): no such key"),
        (b"3\n", r"mine\.yaml: Invalid loaded object type"),
        (b"# @package _global_\n- seed\n", r"mine\.yaml: not a mapping of configuration keys"),
        (b"# @package _global_\nkind: gamess\n", r"mine\.yaml: kind of run 'gamess'"),
        (b"# @package _global_\nname: \xe9\n", r"mine\.yaml: 'utf-8' codec"),
        (b"# @package _global_\nname: {a\n", r"mine\.yaml: while parsing .* line 2"),
        (b"# @package _global_\ndefaults: [mine]\n", r"mine\.yaml: its defaults lead back to it"),
        (b"# @package _global_\ndefaults: {a: b}\n", r"mine\.yaml: Invalid .*; write defaults: \["),
        (b"# @package _global_\nname: ${no.x}\n", r"^name \(.*mine\.yaml\): .*'no.x'.*; refer to"),
    ],
)
def test_an_experiment_that_cannot_be_read_is_named_with_the_mend(tmp_path, content, said):
    refused(tmp_path, "experiment", content, said)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"defaults: [mine]\n", "the defaults of an option lead back to it"),
        (b"defaults: [{/model: [1]}]\n", r"; write defaults: \["),
        (b"train: \xe9\n", r"mine\.yaml: 'utf-8' codec.*; save it as UTF-8"),
        (b"- train\n", r"mine\.yaml: not a mapping of configuration keys"),
    ],
)
def test_an_option_that_cannot_be_read_is_refused(tmp_path, content, said):
    refused(tmp_path, "env", content, said)


def refused(folder, group, content, said):
    """Compose with an own file of a group."""
    (folder / group).mkdir()
    (folder / group / "mine.yaml").write_bytes(content)
    with pytest.raises(ConfigError, match=said):
        compose_any([f"{'+' * (group == 'experiment')}{group}=mine"], folder)


def test_a_damaged_run_configuration_is_named_with_its_line(tmp_path):
    (tmp_path / "config.yaml").write_text("kind: games\nname: {a\n")
    with pytest.raises(DamagedError, match=r"config\.yaml: while parsing .* line 2"):
        from_yaml(tmp_path / "config.yaml")


def test_own_experiments_come_from_the_config_dir(tmp_path):
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text(
        "# @package _global_\ndefaults: [override /env: tictactoe]\nname: mine\nseed: 7\n"
    )
    result = compose(["+experiment=mine"], tmp_path)
    assert (result.config.name, result.config.seed) == ("mine", 7)
    assert result.config.env.train[0].id == "TicTacToe-v0-train"
    assert result.origin("seed").endswith("experiment/mine.yaml")


def test_an_own_file_that_would_not_be_read_is_refused(tmp_path):
    own = tmp_path / "env" / "tictactoe.yaml"
    own.parent.mkdir()
    shipped = (conf_dir() / "env" / "tictactoe.yaml").read_text()
    own.write_text(shipped)
    assert compose(["env=tictactoe"], tmp_path).config.env.train[0].id == "TicTacToe-v0-train"
    own.write_text(shipped.replace("TicTacToe", "Nim"))
    with pytest.raises(ConfigError, match=r"tictactoe\.yaml: rlforge has a file of this name"):
        compose(["env=tictactoe"], tmp_path)


def test_what_is_missing_or_no_text_is_named(tmp_path):
    file = tmp_path / "config.yaml"
    with pytest.raises(ConfigError, match="no such directory"):
        compose([], tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="is this a run directory"):
        from_yaml(file)
    file.write_bytes(b"name: \xff\xfe\n")
    with pytest.raises(DamagedError, match=r"config\.yaml: 'utf-8' codec"):
        from_yaml(file)


def test_origin_names_command_line_file_or_default():
    result = compose(["+experiment=simpletak_mirror", "learner.grad_clip=3"])
    assert result.origin("learner.grad_clip") == "command line, learner.grad_clip=3"
    assert result.origin("learner.total_updates") == "conf/experiment/simpletak_mirror.yaml"
    assert result.origin("learner.batch_size") == "conf/learner/tiny_ppo.yaml"
    assert result.origin("env.train.0.max_turns") == "conf/env/simpletak.yaml"
    assert result.origin("tracker.window") == "default"


def test_a_key_of_an_older_run_directory_that_is_gone_is_named(tmp_path):
    text = to_yaml(compose(["+experiment=simpletak_mirror"]).config)
    (tmp_path / "config.yaml").write_text(text.replace("learner:\n", "learner:\n  momentum: 0.9\n"))
    with pytest.raises(ConfigError, match=r"config\.yaml: learner\.momentum: this key is gone"):
        from_yaml(tmp_path / "config.yaml")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("algorithm.clip_lw=0.1", "no such key in PpoConfig; did you mean algorithm.clip_low"),
        ("algorithm.group_size=3", "no such key in PpoConfig; algorithm=grpo has it"),
        ("env.train.0.max_turn=3", "no such key; did you mean env.train.0.max_turns"),
    ],
)
def test_an_unknown_key_is_compared_with_those_of_its_own_class(line, said):
    with pytest.raises(ConfigError, match=said):
        compose(["algorithm=ppo", line])


@pytest.mark.parametrize("quote", ["'", '"'])
def test_texts_in_either_quotes_are_read_as_they_are(quote):
    texts = ["a b", 'it\'s "so"', "\\boxed{x}\n\\", "\\'\\\"", "null", "[1, 2]", "é: $5"]
    given = [f"prompts.t{n}.system={in_grammar(text, quote)}" for n, text in enumerate(texts)]
    assert [prompt.system for prompt in compose(given).config.prompts.values()] == texts


def test_float16_is_refused_with_the_reason_and_the_mend():
    with pytest.raises(ConfigError, match=r"dtype=float16.*must be bfloat16.*gradients vanish"):
        rlforge.compose("tictactoe_mirror", "model.dtype=float16")
    with pytest.raises(ConfigError, match=r"dtype=float17.*no such choice"):
        rlforge.compose("tictactoe_mirror", "model.dtype=float17")


@pytest.mark.parametrize("name", ["qwen3_1p7b_simpletak", "blotto_league"])
def test_another_pool_can_be_chosen_over_an_experiment_that_sets_the_size_of_its_own(name):
    """The sizes of the experiment stay: 3 versions, or 28 that are spaced."""
    for pool in ("lagged", "fictitious", "random"):
        config = compose([f"+experiment={name}", f"pool={pool}"]).config
        assert config.pool.mode == pool
        assert list(config.problems()) == []
    lagged = compose([f"+experiment={name}", "pool=lagged"]).config.pool
    assert lagged.lags == (1, lagged.max_active_lora - 1)


def test_lags_that_cannot_be_counted_are_refused():
    lagged = ["pool=lagged", "pool.lag_range=[1,2]"]
    for line, key in {
        "pool.max_active_lora=2": "lag_range",
        "pool.history=spaced": "lag_range",
        "pool.max_active_lora=1": "max_active_lora",
    }.items():
        problems = dict(compose([*lagged, line]).config.problems())
        assert next(iter(problems)) == f"pool.{key}"


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (
            ["env=tictacto", "pool=mirorr", "lr=1", "seed=abc", "data.games=3"],
            ["env=tictacto", "pool=mirorr", "lr (", "seed=abc", "data.games=3"],
        ),
        (["+experiment=nowhere", "algorithm.group_size=4", "seed=-1"], ["experiment=", "seed=-1"]),
        (["algorithm=gropo", "algorithm.group_size=4", "bach=3"], ["algorithm=gropo", "bach ("]),
        (["seed=1,2", "learner.batch_size=0"], ["seed=1,2", "learner.batch_size=0"]),
    ],
)
def test_what_is_wrong_is_said_at_once_and_no_consequence_of_it(lines, said):
    with pytest.raises(ConfigError) as refused:
        compose(lines)
    told = str(refused.value).splitlines()
    assert len(told) == len(said)
    assert all(any(one.startswith(part) for one in told) for part in said), told
