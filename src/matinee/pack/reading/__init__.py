"""Reading a pack: its index, and the bytes of clips."""
