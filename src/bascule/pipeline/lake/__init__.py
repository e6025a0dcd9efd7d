"""Lake tables: Parquet files under a table format, with the offsets they hold in every snapshot."""
