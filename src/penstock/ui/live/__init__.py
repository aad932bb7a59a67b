"""The live page: every run of a folder while it trains. Reads what runs write; nothing here can change or stop one."""
