"""The status page: documents of the API in, HTML out. Pure; `web.page_routes` serves it."""
