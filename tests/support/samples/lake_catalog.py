"""An Iceberg catalog ``lake`` in the present folder. pyiceberg reads its configuration once, when it is imported."""

import os

os.environ |= {
    "PYICEBERG_CATALOG__LAKE__TYPE": "sql",
    "PYICEBERG_CATALOG__LAKE__URI": "sqlite:///catalog.db",
    "PYICEBERG_CATALOG__LAKE__WAREHOUSE": "warehouse",
}
