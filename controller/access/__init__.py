"""The file of rights and quotas: read, applied to requests, and read again by a reload. `shard.access` decides."""
