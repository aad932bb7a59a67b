"""Bytes that a pass of a Llama-like model takes besides its weights: what is kept for the backward pass, and logits.

Derived from what transformers' blocks and our own functions of autograd keep (``tests/plan/test_passes.py`` counts it), not
fitted to anything. Every token of a micro-batch is taken to be an action: an upper bound where prompts are long.
"""

from __future__ import annotations

from penstock.config.learner import LearnerSpec
from penstock.models.presets import Shape

CHUNK = 1 << 24
"""Largest logits tensor at once, in numbers, on a processor; on a GPU it is :data:`ON_CUDA` times as many
(``models/outputs.py``, which imports torch)."""
ON_CUDA = 8
SCORED = 8192
"""Tokens of a micro-batch of a frozen model (``train/learner.py``)."""
STEP_8BIT = 53.0
"""Bytes for each number of one tensor at the height of torchao's 8-bit step, which computes plainly on a processor: weight,
both moments and the quotient in float32, two int64 codes, six temporaries of the table's search. Compiled, on a GPU: none."""


def number_bytes(learner: LearnerSpec) -> int:
    """Bytes of a number that the trunk computes with; ``mixed`` rounds what matrices read alone."""
    return 2 if learner.dtype == "bfloat16" else 4


def attention_widths(shape: Shape) -> tuple[int, int]:
    """Width of all queries, and of all keys."""
    head = shape.head_width or shape.width // shape.heads
    return shape.heads * head, shape.key_value_heads * head


def block_bytes(shape: Shape, learner: LearnerSpec) -> float:
    """What a block keeps of one token for its backward pass.

    Each of two norms: its input in float32, the root, what is normalised (where the norm's weight learns). Attention: queries,
    keys, values, output, a sum for each head. Feed-forward: gate, its activation, the other factor. And what each matrix reads:
    once where matrices share it, or a rounded copy for each in ``mixed``. With adapters, what lies between their two matrices.
    """
    (queries, keys), number = attention_widths(shape), number_bytes(learner)
    norms = 2.0 * (4 * shape.width + 4 + (0 if learner.lora is not None else number * shape.width))
    inner = number * (2 * queries + 2 * keys + 3 * shape.hidden) + 4 * shape.heads
    read = (2 if learner.dtype == "mixed" else number) * (queries + shape.hidden)
    read += 2 * 5 * shape.width if learner.dtype == "mixed" else number * 2 * shape.width
    adapters = 0 if learner.lora is None else number * learner.lora.rank * (len(learner.lora.targets) or 7)
    return norms + inner + read + adapters


def kept_bytes(shape: Shape, learner: LearnerSpec, scores: bool = False) -> float:
    """What the trained blocks of policy and critic keep of a full micro-batch; ``scores``: of a reward model, which reads one
    token a row, so that the last block's feed-forward is hardly computed."""
    number, blocks = number_bytes(learner), max(shape.layers, shape.encoder_layers)
    trained = blocks if learner.unfrozen_layers < 0 else min(blocks, learner.unfrozen_layers)
    trunks = 2 if learner.critic in ("separate", "branch") else 1
    each = block_bytes(shape, learner)
    if learner.gradient_checkpointing:
        of_token = trunks * trained * number * shape.width + each
    else:
        spared = number * (attention_widths(shape)[0] + shape.width + 4 * shape.hidden) if scores and trained else 0
        of_token = trunks * trained * each - spared
    head_learns = learner.lora is None and (learner.unfrozen_layers < 0 or not shape.tied)
    # Of the final norm both are kept, or its input alone; where nothing below learns, not the first norm's input.
    normalised = 0 if learner.lora is not None else number
    below = 4 if learner.lora is not None or (trained and learner.unfrozen_layers >= 0) else 0
    of_token += trunks * (4 + normalised - below) * shape.width + (number * shape.width if head_learns and not scores else 0)
    of_token += trunks * 2 * number * attention_widths(shape)[0] // shape.heads  # sines and cosines of the position
    return float(learner.token_budget * of_token)


def head_bytes(shape: Shape, learner: LearnerSpec, warm: bool = False, entropy: bool = False, on_gpu: bool = False) -> float:
    """What logits take at most, before or after the turn from forward to backward, when all that is kept is there.

    Forward: logits (in bfloat16 too, where the trunk is), divided by the temperature if they are ``warm``, and one more of
    their size to sum; three with ``entropy``. Backward: logits, their gradient, and that of the head where it learns, a second
    time where chunks add up.
    """
    if not shape.vocabulary:
        return 0.0
    rows = max(1, CHUNK * (ON_CUDA if on_gpu else 1) // shape.vocabulary)
    logits, number = 4.0 * min(learner.token_budget, rows) * shape.vocabulary, number_bytes(learner)
    forward = logits * (2 + warm + 2 * entropy + (0.5 if number == 2 else 0))
    learns = learner.lora is None and (learner.unfrozen_layers < 0 or not shape.tied)
    matrix = number * shape.vocabulary * shape.width * (1 + (learner.token_budget > rows)) if learns else 0
    return max(forward, logits * (2 + 2 * entropy), logits + matrix)


def unfolding_bytes(shape: Shape, learner: LearnerSpec) -> float:
    """What the backward pass of the last block adds while everything else is still kept: gradients of two factors of its
    feed-forward and of the residual stream, and of a matrix; that of a tied head waits for the embeddings'."""
    number = number_bytes(learner)
    waiting = shape.vocabulary * shape.width if shape.tied and learner.lora is None and learner.unfrozen_layers < 0 else 0
    return float(number * (learner.token_budget * (2 * shape.hidden + 2 * shape.width) + shape.width * shape.hidden + waiting))


def training_bytes(
    shape: Shape, learner: LearnerSpec, *, warm: bool = False, entropy: bool = False, scores: bool = False, on_gpu: bool = False
) -> float:
    """Activations of a full micro-batch at their height: all that is kept, and the logits or the first backward steps."""
    head = 0.0 if scores else head_bytes(shape, learner, warm, entropy, on_gpu)
    return kept_bytes(shape, learner, scores) + max(head, unfolding_bytes(shape, learner))


def scoring_bytes(shape: Shape, learner: LearnerSpec, tokens: int = SCORED, logits: bool = True, on_gpu: bool = False) -> float:
    """What a pass without gradient takes at most: the feed-forward's three factors with norm and residual stream of a
    micro-batch, or its logits."""
    number = number_bytes(learner)
    inner = tokens * (number * (3 * shape.hidden + 3 * shape.width) + 4.0 * shape.width)
    rows = max(1, CHUNK * (ON_CUDA if on_gpu else 1) // max(1, shape.vocabulary))
    held = tokens * number * shape.width + 8.0 * min(tokens, rows) * shape.vocabulary if logits else 0.0
    return max(inner, held)


def step_bytes(shape: Shape, eight_bits: bool, on_gpu: bool, trained: int) -> float:
    """What an optimizer's step takes for a while: nothing but for 8 bits on a processor, and there of its largest tensor."""
    largest = max(shape.width * shape.hidden, shape.vocabulary * shape.width)
    return STEP_8BIT * min(largest, trained) if eight_bits and not on_gpu else 0.0
