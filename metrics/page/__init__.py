"""The status page: documents of the API in, HTML out. Pure; `metrics.http_page` serves it."""
