"""Files that settings name: secrets, and certificates for TLS."""
