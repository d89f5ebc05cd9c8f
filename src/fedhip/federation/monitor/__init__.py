"""The coordinator's page: what a server may know of its round, for people, for programs and for Prometheus."""
