"""What a run names as its bottleneck."""

import pytest

from rlforge.tracking.bottleneck import BottleneckWatch, bottleneck

FEW = {"games_in_progress": 32.0, "games_wanted": 32.0, "games_most": 32.0, "learner_waits": 0.6}


@pytest.mark.parametrize(
    ("figures", "name", "said"),
    [
        ({"learner_waits": 0.04, "engine_occupancy": 1.0}, "learner", "learner.num_learners"),
        ({"engine_occupancy": 0.9}, "engines", "engine.max_parallel_seq"),
        ({"engine_occupancy": 0.3}, "games", "collector.num_train_workers"),
        ({"games_in_progress": 20.0, "engine_occupancy": 0.3}, "games", "20 of 32 have begun"),
        (
            {"games_in_progress": 20.0, "games_wanted": 20.0, "engine_occupancy": 0.3},
            "games",
            "buffer.max_age",
        ),
    ],
)
def test_the_bottleneck_is_named_with_the_keys_that_change_it(figures, name, said):
    found = bottleneck(FEW | figures)
    assert found.name == name
    assert said in str(found)


def test_without_figures_there_is_no_bottleneck():
    assert bottleneck({}) is None
    assert bottleneck(FEW) is None  # no engine has reported


def test_a_bottleneck_is_said_once_it_has_lasted_and_again_when_another_has():
    watch, engines = BottleneckWatch(), FEW | {"engine_occupancy": 0.9}
    learner = engines | {"learner_waits": 0.0}
    said = [watch.updated({}), *(watch.updated(engines) for _ in range(12))]
    said += [watch.updated(each) for each in [learner, engines] * 10]
    said += [watch.updated(learner) for _ in range(12)]
    assert [(place, each.name) for place, each in enumerate(said) if each] == [
        (10, "engines"),
        (42, "learner"),
    ]
