"""The command line: arguments in, the runtime, the pages and the feedback store out."""
