"""``rlforge show`` explains what a configuration has, whoever wrote it."""

from pathlib import Path

import pytest

PLUGINS = Path(__file__).parents[2] / "examples" / "plugins" / "src"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["algorithm.clip", "algorithm=example_plugins.algorithms:BatchMean"], "clip=5.0"),
        (["tournament", "kind=example_plugins.tournament:TOURNAMENT"], "tournament.games=20"),
        (["model.dtype"], "Not float16, fp16, half: must be bfloat16"),
    ],
)
def test_show_explains_keys_of_plug_ins_and_choices_that_are_left_out(
    rlforge, monkeypatch, words, said
):
    monkeypatch.syspath_prepend(PLUGINS)
    answer = rlforge("show", *words)
    assert (answer.code, answer.err) == (0, "")
    assert said in " ".join(answer.out.split())
