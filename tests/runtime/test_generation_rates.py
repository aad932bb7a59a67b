"""What several generators do side by side, added up."""

from penstock.runtime.stages.remote_online import generation_rates


def test_the_rate_is_that_of_all_generators_together():
    before = {"generator-0": {"generated_tokens": 100.0, "busy_seconds": 1.0}, "reward-0": {}}
    now = {
        "generator-0": {"generated_tokens": 300.0, "busy_seconds": 3.0},  # 100 a second
        "generator-1": {"generated_tokens": 60.0, "busy_seconds": 2.0},  # 30 a second
        "reward-0": {},
    }
    assert generation_rates(before, now) == {"generation/tokens_per_second": 130.0, "seconds/generated": 4.0}


def test_a_generator_that_was_started_again_counts_nothing_negative():
    before = {"generator-0": {"generated_tokens": 100.0, "busy_seconds": 1.0}}
    now = {"generator-0": {"generated_tokens": 10.0, "busy_seconds": 0.5}}
    assert generation_rates(before, now) == {"generation/tokens_per_second": 0.0, "seconds/generated": 0.0}
