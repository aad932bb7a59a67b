"""One file for each version of the schema; a released one is never edited."""
