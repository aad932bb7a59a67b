"""How far annotators agree and may be trusted, whether that changes, and the report card that follows from it."""
