"""The web server: routes, sockets, API keys, and the page."""
