"""The HTTP side: the application, its middleware, bodies, streams and the server process."""
