"""The only way out to the network: by name, decided on the host, written down."""
