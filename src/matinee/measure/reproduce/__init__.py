"""What papers published, measured again."""
