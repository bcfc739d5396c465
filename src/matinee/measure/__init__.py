"""Watching and explaining: what runs did, where their time went, pages that show it."""
