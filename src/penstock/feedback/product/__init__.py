"""What users of products do with answers: signals, their log, and the careful labels made of them."""
