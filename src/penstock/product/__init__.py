"""What users of products did, and what becomes of it: signals, labels, corrections in prompts.

Above ``feedback``: its tables lie in the feedback store's database, and that store's service answers for it.
"""
