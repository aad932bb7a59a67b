"""Generators tell the checksums of the weights they use; one whose weights are not the learner's ends the run by name."""

from __future__ import annotations

from runs import Start

SPOILT = """
import penstock.engine.driver as generator
inner = generator.switch
def switch(model, tensors, owned):
    inner(model, tensors, owned)
    next(tensor for _, tensor in model.policy_weights()).data.view(-1)[0] += 1e-6
generator.switch = switch
"""


def test_weights_that_arrived_are_those_that_were_sent(start: Start) -> None:
    run = start("encoder_decoder", "--steps", "9", "--max-lag", "1")
    run.assert_ends()
    assert "weight checksum" not in run.text


def test_a_generator_with_other_weights_is_found_out(start: Start) -> None:
    run = start("letters", "--steps", "30", in_roles=SPOILT)
    assert run.wait() == 2, run.everything()
    assert "weights of version 0 are not the learner's" in run.text, run.everything()
    run.assert_clean()
