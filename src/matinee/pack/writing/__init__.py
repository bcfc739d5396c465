"""Making a pack: encoding, indexing, merging."""
