"""Plug-ins that come with decentral: each folder is laid out like a user's folder of components (`--config-dir`).

The core never imports them: it works, and its tests pass, without this folder.
"""
