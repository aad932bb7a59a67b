"""What answers back: single-use environments, which give the first observation and take actions until they are done."""
