"""How processes of a run talk: one codec, one authenticated link, one RPC. The only home of sockets."""
