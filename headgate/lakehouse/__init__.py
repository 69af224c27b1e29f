"""Topics in Delta, Iceberg and Parquet tables: the extra ``lakehouse``."""

import os

os.environ.setdefault("RUST_LOG", "off")  # delta-rs reads it when imported. Its warnings repeat what errors say.
