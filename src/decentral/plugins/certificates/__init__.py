"""Certificates: what a linear method guarantees, computed from its code (docs/certificates.md)."""
