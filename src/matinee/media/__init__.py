"""One video: packet table, packet plan, fused decode-crop, chunk encoder. No torch here."""
