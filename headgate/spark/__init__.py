"""Topics as a source and a sink of Spark. Programs bring their own PySpark, 4.2 or later, with pyarrow."""
