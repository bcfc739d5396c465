"""One video file: packet table, packet plan, fused decode-crop, chunk encoder. Never imports torch."""
