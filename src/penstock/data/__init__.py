"""Where rows come from, in which order they are drawn, how they become text, and how token rows become micro-batches.

Import the modules themselves: ``sources``, ``sampler``, ``render``, ``layout``, ``resolve``. None of them imports torch.
"""
