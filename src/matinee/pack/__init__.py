"""A dataset on disk: tar shards of ordinary MP4 files, packet tables, parquet tables."""
