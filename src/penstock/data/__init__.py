"""Where rows come from, in which order they come, and how they become text.

Import the modules themselves: ``sources``, ``sampler``, ``render``, ``resolve``. None of them imports torch.
"""
