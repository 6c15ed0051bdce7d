"""What a run names as its bottleneck."""

import pytest

from rlforge.record.bottleneck import BottleneckWatch, bottleneck

FEW = {
    "games_in_progress": 32.0,
    "games_wanted": 32.0,
    "games_most": 32.0,
    "learner_waits": 0.6,
    "engine_occupancy": 0.3,
    "engine_share": 0.6,
    "idle_share": 0.2,
    "lost_share": 0.01,
}


@pytest.mark.parametrize(
    ("figures", "name", "said"),
    [
        ({"learner_waits": 0.04, "engine_occupancy": 1.0}, "learner", "learner.num_learners"),
        ({"engine_occupancy": 0.9}, "engines", "engine.max_parallel_seq"),
        ({"engine_share": 0.95}, "engines", "they compute 95% of the time, and 30% of"),
        ({"idle_share": 0.7}, "collectors", "collector.num_collectors"),
        ({}, "games", "all 32 play, and 30% of the engines' places are in use"),
        ({"games_in_progress": 20.0}, "games", "20 of 32 play"),
        ({"games_wanted": 20.0}, "learner", "it waits 60% of the time"),
        ({"games_wanted": 20.0, "lost_share": 0.1}, "games", "buffer.max_staleness"),
    ],
)
def test_the_bottleneck_is_named_with_the_keys_that_change_it(figures, name, said):
    found = bottleneck(FEW | figures)
    assert found.name == name
    assert said in str(found)
    assert found.keys


def test_without_figures_there_is_no_bottleneck():
    assert bottleneck({}) is None
    assert bottleneck({name: FEW[name] for name in FEW.keys() - {"engine_occupancy"}}) is None


def test_the_bottleneck_is_said_after_ten_updates_and_again_when_it_is_another():
    watch, engines = BottleneckWatch(), FEW | {"engine_occupancy": 0.9}
    learner = engines | {"learner_waits": 0.0}
    said = [watch.updated({}), *(watch.updated(engines) for _ in range(19))]
    said += [watch.updated(each) for each in [learner, engines] * 10]
    said += [watch.updated(learner) for _ in range(20)]
    first, second = [(place, each.name) for place, each in enumerate(said) if each]
    assert first == (10, "engines")
    assert second[0] in range(40, 60)
    assert second[1] == "learner"
