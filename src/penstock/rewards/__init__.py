"""What scores a finished group: user functions, exact answers, mathematics, reward models, and mixtures of them.

Import the modules themselves; read ``runner`` first. None of them imports torch.
"""
