"""The code server: the sandbox over HTTP, compatible with the training engines' own clients.

docs/code-server.md is its manual. Needs the extra `server`; only `app` cannot be imported without it.
"""
